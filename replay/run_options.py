"""The settings of `blis run`, and what follows from them."""

from dataclasses import dataclass

from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.units import LONGEST_DELAY_US
from blis_sim.options import OptionError, check_options, option, options_of, section
from blis_sim.options.limits import LEAST_RATE, MOST_RATE, MOST_REQUESTS, MOST_TOKENS
from replay.report_options import ReportOptions
from traces.workload import DISTRIBUTION, PRESETS, Lengths, Preset
from traces.workload.checks import problem_of_cv
from traces.workload.scenario_spec import SCENARIO_NAMES
from traces.workload.spec import PROCESSES, Arrival

DEFAULT_RATE = 1.0
DEFAULT_NUM_REQUESTS = 100
DEFAULT_TIMEOUT_S = 300
DEFAULT_SEED = 42

_LENGTH_FLAGS = tuple(
    f"{side}_tokens{part}" for side in ("prompt", "output") for part in ("", "_stdev", "_min", "_max")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The settings of `blis run`: which workload, through which engine, to which files."""

    cluster: ClusterOptions = section(ClusterOptions)
    report: ReportOptions = section(ReportOptions)
    workload_spec: str | None = option(
        None, "Workload spec (YAML) to generate requests from.", metavar="FILE", heading="Workload"
    )
    workload: str | None = option(
        None,
        "Kind of workload without a spec: a preset, or the lengths of --prompt-tokens and --output-tokens "
        f"(default: {DISTRIBUTION}). steady, burst and mixed-priority are scenarios of 20 seconds with priorities and "
        "deadlines.",
        choices=(DISTRIBUTION, *PRESETS, *SCENARIO_NAMES),
    )
    rate: float | None = option(
        None,
        f"Requests per second of a workload without a spec (default: {DEFAULT_RATE:g}).",
        above=0,
        at_least=LEAST_RATE,
        at_most=MOST_RATE,
    )
    arrival: str = option("constant", "Gaps between requests at --rate.", choices=PROCESSES)
    arrival_cv: float | None = option(
        None, "Coefficient of variation of gamma or weibull gaps (default: 1).", above=0, metavar="CV"
    )
    concurrency: int = option(
        0,
        "Send by this many users instead of at a rate; each waits for the reply before it sends again.",
        at_least=0,
        at_most=MOST_REQUESTS,
    )
    think_time_ms: int = option(
        0, "Pause of a user between a reply and the next request.", at_least=0, at_most=LONGEST_DELAY_US // 1000
    )
    num_requests: int | None = option(
        None,
        "How many requests to generate, 0 for no limit but the horizon. Closed-loop conversations that have begun by "
        f"then run to their end (default: the spec's, without one {DEFAULT_NUM_REQUESTS}).",
        at_least=0,
        at_most=MOST_REQUESTS,
    )
    prefix_tokens: int = option(
        0, "Tokens of a prefix that all prompts share, beside --prompt-tokens.", at_least=0, at_most=MOST_TOKENS
    )
    prompt_tokens: int = option(512, "Mean prompt length.", at_most=MOST_TOKENS)
    prompt_tokens_stdev: int = option(256, "Standard deviation of prompt lengths.", at_most=MOST_TOKENS)
    prompt_tokens_min: int = option(2, "Shortest prompt.", at_least=1)
    prompt_tokens_max: int = option(7000, "Longest prompt.", at_least=1, at_most=MOST_TOKENS)
    output_tokens: int = option(512, "Mean output length.", at_most=MOST_TOKENS)
    output_tokens_stdev: int = option(256, "Standard deviation of output lengths.", at_most=MOST_TOKENS)
    output_tokens_min: int = option(2, "Shortest output.", at_least=1)
    output_tokens_max: int = option(7000, "Longest output.", at_least=1, at_most=MOST_TOKENS)
    timeout: int | None = option(
        None,
        "Seconds after which a request is given up, negative for never (default: what the spec says of its clients, "
        f"without a spec {DEFAULT_TIMEOUT_S}).",
        at_most=LONGEST_DELAY_US // 1_000_000,
        metavar="SECONDS",
    )
    seed: int | None = option(None, f"Seed of arrivals and lengths (default: the spec's, without one {DEFAULT_SEED}).")
    horizon: int | None = option(
        None,
        "Stop the simulated clock here, in microseconds; nothing arrives later (default: run until drained).",
        above=0,
        metavar="US",
    )

    def __post_init__(self) -> None:
        check_options(self)
        self.report.check_files(self)
        if self.timeout == 0:
            raise OptionError("--timeout must be above 0 seconds, or negative for never, got 0")
        self._check_users()
        self._check_arrival()
        if self.workload_spec is None and self.num_requests == 0 and self.horizon is None:
            raise OptionError("--num-requests 0 needs --horizon, or the workload never ends")
        _ = self.lengths  # making it checks it
        if self.cluster.gateway.max_concurrency and not self.cluster.gateway.counts_requests_in_flight:
            raise OptionError(
                "--max-concurrency needs --flow-control with --saturation-detector concurrency; closed-loop users "
                "are --concurrency"
            )

    @property
    def lengths(self) -> Preset:
        """How long prompts and outputs are without a spec. Raises OptionError."""
        preset = PRESETS.get(self.workload or DISTRIBUTION)
        if preset is not None:
            return preset
        return Preset(prompt=self._lengths("prompt"), output=self._lengths("output"))

    @property
    def timeout_us(self) -> int | None:
        """When requests are given up, 0 is never; None leaves it to the spec."""
        if self.timeout is None:
            return DEFAULT_TIMEOUT_S * 1_000_000 if self.workload_spec is None else None
        return max(0, self.timeout) * 1_000_000

    @property
    def flags_without_effect(self) -> list[str]:
        """Flags that repeat a setting of the workload."""
        if self.workload_spec is not None:
            unused = ("workload", "rate", "arrival", "arrival_cv", "prefix_tokens", *_LENGTH_FLAGS)
        else:
            unused = _LENGTH_FLAGS if self.workload in PRESETS else ()
            unused += ("arrival", "arrival_cv") if self.concurrency else ()
        settings = {setting.name: setting for setting in options_of(RunOptions)}
        return [settings[name].label for name in unused if getattr(self, name) != settings[name].default]

    def _lengths(self, side: str) -> Lengths:
        mean, stdev, least, most = (getattr(self, f"{side}_tokens{part}") for part in ("", "_stdev", "_min", "_max"))
        flag = f"--{side}-tokens"
        if least > most:
            raise OptionError(f"{flag}-min must be at most {flag}-max ({most}), got {least}")
        if not least <= mean <= most:
            raise OptionError(f"{flag} must be between {flag}-min ({least}) and {flag}-max ({most}), got {mean}")
        if stdev and not least <= stdev <= most:
            raise OptionError(
                f"{flag}-stdev must be 0, or between {flag}-min ({least}) and {flag}-max ({most}), got {stdev}"
            )
        return Lengths(mean=mean, stdev=stdev, least=least, most=most)

    def _check_users(self) -> None:
        if not self.concurrency:
            if self.think_time_ms:
                raise OptionError("--think-time-ms needs --concurrency")
            return
        for flag, value in (("--rate", self.rate), ("--workload-spec", self.workload_spec)):
            if value is not None:
                raise OptionError(f"--concurrency and {flag} exclude each other, give one of them")
        if not self.num_requests and self.horizon is None:
            raise OptionError("--concurrency needs --num-requests or --horizon, or the workload never ends")

    def _check_arrival(self) -> None:
        if self.arrival_cv is None:
            return
        if self.arrival not in ("gamma", "weibull"):
            raise OptionError(f"--arrival-cv needs --arrival gamma or weibull, got {self.arrival}")
        problem = problem_of_cv(Arrival(process=self.arrival, cv=self.arrival_cv))
        if problem is not None:
            raise OptionError(f"--arrival-cv must be {problem}, got {self.arrival_cv:g}")
