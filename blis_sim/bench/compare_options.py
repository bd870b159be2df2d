"""The settings of `blis compare`."""

from dataclasses import dataclass

from blis_sim.engine.engine_defaults import ADAPTIVE_BLOCK_TOKENS
from blis_sim.installation import check_answer
from blis_sim.options import OptionError, check_outputs, option, section, written_file
from blis_sim.options.custom_metrics import custom_metrics, metric_option
from blis_sim.options.latency_targets import LatencyTargets
from blis_sim.options.option import LEAST_RATE, MOST_RATE
from blis_sim.options.printing import format_option, json_option
from replay.report_options import goodput_option, min_attainment_option
from traces import SloTargets, slo_targets
from traces.workload.spec import SCENARIO_NAMES

DEFAULT_DURATION_S, DEFAULT_SEED = 20.0, 42
_MOST_SEEDS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """The settings of `blis compare`: requests, configurations and outputs."""

    sides: tuple[str, ...] = option(
        (),
        "Configurations to compare: the flags of `blis run` that describe engines and clusters, each set after a --, "
        "as in `blis compare -- --num-instances 4 -- --num-instances 4 --routing-policy weighted`.",
        positional=True,
        metavar="-- FLAGS",
    )
    baseline: str = option(
        "",
        "fifo compares the published adaptive scheduler with first come, first served, round robin, on --workers "
        "workers; flags after a single -- change both.",
        choices=("", "fifo"),
        heading="Configurations",
    )
    compare_fifo: bool = option(False, "Do as with --baseline fifo.")
    workers: int = option(4, "Workers of --baseline.", at_least=1, at_most=1000)
    kv_slots: int | None = option(
        None,
        "Tokens of prompts that each worker of --baseline keeps, in blocks of "
        f"{ADAPTIVE_BLOCK_TOKENS} (default: 2048).",
        at_least=ADAPTIVE_BLOCK_TOKENS,
        at_most=1_000_000_000,
    )
    batch_size: int | None = option(
        None, "Requests that run together on each worker of --baseline (default: 32).", at_least=1, at_most=1_000_000
    )
    names: str = option("", "Names of the configurations in the order in which they are given.", metavar="NAME,...")
    workload: str = option(
        "steady",
        "Scenario that the requests come from. steady has arrivals at --rate. burst has 5 requests per second with a "
        "burst of 40 times as many for five seconds. mixed-priority has several priorities, with 80 requests per "
        "second for ten seconds.",
        flags=("--workload", "--scenario"),
        choices=SCENARIO_NAMES,
        heading="Requests",
    )
    rate: float | None = option(
        None,
        "Requests per second: of --workload outside of bursts, or those to which --workload-spec is scaled (default: "
        "30, 5 for burst, or the spec's).",
        flags=("--rate", "--rps"),
        above=0,
        at_least=LEAST_RATE,
        at_most=MOST_RATE,
    )
    duration: float = option(
        DEFAULT_DURATION_S, "Seconds for which --workload sends requests.", above=0, at_most=1_000_000, metavar="S"
    )
    workload_spec: str | None = option(
        None, "Workload spec (YAML) that the requests come from, in place of --workload.", metavar="FILE"
    )
    seed: int | None = option(
        None, f"Seed of the first run (default: {DEFAULT_SEED}, or the spec's); further runs count up.", at_least=0
    )
    repeat: int = option(
        1,
        "Runs with different seeds. With two or more, differences to the first configuration have 95 % intervals, from "
        "pairs with the same requests.",
        at_least=1,
        at_most=_MOST_SEEDS,
    )
    targets: LatencyTargets = section(LatencyTargets)
    goodput: tuple[str, ...] = goodput_option()
    min_attainment: float = min_attainment_option()
    metric: tuple[str, ...] = metric_option("a finished run")
    format: str = format_option(heading="Output")
    json: bool = json_option()
    picture: str | None = written_file(
        "picture", "Draw the first run here (.png, .svg or .pdf; needs matplotlib).", flags=("--plot", "--picture")
    )
    html: str | None = written_file("comparison page", "Write a page with the table and the picture here.")
    live: bool = option(False, "Show the first run in a table that refreshes while simulated time passes.")
    speed: float = option(
        0.0, "With --live, simulated seconds per second, such as 1; 0 as fast as the terminal.", at_least=0
    )

    def __post_init__(self) -> None:
        check_answer(self)
        _ = custom_metrics(self.metric), self.targets.targets_ms, self.slo_targets
        check_outputs(self)
        if self.compare_fifo:
            object.__setattr__(self, "baseline", "fifo")
        if not self.baseline and len(self.sides) < 2:
            raise OptionError(
                "give two or more configurations, as in `blis compare -- FLAGS -- FLAGS`, or --baseline fifo"
            )
        for name in ("kv_slots", "batch_size"):
            if getattr(self, name) is not None and not self.baseline:
                raise OptionError(f"--{name.replace('_', '-')} needs --baseline")
        if self.baseline and len(self.sides) > 1:
            raise OptionError("--baseline takes one set of flags at most, for both configurations")
        if self.speed and not self.live:
            raise OptionError("--speed needs --live")

    @property
    def slo_targets(self) -> dict[str, SloTargets]:
        """The targets of single requests by SLO class. Raises OptionError."""
        return slo_targets(self.goodput)
