"""`phx.mcmc`, `phx.stream` and `phx.compile`: from a model and data to a posterior."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

from jax.sharding import Mesh

from phalanx.density.given_names import Coords, Dims
from phalanx.inputs.dataframe_input import UserData
from phalanx.kernels.protocol.kernel import Kernel
from phalanx.language.tracing import Program
from phalanx.posterior.posterior import Posterior
from phalanx.reducers.reducer import Reduce, Reducer
from phalanx.run.arguments import check_arguments
from phalanx.run.build import sampler_of
from phalanx.run.checks import data_in_one_dict
from phalanx.run.options import RunOptions, SamplerOptions
from phalanx.run.phases.streaming import StreamBlock
from phalanx.run.progress.report import RunReport
from phalanx.run.sampler import Sampler
from phalanx.run.until import Until
from phalanx.store.policy import SavePolicy


@data_in_one_dict
def mcmc(
    model: Program,
    data: UserData | None = None,
    *,
    kernel: Kernel | None = None,
    num_chains: int = 4,
    num_warmup: int | None = None,
    num_samples: int = 1000,
    seed: int = 0,
    mesh: Mesh | None = None,
    init: Any = None,
    tuning: Posterior | None = None,
    keep: str | Sequence[str] | None = None,
    thin: int = 1,
    dims: Dims | None = None,
    coords: Coords | None = None,
    reducers: Mapping[str, Reducer | Reduce] | None = None,
    until: Until | None = None,
    matmul_precision: str = "float32",
    missing: str | None = None,
    each: str | Mapping[str, int] | None = None,
    on_block: Callable[[RunReport], object] | None = None,
    checkpoint: SavePolicy | str | PathLike[str] | None = None,
    store: str | PathLike[str] | None = None,
    save_warmup: bool = False,
    progress: bool = True,
) -> Posterior:
    """Draw from the posterior of a model given data, with many chains on all devices.

    Args:
        model: a program whose keyword arguments are the data.
        data: the keyword arguments, in a dict or as the columns of a table: arrays, lists, series, tables and tensors
            of pandas, Polars, xarray and PyTorch. Arrays placed with `phx.shard` keep their placement, others are
            replicated. Whole numbers and flags are constants of the compiled program, and may be sizes.
        kernel: the Markov kernel, `phx.nuts()` by default.
        num_chains: chains in all, sharded evenly over the mesh's `chain` axis.
        num_warmup: iterations per chain in which step size and metric are tuned from all chains. None chooses by the
            number of chains: 1,000 for up to 4 chains, 500 for 8, 300 for 14 or more.
        num_samples: iterations per chain after warm-up.
        seed: a whole number. The same seed gives the same chains: bit for bit on the same number of devices and lanes,
            up to rounding on others.
        mesh: the devices, from `phx.make_mesh`. By default the devices of the data, or as many as the greatest
            divisor of both chains and devices; on a CPU machine each core is a device unless JAX has started.
        init: initial values of the chains: a dict of values by variable, on the scale of the model, each of the
            variable's shape or with a leading dimension of chains; a posterior, of which each chain gets its last draw
            (with another number of chains, evenly chosen draws); a fit, of which each chain gets a draw; a function of
            a key that returns a dict for one chain; or "prior", draws from the prior. Variables without a value, by
            default all, start uniform on (-2, 2) in every unconstrained coordinate. With
            `phx.superchains(count, init)` the chains of a group share their start. Changing `init` does not recompile.
        tuning: a posterior of the same variables and kernel, whose step size and metric the chains use from the start.
            Warm-up tunes them further; `num_warmup=0` keeps them.
        keep: names of the variables to store, or one name. None means all latent variables and, except for kernels of
            minibatches, the deterministic values of at most 10,000 elements. With an empty list only reducers receive
            the draws, and memory does not grow with their number.
        thin: store every `thin`-th draw.
        dims: names of the axes of variables and data, as in `{"weights": ["feature"]}`; None for an axis without a
            name. Axes that are not named have the names of NumPyro's plates, and those that data bring: see
            docs/names.md.
        coords: names of the entries along dimensions, as in `{"feature": ["age", "income"]}`. Tables, reports, stores
            and containers of draws have them. Changing `dims` or `coords` does not recompile.
        reducers: statistics to compute while sampling, by a name of your choice: reducers of `phx.reducers`, applied
            to every variable, or `phx.reduce(fn, reducer)` of any function of a draw.
        until: a condition on which to stop before `num_samples`, from `phx.until`.
        matmul_precision: precision of matrix products: "float32", "tensorfloat32" or "bfloat16".
        missing: None refuses missing entries: NaN, masked entries, None, and NA or nulls of tables. "impute" makes the
            missing entries of an observed variable `y` latent: `y_missing` in the draws, with an element for each, in
            the order of `y`. Missing entries of a discrete variable are summed out instead. See docs/missing.md.
        each: the column with the name of each row's data set, or the axes of arguments along which there is an entry
            for each data set, as in `{"y": 0}`: a run for many data sets, see docs/many-data-sets.md.
        on_block: a function called after each block with a report: phase, iterations done and in total, chains,
            acceptance rate, divergences. An exception from it ends the run.
        checkpoint: a folder, or `phx.checkpoint(folder, ...)` to choose when to save and what to keep. The run is saved
            there every ten seconds, at its end, and after Ctrl-C, SIGTERM or an error; the same call continues it, in
            another process too, and ends with the same draws. On another number of devices they are the same but for
            rounding.
        store: a folder, such as `run.zarr`. Draws and statistics are written there block by block, in Zarr 3 and in
            ArviZ's layout, and memory does not grow with their number. `phx.open` reads them, also during the run. A
            store is never overwritten; with a checkpoint the same call continues it.
        save_warmup: keep the draws of warm-up, otherwise discarded: `posterior.warmup_draws`, `warmup_stats`.
        progress: show progress.

    Returns:
        The posterior: draws of shape (chain, draw, ...), statistics, timing; with `each=`, `phx.Posteriors`. In several
        processes, the draws are those of the chains on the process's own devices; see `phx.Posterior`.

    Raises:
        TypeError: when data is not a dict or does not fit the model, or kernel is not a kernel.
        ValueError: when sizes do not fit each other, the mesh or the memory; when `dims` or `coords` do not fit the
            model, or two rows of a table would have one name; when a variable contradicts the sharding of the data;
            when a number does not fit into 32 bits; when an index in the data is out of range; when an initial value
            does not fit its variable; or when the log density is not finite at the start. The message says where.

    Example:
        >>> import numpy as np, numpyro.distributions as dist, phalanx as phx
        >>> def model(y):
        ...     mean = phx.sample("mean", dist.Normal(0.0, 10.0))
        ...     phx.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> posterior = phx.mcmc(model, {"y": np.arange(3.0)}, num_warmup=100, num_samples=100, progress=False)
        >>> posterior.draws["mean"].shape
        (4, 100)
    """
    check_arguments(seed=seed)  # before compiling
    options = SamplerOptions.of(kernel, num_chains, mesh, keep, dims, coords, reducers, missing, matmul_precision)
    run = RunOptions(
        num_warmup, num_samples, thin, until, init, tuning, on_block, checkpoint, store, save_warmup, progress
    )
    if each is not None:
        from phalanx.run.each.run_each import run_each

        posteriors: Any = run_each(options, run, model, data, each, seed)
        return posteriors
    return sampler_of(options, run, model, data).run(seed, **vars(run))


@data_in_one_dict
def stream(
    model: Program,
    data: UserData | None = None,
    *,
    kernel: Kernel | None = None,
    num_chains: int = 4,
    num_warmup: int | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    mesh: Mesh | None = None,
    init: Any = None,
    tuning: Posterior | None = None,
    keep: str | Sequence[str] | None = None,
    thin: int = 1,
    dims: Dims | None = None,
    coords: Coords | None = None,
    reducers: Mapping[str, Reducer | Reduce] | None = None,
    matmul_precision: str = "float32",
    missing: str | None = None,
    on_block: Callable[[RunReport], object] | None = None,
    checkpoint: SavePolicy | str | PathLike[str] | None = None,
    progress: bool = True,
) -> Generator[StreamBlock, None, None]:
    """Yield draws from the posterior block by block, in constant memory.

    The arguments are those of `mcmc` without `until`; `num_samples=None` draws until you leave the loop. With `keep=[]`
    only the results of reducers are yielded. Ctrl-C ends the block under way early, and then the stream.

    With `checkpoint=` the same call in a new process continues; draws and results of reducers are bit for bit those of
    one stream on as many devices. A block counts as received once your loop asks for the next one. Each block is
    yielded at least once: after a process was killed, the blocks since the last save, and after Ctrl-C, SIGTERM, an
    error or a `break` in your loop the block that was not received, are yielded again with the same draws.
    `block.first`, the number of draws of each chain in earlier blocks, is the place at which to write a block, so that
    one that is yielded again overwrites itself. In each of several processes a block has the draws of the chains of its
    own devices, `block.chains`.

    Yields:
        A dict for each block: the block's draws `(chain, draw, ...)` of each stored variable, and the result of each
        reducer over all draws so far; with the attributes `first` and `chains`.

    Raises:
        TypeError, ValueError: as `mcmc`, at the first block.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> for block in phx.stream(model, keep=[], reducers={"m": phx.reducers.moments()}, progress=False):
        ...     if block["m"]["x"].count > 5000:
        ...         break
        >>> bool(abs(block["m"]["x"].mean) < 0.1)
        True
    """
    check_arguments(seed=seed, thin=thin)
    options = SamplerOptions.of(kernel, num_chains, mesh, keep, dims, coords, reducers, missing, matmul_precision)
    run = RunOptions(num_warmup, thin, thin, None, init, tuning, on_block, checkpoint, progress=progress)
    if num_samples is not None:
        replace(run, num_samples=num_samples).checked(options.num_chains, keep)
    sampler = sampler_of(options, run, model, data, "phx.stream")
    if clash := set(reducers or {}) & set(sampler.executables.blocks.names):
        raise ValueError(f"stream: {', '.join(map(repr, sorted(clash)))} names both a variable and a reducer.")
    yield from sampler.stream(seed, None if num_samples is None else int(num_samples), run)


@data_in_one_dict
def compile(
    model: Program,
    data: UserData | None = None,
    *,
    kernel: Kernel | None = None,
    num_chains: int = 4,
    mesh: Mesh | None = None,
    keep: str | Sequence[str] | None = None,
    dims: Dims | None = None,
    coords: Coords | None = None,
    reducers: Mapping[str, Reducer | Reduce] | None = None,
    missing: str | None = None,
    matmul_precision: str = "float32",
) -> Sampler:
    """Compile a sampler, so that `sampler.run(seed, data, num_warmup=..., num_samples=...)` compiles nothing.

    The compiled programs depend on these arguments of `mcmc`; the others belong to `sampler.run`. Global
    variables that the model uses are read here, once; `mcmc` reads them in every call.

    Example:
        >>> import numpyro.distributions as dist, phalanx as phx
        >>> model = lambda: phx.sample("x", dist.Normal(0.0, 1.0))
        >>> sampler = phx.compile(model)
        >>> sampler.run(seed=1, num_warmup=10, num_samples=10, progress=False).draws["x"].shape
        (4, 10)
    """
    options = SamplerOptions.of(kernel, num_chains, mesh, keep, dims, coords, reducers, missing, matmul_precision)
    sampler = sampler_of(options, RunOptions(), model, data, "phx.compile")
    sampler.plan()  # raises here rather than in the run if memory does not suffice
    return sampler
