"""Looking at a metrics page again and again."""

import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from http.client import HTTPException
from itertools import chain

from rich.live import Live

from observe.errors import ResponseError, RunError
from observe.http.request import Server
from observe.messages import warn
from observe.top.figures import Figures, figures_between
from observe.top.page import Page, read_page
from observe.top.screen import line_of, table_of

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Report:
    """What one look has shown: figures, or why there are none."""

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
"""Asks the server itself, whatever proxy the environment names, as the load client does."""


def _reports(server: Server, interval_s: float, api_key: str | None) -> Iterator[Report]:
    """A report after each interval, from a first look on. Looks that fail later are told and made up for."""
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
