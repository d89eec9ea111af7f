"""Configuration of the site: `make docs` builds it from docs/*.md and the docstrings, without a network.

The pages' code is not run here: `tests/test_docs.py` runs every block of every page.
"""

import os
import sys
from pathlib import Path

import phalanx

sys.path.insert(0, str(Path(__file__).parent / "_site"))

project = "Phalanx"
author = "The Phalanx maintainers"
copyright = "The Phalanx maintainers, Apache-2.0"
version = release = phalanx.__version__

# Not MyST-NB, which runs pages when the site is built: tests run the blocks of all pages, and pictures and printed
# results of longer runs are committed, so that the site is built in minutes, without data.
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx_copybutton"]
extensions += ["docstrings", "gallery", "links", "mathml"]

# Other projects' inventories come over the network, so links to them are made only where they are asked for.
if os.environ.get("PHALANX_DOCS_ONLINE"):
    extensions += ["sphinx.ext.intersphinx"]
    intersphinx_mapping = {
        "arviz": ("https://python.arviz.org/en/stable", None),
        "jax": ("https://docs.jax.dev/en/latest", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "numpyro": ("https://num.pyro.ai/en/stable", None),
        "python": ("https://docs.python.org/3", None),
    }

exclude_patterns = ["_*"]
templates_path = ["_templates"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # an included page's headings start where they start

autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
napoleon_custom_sections = ["Source"]
python_maximum_signature_line_length = 88
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "sphinx_book_theme"
html_title = "Phalanx"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navigation_with_keys": False,
    "navbar_persistent": [],
}
