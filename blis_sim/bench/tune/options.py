"""The settings of `blis bench tune`, beside those of the simulation that it repeats."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from blis_sim.bench.points.options import processes_option, simulation_option, vary_option
from blis_sim.bench.tables import check_table
from blis_sim.options import OptionError, check_options, option
from observe.extras import check_plot

LIMITED = ("ttft", "itl", "e2e")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """One search. Raises OptionError for settings that do not fit together."""

    simulation: tuple[str, ...] = simulation_option(
        "Flags of blis run: the model, the workload, engine settings; they may stand anywhere."
    )
    vary: tuple[str, ...] = vary_option(
        "An engine setting and the values to try, such as max_num_seqs=128,256. May be given again: all combinations"
        " are tried, each at the highest rate that it can keep up within the limits."
    )
    config: str | None = option(
        None, "YAML file with the keys settings and vary; flags come before it.", metavar="FILE"
    )
    limit: tuple[str, ...] = option(
        (), f"Limits in milliseconds, of {', '.join(LIMITED)}.", metavar="NAME:MS,...", flags=("--limit", "--limits")
    )
    percentile: str = option("99", "Which percentile of the latencies the limits hold for.", choices=("90", "95", "99"))
    min_attainment: float | None = option(
        None, "Least share of requests that meet --slo-ttft, --slo-itl and --slo-e2e.", above=0, at_most=1
    )
    tolerance: float = option(0.02, "How exactly the rate is found, as a share of it.", at_least=0.001, at_most=0.5)
    output: str | None = option(
        None,
        "Write every simulation of the search here (CSV).",
        flags=("--output", "-o"),
        metavar="FILE",
        writes={"": "points"},
    )
    plot: str | None = option(
        None,
        "Draw throughput against p99 TTFT and ITL (.png, .svg or .pdf; needs matplotlib).",
        metavar="FILE",
        writes={"": "picture"},
    )
    processes: int | None = processes_option()

    def __post_init__(self) -> None:
        check_options(self)
        check_plot("--plot", self.plot)
        _ = self.limits_ms  # making it checks it
        check_table("--output", self.output)

    @property
    def limits_ms(self) -> Mapping[str, float]:
        """Limits by the figure of a row that they hold for. Raises OptionError."""
        limits = {}
        for pair in self.limit:
            name, _, text = pair.partition(":")
            try:
                limit_ms = float(text)
            except ValueError:
                limit_ms = 0.0
            if name not in LIMITED or not isfinite(limit_ms) or limit_ms <= 0:
                raise OptionError(
                    f"--limit must be NAME:MILLISECONDS with a name of {', '.join(LIMITED)}, got {pair!r}"
                )
            if f"{name}_p{self.percentile}_ms" in limits:
                raise OptionError(f"--limit names {name} twice")
            limits[f"{name}_p{self.percentile}_ms"] = limit_ms
        return limits
