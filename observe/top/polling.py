"""Reads a metrics page periodically and shows the figures as a table on a terminal, or as lines."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain

from rich.live import Live

from observe.errors import ResponseError, RunError
from observe.http.request import Server
from observe.messages import warn
from observe.top.figures import Figures, Page, figures_between, read_page
from observe.top.own_figures import OwnFigures, errors_in_words, read_own_figures, with_own
from observe.top.reading import read_url
from observe.top.table import line_of, table_of


@dataclass(frozen=True, slots=True)
class Report:
    """Result of one poll: figures, or the reason for which there are none."""

    model_names: tuple[str, ...]
    figures: Mapping[str, Figures]
    settings: str = ""
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
                title = f"{', '.join(report.model_names)} on {server.url}, {time.strftime('%H:%M:%S')}"
                lines = "\n".join(filter(None, (title, report.settings, report.failure)))
                live.update(table_of(lines, report.figures, live.console.height), refresh=True)
            if number == count:
                return


def fetch(server: Server, api_key: str | None) -> Page:
    """Return one reading of the page. Raises RunError for a server that does not answer or is no vLLM."""
    url = f"{server.url}/metrics"
    try:
        return read_page(read_url(url, api_key).decode("utf-8", "replace"))
    except ResponseError as error:
        raise RunError(f"cannot use {url}: {error}") from error


def _own_figures(server: Server, api_key: str | None) -> OwnFigures | None:
    """Return what a mock server says of itself; None where a proxy or an older server has no such route."""
    try:
        return read_own_figures(read_url(f"{server.url}/dashboard/figures", api_key).decode("utf-8", "replace"))
    except (RunError, ValueError, KeyError, TypeError):
        return None


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
            yield Report(page.model_names, figures, failure=str(error))
            continue
        own = _own_figures(server, api_key) if now.is_of_mock_server else None
        figures = with_own(figures_between(page, now, now_at - read_at), own)
        page, read_at = now, now_at
        yield Report(page.model_names, figures, errors_in_words(page.errors) if own is None else own.settings)


def _say(report: Report) -> None:
    if report.failure:
        warn(report.failure)
    else:
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line_of(report.figures)}\n")
        sys.stdout.flush()


def _can_draw() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
