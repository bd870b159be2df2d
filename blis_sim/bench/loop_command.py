"""`blis loop`: put load on a server, record it, replay the recording and grade the replay."""

from dataclasses import dataclass

from blis_sim.options import OptionError, option
from blis_sim.options.latency_targets import checks_of, percentiles_ms
from blis_sim.options.printing import BLIS, FORMATS, format_option
from observe.command import with_default_load
from observe.options import ObserveOptions

PROGRAM = "blis loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions(ObserveOptions):
    """The settings of `blis loop`: those of the load, and what is judged."""

    fail_over: str = option(
        "",
        "Limits on MAPE in percent, such as ttft=15,e2e=5; the exit code is 3 when one is exceeded.",
        metavar="METRIC=PERCENT,...",
        heading="Judging the replay",
    )
    format: str = format_option(formats=(*FORMATS, BLIS))
    replay_flag: tuple[str, ...] = option((), "A word of the replay's command line.", hidden=True, repeatable=True)

    def __post_init__(self) -> None:
        from calibrate.compare import parse_limits

        ObserveOptions.__post_init__(self)
        _ = parse_limits(self.fail_over)
        for flag, is_given in (("--find-knee", self.find_knee), ("--until-within", self.until_within is not None)):
            if is_given:
                raise OptionError(f"{flag} makes several recordings, and {PROGRAM} replays one; use blis observe")
        if self.proxying.proxy:
            raise OptionError(f"--proxy records the load of others, and {PROGRAM} sends its own; use blis observe")


def rewritten(arguments: list[str]) -> list[str]:
    """Return a command line with a default load, and the flags that only `blis replay` has kept for the replay."""
    from calibrate.own_replay import split_arguments

    own, flags = split_arguments(LoopOptions, arguments)
    loaded = with_default_load(PROGRAM, LoopOptions, own, is_for_replay=True)
    return [*(word for flag in flags for word in ("--replay-flag", flag)), *loaded]


def run(options: LoopOptions) -> int:
    """Observe, replay and compare; the comparison is printed on stdout, all else on stderr.

    Returns the exit code of the first command that failed, 1 where a target for a percentile was missed.
    """
    from calibrate.command import CalibrateOptions
    from calibrate.command import run as calibrate
    from observe.command import measured
    from observe.errors import print_message

    code, figures = measured(options)
    if code:
        return code
    checks = checks_of(options.targets.targets_ms, percentiles_ms(figures))
    for each in checks:
        print_message(each.line)
    paths = options.paths
    graded = calibrate(
        CalibrateOptions(
            trace=str(paths.header),
            trace_data=str(paths.data),
            itl_data=None if paths.itl is None else str(paths.itl),
            replay_flag=options.replay_flag,
            fail_over=options.fail_over,
            format=options.format,
            json=options.json,
        )
    )
    return graded or int(not all(each.is_met for each in checks))
