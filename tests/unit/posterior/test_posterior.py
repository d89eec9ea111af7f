import doctest
import json
import re
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from typing import Any, NamedTuple

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.apart import compiled_in, of_a_run
from tests.unit.report.posteriors import make_posterior, with_divergences

import phalanx as phx
from phalanx.diagnostics import summary_table
from phalanx.posterior.posterior import Posterior


class Moments(NamedTuple):
    count: int
    mean: np.ndarray


def assert_same_bits(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def test_importing_it_imports_no_optional_package():
    script = (
        "import sys, phalanx.posterior.posterior;"
        "assert not {'arviz', 'arviz_stats', 'pandas', 'matplotlib', 'xarray', 'scipy.stats'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_it_says_what_it_is():
    assert repr(make_posterior()) == "Posterior(4 chains x 100 draws of w[2, 3], b, n; 0 divergences; 83.5 s)"
    interrupted = make_posterior(chains=1, variables={})
    interrupted = with_divergences(replace(interrupted, record=replace(interrupted.record, interrupted=True)), 1)
    assert str(interrupted) == "Posterior(1 chain x 100 draws of no variables; 1 divergence; 83.5 s; interrupted)"


@pytest.mark.slow
def test_the_examples_of_the_methods_hold(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def model(y):
        phx.sample("y", dist.Normal(phx.sample("mean", dist.Normal(0.0, 10.0)), 1.0), obs=y)

    posterior = phx.mcmc(model, {"y": jnp.arange(5.0)}, kernel=phx.hmc(num_steps=10), progress=False)
    posterior.save("run.npz")  # for the example of `load`
    known = {"posterior": posterior, "Posterior": Posterior}
    found = doctest.DocTestFinder().find(Posterior, globs=known)
    examples = [test for test in found if "." in test.name]
    for test in examples:
        for example in test.examples:
            example.options.clear()  # skipped elsewhere, for want of a posterior
        assert doctest.DocTestRunner(verbose=False).run(test).failed == 0, test.name
    assert sum(bool(test.examples) for test in examples) >= 12


def test_sizes():
    posterior = with_divergences(make_posterior(3, 50), 7)
    assert (posterior.num_chains, posterior.num_draws, posterior.num_divergences) == (3, 50, 7)
    assert make_posterior(3, 50, variables={}).num_draws == 50


class TestNames:
    def test_draws_by_name(self):
        posterior = make_posterior()
        assert posterior["w"] is posterior.draws["w"]
        assert "w" in posterior and "v" not in posterior and list(posterior) == ["w", "b", "n"]

    @pytest.mark.parametrize("error", [KeyError, ValueError])
    def test_a_wrong_name_is_answered_with_a_near_one(self, error):
        with pytest.raises(error) as caught:
            make_posterior(variables={"tau": np.zeros((4, 100)), "mu": np.zeros((4, 100))})["tua"]
        assert str(caught.value) == (
            "posterior['tua']: there is no variable 'tua' among the draws; they are: 'tau', 'mu'. Did you mean 'tau'?"
        )
        with pytest.raises(ValueError, match=r"Did you mean 'tau'\?$"):
            make_posterior(variables={"tau": np.zeros((4, 100))}).summary(["taus"])
        with pytest.raises(ValueError, match=r"Did you mean 'tau'\?"):
            make_posterior(2, 3, variables={"tau": np.zeros((2, 3))}).predict(lambda values: values["tua"])

    def test_a_variable_that_was_not_kept_is_said_to_be(self):
        posterior = make_posterior(variables={"b": np.zeros((4, 100))})  # the record has `w`, too
        words = r"The model has 'w'\. The run did not keep its draws: run it with keep=None, or name it in keep=\."
        asked = [lambda: posterior["w"], lambda: posterior.summary("w"), lambda: posterior.predict(lambda v: v["w"])]
        for wrong in asked:
            with pytest.raises(ValueError, match=words):
                wrong()


class TestDataFrame:
    def test_one_row_per_draw_and_one_column_per_quantity(self):
        posterior = make_posterior(2, 3)
        posterior = replace(posterior, record=replace(posterior.record, labels={"w": (("east", "west"), None)}))
        table = posterior.to_dataframe()
        rows = [f"w[{a},{b}]" for a in ("east", "west") for b in range(3)]
        assert list(table.columns) == ["chain", "draw", *rows, "b", "n"]
        assert list(table.columns[2:]) == list(posterior.summary().index[1:])
        assert table["chain"].tolist() == [0, 0, 0, 1, 1, 1] and table["draw"].tolist() == [0, 1, 2, 0, 1, 2]
        np.testing.assert_array_equal(table["w[west,1]"].to_numpy().reshape(2, 3), posterior["w"][..., 1, 1])
        assert table["w[west,1]"].dtype == np.float32 and table["n"].dtype.kind == "i" and len(table) == 6

    def test_equal_labels_stay_two_columns(self):
        posterior = make_posterior(2, 3, variables={"w": np.arange(12.0).reshape(2, 3, 2)})
        table = replace(posterior, record=replace(posterior.record, labels={"w": (("a", "a"),)})).to_dataframe()
        assert list(table.columns[2:]) == ["w[a]", "w[a]"] and table.iloc[-1, 2:].tolist() == [10.0, 11.0]

    def test_draws_that_cannot_be_a_table_are_refused(self):
        with pytest.raises(ValueError, match="^to_dataframe: the variable 'draw' has the name of a column"):
            make_posterior(variables={"draw": np.zeros((4, 100))}).to_dataframe()
        with pytest.raises(ValueError, match="^to_dataframe: there are no draws; keep at least one"):
            make_posterior(variables={}).to_dataframe()


class TestSummary:
    def test_the_interval_has_the_share_asked_for(self):
        posterior = make_posterior()
        narrow, wide = posterior.summary(prob=0.5), posterior.summary()
        assert narrow.iloc[1:].equals(summary_table(posterior.draws, prob=0.5)) and narrow.verdict == wide.verdict
        assert (narrow["hdi_high"] - narrow["hdi_low"] < wide["hdi_high"] - wide["hdi_low"]).iloc[:-1].all()
        assert posterior.summary(["b"], prob=0.5).loc["b"].equals(narrow.loc["b"])
        with pytest.raises(ValueError, match="^summary: prob must be above 0 and below 1; got 94"):
            posterior.summary(prob=94)

    def test_the_log_density_comes_first(self):
        posterior = make_posterior()
        table = posterior.summary()
        assert list(table.index[:2]) == ["log_density", "w[0,0]"]
        assert table.iloc[1:].equals(summary_table(posterior.draws))
        assert table.loc["log_density"].equals(
            summary_table({"log_density": posterior.stats["log_density"]}).loc["log_density"]
        )

    def test_names_choose(self):
        assert list(make_posterior().summary(["n", "b"]).index) == ["log_density", "n", "b"]
        assert list(make_posterior().summary("b").index) == ["log_density", "b"]

    def test_changing_the_table_changes_nothing_else(self):
        posterior = make_posterior()
        table = posterior.summary()
        table.loc["b", "mean"] = 1e9
        assert posterior.summary().loc["b", "mean"] < 1

    def test_a_run_that_kept_no_variables_has_a_log_density(self):
        assert list(make_posterior(variables={}).summary().index) == ["log_density"]

    def test_an_unknown_name_is_an_error(self):
        with pytest.raises(
            ValueError, match=r"^summary: there is no variable 'v' among the draws; they are: 'w', 'b', 'n'\.$"
        ):
            make_posterior().summary(["v"])

    def test_the_whole_table_ends_with_the_verdict_and_a_part_does_not(self):
        posterior = make_posterior(draws=1000)
        verdict = posterior.verdict()
        assert verdict.good
        assert posterior.summary().verdict == verdict
        assert repr(posterior.summary()).splitlines()[-1] == verdict.headline
        assert posterior.summary(["b"]).verdict is None

    def test_no_draws_are_an_error(self):
        message = r"^log_density: there are no draws to summarise: 4 chains of 0 draws\.$"
        with pytest.raises(ValueError, match=message):
            make_posterior(draws=0).summary()


def test_arviz_gets_draws_and_statistics():
    posterior = make_posterior()
    data = posterior.to_arviz()
    np.testing.assert_array_equal(data.posterior["w"].values, posterior.draws["w"])
    assert set(data.sample_stats) == {"acceptance_rate", "diverging", "n_steps", "energy", "step_size", "lp"}


class TestPredict:
    @pytest.mark.parametrize("batch_size", [1, 7, 100, 10_000])
    def test_every_draw_is_evaluated_in_its_place(self, batch_size):
        posterior = make_posterior(3, 11)
        result = posterior.predict(
            lambda values: {"wx": values["w"] @ jnp.arange(3.0), "sum": [values["b"] + values["n"]]},
            batch_size=batch_size,
        )
        np.testing.assert_allclose(result["wx"], posterior.draws["w"] @ np.arange(3.0, dtype=np.float32), rtol=1e-5)
        np.testing.assert_allclose(result["sum"][0], posterior.draws["b"] + posterior.draws["n"], rtol=1e-5)
        assert result["wx"].shape == (3, 11, 2)
        assert isinstance(result["wx"], np.ndarray)

    def test_a_constant_is_repeated(self):
        np.testing.assert_array_equal(make_posterior(2, 3).predict(lambda values: 5), np.full((2, 3), 5))

    def test_one_compilation_and_batches_of_one_size(self):
        sizes = []

        def fn(values):
            sizes.append(jnp.shape(values["w"]))
            return values["b"]

        make_posterior(3, 11).predict(fn, batch_size=10)
        assert sizes == [(2, 3)]

    def test_values_are_a_plain_dict_that_jax_knows(self):
        posterior = make_posterior(2, 3)
        result = posterior.predict(jax.jit(lambda values: jax.tree.map(jnp.sin, values)))
        assert set(result) == {"w", "b", "n"}

    @pytest.mark.parametrize(
        "fn, error, message",
        [
            (
                lambda v: v["z"],
                ValueError,
                "predict: fn asks for 'z', which is not among the draws; they hold: 'b', 'n', 'w'.",
            ),
            (
                lambda v: None,
                ValueError,
                "predict: fn returned no value; it must return an array or a pytree of arrays.",
            ),
            (lambda v: "hello", TypeError, "predict: fn must return a pytree of arrays; one of its leaves is a str."),
            (5, TypeError, "predict: fn must be a function of a dict of one draw's values; got int."),
        ],
        ids=["unknown name", "nothing", "a string", "no function"],
    )
    def test_wrong_functions_are_refused(self, fn, error, message):
        # JAX may add a note about its traceback.
        with pytest.raises(error, match=f"^{re.escape(message)}"):
            make_posterior(2, 3).predict(fn)

    def test_nothing_to_evaluate_at_is_an_error(self):
        with pytest.raises(ValueError, match=r"^predict: there are no draws to evaluate fn at: 4 chains of 0 draws\.$"):
            make_posterior(draws=0).predict(lambda values: values["b"])
        with pytest.raises(ValueError, match=r"^predict: there are no variables to give to fn; keep some when running"):
            make_posterior(variables={}).predict(lambda values: 1)
        with pytest.raises(ValueError, match=r"^predict: batch_size must be at least 1; got 0\.$"):
            make_posterior().predict(lambda values: values["b"], batch_size=0)


class TestFile:
    def test_everything_comes_back_bit_for_bit(self, tmp_path):
        variables = {
            "../w/é": np.random.default_rng(0).normal(size=(2, 5, 3)),
            "file": np.full((2, 5), np.nan, dtype=np.float32),
            "half": np.asarray(jnp.arange(10.0, dtype=jnp.bfloat16).reshape(2, 5)),
            "none": np.zeros((2, 5, 0), dtype=np.int8),
        }
        posterior = make_posterior(2, 5, variables=variables)
        (tmp_path / "folder").mkdir()
        path = posterior.save(tmp_path / "folder" / "run.phalanx")
        loaded = Posterior.load(str(path))
        assert_same_bits(loaded.draws, posterior.draws)
        assert_same_bits(loaded.stats, posterior.stats)
        assert (loaded.timing, loaded.record, loaded.reduced) == (posterior.timing, posterior.record, {})
        assert list(loaded.draws) == list(variables)
        assert [entry.name for entry in path.parent.iterdir()] == ["run.phalanx"]

    def test_reduced_values_come_back_with_their_structure(self, tmp_path):
        mean = np.arange(3.0)
        reduced = {"m": {"x": Moments(10**12, mean)}, "q": [(jnp.ones(2), None, "q", 0.5)]}
        loaded = Posterior.load(replace(make_posterior(), reduced=reduced).save(tmp_path / "run.npz")).reduced
        assert loaded["m"]["x"].count == 10**12
        np.testing.assert_array_equal(loaded["m"]["x"].mean, mean)
        assert type(loaded["m"]["x"]).__name__ == "Moments"
        assert loaded["q"][0][1:] == (None, "q", 0.5)

    def test_results_that_cannot_be_saved_are_named_and_the_file_stays(self, tmp_path):
        path = make_posterior().save(tmp_path / "run.npz")
        before = path.read_bytes()
        message = (
            "save: reduced['m'].x[1] holds a set, which cannot be saved. Save the rest without it: "
            "dataclasses.replace(posterior, reduced={}).save(path)."
        )
        bad = {"m": namedtuple("Bad", ["x"])([1, {2}])}
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            replace(make_posterior(seed=1), reduced=bad).save(path)
        with pytest.raises(TypeError, match=r"^save: the keys of reduced must be strings or whole numbers; got 0.5\.$"):
            replace(make_posterior(seed=1), reduced={0.5: 4}).save(path)
        with pytest.raises(
            TypeError, match=r"^save: draws\['o'\] holds Python objects in an array, which cannot be saved\.$"
        ):
            make_posterior(variables={"o": np.full((4, 100), None)}).save(path)
        assert path.read_bytes() == before
        assert [entry.name for entry in tmp_path.iterdir()] == ["run.npz"]

    def test_a_write_that_fails_half_way_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = make_posterior().save(tmp_path / "run.npz")
        before = path.read_bytes()

        def disk_is_full(file, **arrays):
            file.write(b"half")
            raise OSError("no space left on device")

        monkeypatch.setattr(np, "savez", disk_is_full)
        with pytest.raises(OSError, match="no space left"):
            make_posterior(seed=1).save(path)
        assert path.read_bytes() == before
        assert [entry.name for entry in tmp_path.iterdir()] == ["run.npz"]

    def test_a_missing_file_is_named(self, tmp_path):
        path = tmp_path / "nowhere.npz"
        with pytest.raises(FileNotFoundError, match=f"^{re.escape(f'Posterior.load: there is no file {path}.')}$"):
            Posterior.load(path)

    def test_an_archive_with_other_arrays_is_refused(self, tmp_path):
        whole = make_posterior().save(tmp_path / "right.npz")
        arrays = dict(np.load(whole))
        described = json.loads(str(arrays["json"]))
        parts = described["parts"]
        for entry in (*parts["draws"]["dict"].values(), *parts["stats"]["dict"].values()):
            array = arrays[entry["array"]]
            wrong = [array[:, :-1], array[:1], array.astype(np.complex64)]
            for other in [*wrong, array.view(f"i{array.itemsize}")] if array.dtype.kind == "f" else wrong:
                np.savez(tmp_path / "wrong.npz", **{**arrays, entry["array"]: other})
                with pytest.raises(ValueError, match=r"wrong\.npz is not a posterior .*or is damaged: an array of "):
                    Posterior.load(tmp_path / "wrong.npz")

    def test_a_file_of_an_earlier_release_has_no_shapes(self, tmp_path):
        arrays = dict(np.load(make_posterior().save(tmp_path / "right.npz")))
        arrays["json"] = np.array(re.sub(r', "shape": \[[\d, ]*\]', "", str(arrays["json"])))
        assert "shape" not in json.loads(str(arrays["json"]))["parts"]["draws"]["dict"]["b"]
        np.savez(tmp_path / "old.npz", **arrays)
        assert_same_bits(Posterior.load(tmp_path / "old.npz").draws, make_posterior().draws)
        renamed = str(arrays["json"]).replace('"diagnostics": {}', '"tells": {"r": "r_hat"}')
        renamed = renamed.replace('"reduced_draws": 0', '"folded_draws": 7')
        np.savez(tmp_path / "old.npz", **{**arrays, "json": np.array(renamed)})
        record = Posterior.load(tmp_path / "old.npz").record
        assert record.diagnostics == {"r": "r_hat"} and record.reduced_draws == 7
        np.savez(tmp_path / "old.npz", **{**arrays, "0": arrays["0"][:, :-1]})
        with pytest.raises(ValueError, match=r"old\.npz .*damaged: its arrays differ in chains and draws: "):
            Posterior.load(tmp_path / "old.npz")

    @given(where=st.floats(0, 1), bit=st.integers(0, 7), near_the_end=st.booleans())
    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_a_flipped_bit_is_harmless_or_named(self, tmp_path, where, bit, near_the_end):
        posterior = make_posterior(2, 4)
        path = posterior.save(tmp_path / "run.npz")
        contents = bytearray(path.read_bytes())
        size = min(1500, len(contents)) if near_the_end else len(contents)  # the archive's directory is at its end
        contents[len(contents) - 1 - int(where * (size - 1))] ^= 1 << bit
        path.write_bytes(contents)
        try:
            loaded = Posterior.load(path)
        except ValueError as error:
            assert str(error).startswith(f"Posterior.load: {path} is not a posterior saved by Phalanx, or is damaged: ")
        else:
            assert_same_bits(loaded.draws, posterior.draws)

    @pytest.mark.parametrize("method", [99, 12, 14])
    def test_a_compression_that_is_unknown_is_named(self, tmp_path, method):
        path = make_posterior(2, 4).save(tmp_path / "run.npz")
        contents = path.read_bytes()
        entry = contents.index(b"PK\x01\x02") + 10
        path.write_bytes(contents[:entry] + method.to_bytes(2, "little") + contents[entry + 2 :])
        with pytest.raises(ValueError, match=f"^Posterior.load: {path} is not a posterior saved by Phalanx, or is dam"):
            Posterior.load(path)

    @pytest.mark.parametrize("kind", ["text", "empty", "npy", "other npz", "truncated", "flipped", "later version"])
    def test_a_wrong_file_is_named(self, tmp_path, kind):
        path = tmp_path / "wrong.npz"
        whole = make_posterior().save(tmp_path / "right.npz").read_bytes()
        middle = whole.index(make_posterior().draws["w"].tobytes()) + 5
        if kind == "npy":
            with path.open("wb") as file:
                np.save(file, np.zeros(3))
        elif kind == "other npz":
            np.savez(path, x=np.zeros(3))
        elif kind == "later version":
            np.savez(path, json=np.array(json.dumps({"format": "phalanx.posterior", "version": 99})))
        else:
            flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
            contents = {"text": b"hello", "empty": b"", "truncated": whole[:middle], "flipped": flipped}
            path.write_bytes(contents[kind])
        message = f"Posterior.load: {path} is not a posterior saved by Phalanx, or is damaged: "
        with pytest.raises(ValueError, match=f"^{re.escape(message)}") as caught:
            Posterior.load(path)
        assert "pickle" not in str(caught.value)


def test_the_report_is_written(tmp_path):
    path = make_posterior().report(tmp_path / "report.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


class TestWhereFilesGo:
    @pytest.mark.parametrize("name", ["pp.csv", "pp.pkl", "pp.h5", "pp.json", "pp.v2", "pp.nc.gz"])
    def test_another_ending_is_refused(self, tmp_path, name):
        path = tmp_path / name
        with pytest.raises(ValueError, match=f"^save: '{re.escape(str(path))}' ends in .* which is not a format.*npz"):
            make_posterior(2, 5).save(path)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("name", ["run.npz", "run.nc", "run"])
    def test_folders_are_not_made(self, tmp_path, name):
        missing = str(tmp_path / "missing")
        with pytest.raises(FileNotFoundError, match=f"^save: .* there is no folder '{re.escape(missing)}'. Make it"):
            make_posterior(2, 5).save(tmp_path / "missing" / name)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("name", ["pp.nc", "PP.NC"])
    def test_netcdf_has_draws_and_statistics(self, tmp_path, name):
        posterior = with_divergences(make_posterior(2, 5), 1)
        posterior = replace(posterior, record=replace(posterior.record, labels={"w": (("a", "b"), None)}))
        path = posterior.save(tmp_path / name)
        assert path == tmp_path / name and [entry.name for entry in tmp_path.iterdir()] == [name]
        read: Any = arviz.from_netcdf(path)
        np.testing.assert_array_equal(read.posterior["w"], posterior.draws["w"])
        assert read.posterior["w_dim_0"].values.tolist() == ["a", "b"]
        assert read.sample_stats["diverging"].dtype == bool and int(read.sample_stats["diverging"].sum()) == 1
        read.close()
        with pytest.raises(ValueError, match=r"^Posterior.load: .* is netCDF, .*read it with arviz.from_netcdf"):
            Posterior.load(path)

    @pytest.mark.parametrize("module, words", [("arviz", 'pip install "arviz>='), ("h5netcdf", "pip install h5netcdf")])
    def test_netcdf_says_what_it_needs(self, tmp_path, monkeypatch, module, words):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=re.escape(words)):
            make_posterior(2, 5).save(tmp_path / "pp.nc")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("write, example", [("report", "report.html"), ("save", "run.npz")])
    def test_a_folder_is_no_file(self, tmp_path, write, example):
        message = f"{write}: {str(tmp_path)!r} is a folder; name a file in it, such as {str(tmp_path / example)!r}."
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            getattr(make_posterior(2, 5), write)(tmp_path)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("write", ["report", "save"])
    def test_nothing_lies_below_a_file(self, tmp_path, write):
        file = tmp_path / "notes.txt"
        file.write_text("mine")
        for below in (file / "run", file / "deep" / "run"):
            with pytest.raises(ValueError, match=f"^{write}: .* cannot be written: .* is a file, no folder"):
                getattr(make_posterior(2, 5), write)(below)
        assert file.read_text() == "mine"


@pytest.mark.parametrize("name", ["chain", "draw", "w_dim_0"])
def test_arviz_has_dimensions_of_these_names(name):
    arrays = {"w": np.zeros((2, 5, 3)), name: np.zeros((2, 5))}
    with pytest.raises(ValueError, match=f"^to_arviz: the variable '{name}' has the name of a dimension of ArviZ"):
        make_posterior(2, 5, variables=arrays).to_arviz()
    assert name in make_posterior(2, 5, variables=arrays).summary().index


def test_arrays_that_were_deleted_are_named():
    x = jnp.arange(3.0)
    x.delete()
    with pytest.raises(ValueError, match=r"^data: batch\['x'\] has been deleted"):
        phx.mcmc(lambda batch: phx.sample("m", dist.Normal(0.0, 1.0)), {"batch": {"x": x}}, progress=False)


def test_names_of_columns_and_levels_stay_with_the_posterior(tmp_path):
    def model(x, county):
        b, w = (phx.sample(name, dist.Normal(0.0, 1.0).expand([2])) for name in ("b", "w"))
        phx.sample("y", dist.Normal(x @ b + w[county], 1.0), obs=np.ones(4))

    data = {
        "x": pd.DataFrame({"age": [1.0, 2, 3, 4], "floor": [0.0, 1, 0, 1]}),
        "county": pd.Series(pd.Categorical(["ST LOUIS", "COOK", "COOK", "ST LOUIS"])),
    }
    sizes = {"num_chains": 2, "num_warmup": 5, "num_samples": 5, "progress": False}
    sampler = phx.compile(model, data, kernel=phx.rwmh(0.5), **compiled_in(sizes))
    posterior = sampler.run(**of_a_run(sizes))
    rows = ["b[age]", "b[floor]", "w[COOK]", "w[ST LOUIS]"]
    assert list(posterior.summary().index[1:]) == rows
    loaded = phx.Posterior.load(posterior.save(tmp_path / "run.npz"))
    assert loaded.record == posterior.record and list(loaded.summary().index[1:]) == rows
    assert loaded.to_arviz().posterior["b"].coords["b_dim_0"].values.tolist() == ["age", "floor"]
    renamed = data | {"x": data["x"].rename(columns={"age": "height"})}
    with pytest.raises(ValueError, match="data: x has no column 'age', which the run's data had; it has 'height', 'fl"):
        sampler.run(data=renamed)
    other = phx.mcmc(model, renamed, kernel=phx.rwmh(0.5), **sizes)
    assert other.timing.compilations == 0  # other names need no other program
    assert list(other.summary().index[1:3]) == ["b[height]", "b[floor]"]
    assert list(sampler.run(**of_a_run(sizes)).summary().index[1:]) == rows
