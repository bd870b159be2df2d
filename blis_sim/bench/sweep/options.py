"""The settings of `blis sweep`, beside those of the simulation that it repeats."""

from dataclasses import dataclass

from blis_sim.bench.points.options import processes_option, simulation_option, vary_option
from blis_sim.bench.tables import check_table
from blis_sim.options import OptionError, check_options, option
from observe.extras import check_plot, check_ray


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """One sweep. Raises OptionError for settings that do not fit together."""

    simulation: tuple[str, ...] = simulation_option(
        "The command to repeat, run or replay (default: run), and its flags, which may stand anywhere."
    )
    vary: tuple[str, ...] = vary_option(
        "A setting of that command and its values, such as rate=1,2,4 or tensor_parallel_size=1,2; values with commas"
        " as a JSON list. May be given again: all combinations are computed."
    )
    config: str | None = option(
        None, "YAML file with the keys command, settings and vary; flags come before it.", metavar="FILE"
    )
    sample: int | None = option(None, "Compute so many combinations, chosen by chance, instead of all.", at_least=1)
    sample_seed: int = option(0, "Seed of that choice.")
    output: str = option(
        "sweep.csv",
        "Write a row per point here; points that it has are not computed again.",
        flags=("--output", "-o"),
        metavar="FILE",
        writes={"": "points"},
    )
    overwrite: bool = option(False, "Begin anew where --output exists.")
    parquet: str | None = option(
        None, "Write the rows here too (Parquet; needs pyarrow).", metavar="FILE", writes={"": "parquet"}
    )
    plot: str | None = option(
        None,
        "Draw throughput against p99 TTFT, p99 ITL and cost (.png, .svg or .pdf; needs matplotlib).",
        metavar="FILE",
        writes={"": "picture"},
    )
    gpu_cost_per_hour: float | None = option(None, "Dollars per GPU-hour. Adds costs.", above=0)
    processes: int | None = processes_option()
    ray: bool = option(False, "Compute on a Ray cluster instead (needs ray): the one of --ray-address, else one here.")
    ray_address: str | None = option(None, "Address of the cluster, such as auto or ray://host:10001.")

    def __post_init__(self) -> None:
        check_options(self)
        check_plot("--plot", self.plot)
        check_table("--output", self.output)
        if self.ray:
            if self.processes is not None:
                raise OptionError("--processes and --ray exclude each other: a Ray cluster has its own")
            check_ray()
        elif self.ray_address is not None:
            raise OptionError("--ray-address needs --ray")
        if self.sample_seed and self.sample is None:
            raise OptionError("--sample-seed needs --sample")
        if self.parquet is not None:
            check_parquet()


def check_parquet() -> None:
    """Raise OptionError where Parquet files cannot be written."""
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise OptionError("--parquet needs pyarrow: pip install 'blis-mockserve[parquet]'")
