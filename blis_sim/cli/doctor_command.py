"""`blis doctor`: what this host has, and whether it can hold a load."""

import json
import sys
from dataclasses import asdict, dataclass

from blis_sim.cli.host import FAILED, OK, WARNING, Finding
from blis_sim.options import OptionError, check_options, option
from blis_sim.options.limits import LEAST_RATE, MOST_REQUESTS

_MARKS = {OK: "ok", WARNING: "warning", FAILED: "FAILED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """The load that the host is to hold, if any. Raises OptionError."""

    rate: float | None = option(
        None,
        "Try whether a server and a load generator on this host hold so many requests per second.",
        above=0,
        at_least=LEAST_RATE,
        at_most=100_000,
        heading="Load to try",
    )
    streams: int | None = option(
        None,
        "Try whether they hold so many streams at once (default: those of --rate for two seconds each).",
        at_least=1,
        at_most=MOST_REQUESTS,
    )
    itl_ms: float = option(20.0, "Time between the tokens of a stream.", above=0, at_most=10_000)
    duration: float = option(4.0, "Seconds to send for.", above=0, at_most=600)
    json: bool = option(False, "Print one JSON object.", heading="Answer")

    def __post_init__(self) -> None:
        check_options(self)
        if self.tries_load and self.num_streams / self.request_rate < self.itl_ms / 1000:
            raise OptionError(
                f"--streams {self.num_streams} at --rate {self.request_rate:g} leave a request "
                f"{self.num_streams / self.request_rate:.3g} s, less than a token of --itl-ms {self.itl_ms:g}"
            )

    @property
    def tries_load(self) -> bool:
        """Whether a load is given."""
        return self.rate is not None or self.streams is not None

    @property
    def num_streams(self) -> int:
        """Streams at once."""
        return self.streams or max(1, round(2 * (self.rate or 1)))

    @property
    def request_rate(self) -> float:
        """Requests per second."""
        return self.rate or self.num_streams / 2


def run(options: DoctorOptions) -> int:
    """Look, measure, print the findings. Exit codes: 0 nothing failed, 1 something did."""
    from blis_sim.cli.host import findings

    found = findings(options.num_streams if options.tries_load else None)
    if options.tries_load:
        from blis_sim.cli.load_test import try_load

        found += try_load(options.request_rate, options.num_streams, options.itl_ms, options.duration)
    sys.stdout.write(_as_json(found) if options.json else _as_table(found))
    return int(any(each.verdict == FAILED for each in found))


def _as_json(found: list[Finding]) -> str:
    is_well = all(each.verdict != FAILED for each in found)
    return json.dumps({"ok": is_well, "checks": [asdict(each) for each in found]}, indent=2) + "\n"


def _as_table(found: list[Finding]) -> str:
    rows = [("check", "found", "verdict"), *((each.check, each.found, _verdict(each)) for each in found)]
    widths = [max(len(row[place]) for row in rows) for place in range(2)]
    return "".join(
        f"{check:<{widths[0]}}  {what:<{widths[1]}}  {verdict}".rstrip() + "\n" for check, what, verdict in rows
    )


def _verdict(finding: Finding) -> str:
    return f"{_MARKS[finding.verdict]}: {finding.advice}" if finding.advice else _MARKS[finding.verdict]
