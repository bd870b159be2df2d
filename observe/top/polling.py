"""Reads a metrics page periodically and shows the figures as a table on a terminal, or as lines."""

import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from http.client import HTTPException
from itertools import chain
from math import inf

from rich.live import Live
from rich.table import Table

from observe.errors import ResponseError, RunError
from observe.http.request import Server
from observe.messages import warn
from observe.top.figures import ALL, Figures, Page, figures_between, read_page

Cell = Callable[[Figures], str]

ROWS: Sequence[tuple[str, Cell]] = (
    ("running", lambda f: f"{f.running:.0f}"),
    ("waiting", lambda f: f"{f.waiting:.0f}"),
    ("KV cache in use", lambda f: f"{f.kv_usage_fraction:.1%}"),
    ("requests /s", lambda f: f"{f.requests_per_s:,.2f}"),
    ("prompt tokens /s", lambda f: f"{f.prompt_tokens_per_s:,.1f}"),
    ("output tokens /s", lambda f: f"{f.output_tokens_per_s:,.1f}"),
    ("steps /s", lambda f: f"{f.steps_per_s:,.1f}"),
    ("preemptions /s", lambda f: f"{f.preemptions_per_s:,.2f}"),
    ("TTFT p50 / p90 / p99 ms", lambda f: percentiles_ms(f.ttft_s)),
    ("ITL p50 / p90 / p99 ms", lambda f: percentiles_ms(f.itl_s)),
)
LAG_ROW: tuple[str, Cell] = ("send lag p50 / p90 / p99 ms", lambda f: percentiles_ms(f.lag_s or ()))


def table_of(title: str, figures: Mapping[str, Figures]) -> Table:
    """A row for each figure, a column for each engine."""
    table = Table(title=title)
    table.add_column("")
    for name in figures:
        table.add_column(name if name == ALL else f"engine {name}", justify="right")
    for label, cell in _rows(figures):
        table.add_row(label, *map(cell, figures.values()))
    return table


def line_of(figures: Mapping[str, Figures]) -> str:
    """All engines together in one line of text."""
    together = figures.get(ALL) or next(iter(figures.values()))
    return ", ".join(f"{label} {cell(together)}" for label, cell in _rows(figures))


def _rows(figures: Mapping[str, Figures]) -> Sequence[tuple[str, Cell]]:
    has_lag = any(each.lag_s is not None for each in figures.values())
    return (*ROWS, LAG_ROW) if has_lag else ROWS


def percentiles_ms(seconds: Sequence[float]) -> str:
    """Percentiles in milliseconds; a dash for none, `inf` for one beyond the last bucket."""
    return " / ".join("inf" if each == inf else f"{each * 1000:,.1f}" for each in seconds) or "-"


TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Report:
    """Result of one poll: figures, or the reason for which there are none."""

    model_names: tuple[str, ...]
    figures: Mapping[str, Figures]
    failure: str = ""


def watch(server: Server, interval_s: float, count: int, api_key: str | None) -> None:
    """Show `count` reports, or reports without end for 0. Raises RunError when the first look fails."""
    live = Live(auto_refresh=False) if _can_draw() else None
    screen: AbstractContextManager[object] = live or nullcontext()
    reports = _reports(server, interval_s, api_key)
    first = next(reports)  # the first look is made before the terminal is taken
    with screen:
        for number, report in enumerate(chain([first], reports), start=1):
            if live is None:
                _say(report)
            else:
                title = report.failure or f"{', '.join(report.model_names)} on {server.url}"
                live.update(table_of(title, report.figures), refresh=True)
            if number == count:
                return


def fetch(server: Server, api_key: str | None) -> Page:
    """One reading of the page. Raises RunError for a server that does not answer or is no vLLM."""
    url = f"{server.url}/metrics"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as reply:
            return read_page(reply.read().decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        error.close()
        raise RunError(f"cannot read {url}: status {error.code}") from error
    except ResponseError as error:
        raise RunError(f"cannot use {url}: {error}") from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise RunError(f"cannot read {url}: {getattr(reason, 'strerror', None) or reason}") from error


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Connects directly, ignoring proxies of the environment, as the load client does."""


def _reports(server: Server, interval_s: float, api_key: str | None) -> Iterator[Report]:
    """Yield a report after each interval. The poll after a failed one covers both intervals."""
    page, read_at = fetch(server, api_key), time.monotonic()
    figures: Mapping[str, Figures] = {}
    due = read_at
    while True:
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            now, now_at = fetch(server, api_key), time.monotonic()
        except RunError as error:
            yield Report(page.model_names, figures, str(error))
            continue
        figures = figures_between(page, now, now_at - read_at)
        page, read_at = now, now_at
        yield Report(page.model_names, figures)


def _say(report: Report) -> None:
    if report.failure:
        warn(report.failure)
    else:
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line_of(report.figures)}\n")
        sys.stdout.flush()


def _can_draw() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
