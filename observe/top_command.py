"""`blis top`: poll a metrics page and show rates and percentiles since the previous poll."""

from dataclasses import dataclass

from blis_sim.options import option
from blis_sim.options.printing import CSV, JSON, TABLE, check_printed, format_option, json_option, printed_format
from observe.http import Server, parse_server

__all__ = ["TopOptions", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions:
    """The servers whose figures are shown, and the interval."""

    url: str = option(
        help="Base URLs of vLLM servers with commas between them, such as http://localhost:8000.",
        positional=True,
        metavar="URLS",
    )
    interval: float = option(2.0, "Seconds between two polls of the server.", at_least=0.1, at_most=3600)
    count: int = option(0, "Stop after so many reports. 0: go on until interrupted.", at_least=0)
    api_key: str | None = option(None, "Send this as bearer token.")
    format: str = format_option(
        "What standard output gets: a table for people, a line of JSON for each report, or rows of CSV, one for each "
        "engine and report.",
        (TABLE, JSON, CSV),
    )
    json: bool = json_option()

    def __post_init__(self) -> None:
        check_printed(self)
        _ = self.servers

    @property
    def servers(self) -> list[Server]:
        """Return the servers, each once; their URLs in the options may include the path of the metrics page."""
        urls = dict.fromkeys(
            each.rstrip("/").removesuffix("/metrics") for each in map(str.strip, self.url.split(",")) if each
        )
        return [parse_server(each, "URL") for each in urls]


def run(options: TopOptions) -> int:
    """Show the figures until `count` is reached or the user interrupts.

    A table is redrawn in place on a terminal; elsewhere each report is a line. Exit codes: 0 done, 1 when no
    server answers the first poll; a server that fails later may come back.
    """
    from observe.errors import RunError, print_message
    from observe.top import watch

    try:
        watch(options.servers, options.interval, options.count, options.api_key, printed_format(options))
    except RunError as error:
        print_message(f"blis top: error: {error}")
        return 1
    except KeyboardInterrupt:
        return 0
    return 0
