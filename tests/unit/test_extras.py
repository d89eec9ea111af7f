import sys

import pytest

from phalanx.extras import require


def test_what_is_installed_is_imported():
    assert require("json.decoder", "report").JSONDecoder


@pytest.mark.parametrize("module", ["no_such_package_1", "no_such_package_1.part"])
def test_what_is_missing_says_how_to_install_it(module):
    message = r"^no_such_package_1 is needed here and is not installed: pip install 'phalanx\[report\]'$"
    with pytest.raises(ImportError, match=message):
        require(module, "report")


def test_a_package_that_is_broken_raises_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "broken_package_1.py").write_text("import no_such_package_2")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'no_such_package_2'$"):
        require("broken_package_1", "report")
