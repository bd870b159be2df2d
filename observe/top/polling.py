"""A metrics page read periodically, and its figures shown as a table of 80 columns on a terminal, or as lines."""

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
from math import isfinite

from rich.live import Live
from rich.table import Table

from observe.errors import ResponseError, RunError, warn
from observe.http import Server
from observe.top.figures import (
    ALL,
    DashboardStats,
    EngineStats,
    MetricsPage,
    Percentile,
    format_error_counts,
    parse_dashboard_figures,
    parse_metrics_page,
    stats_between,
    with_dashboard_stats,
)

TIMEOUT_S = 10.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Connects directly, ignoring proxies of the environment, as the load client does."""


def read_url(url: str, api_key: str | None) -> bytes:
    """Return the body of a reply. Raises RunError that names the URL without its query."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    shown = url.partition("?")[0]
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as reply:
            body: bytes = reply.read()
            return body
    except urllib.error.HTTPError as error:
        error.close()
        raise RunError(f"cannot read {shown}: status {error.code}") from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise RunError(f"cannot read {shown}: {getattr(reason, 'strerror', None) or reason}") from error


Cell = Callable[[EngineStats], str]

LABELLED: Sequence[tuple[str, Cell]] = (
    ("running", lambda f: f"{f.running:.0f}"),
    ("waiting", lambda f: f"{f.waiting:.0f}"),
    ("KV cache in use", lambda f: f"{f.kv_usage_fraction:.1%}"),
    ("requests /s", lambda f: f"{f.requests_per_s:,.2f}"),
    ("prompt tokens /s", lambda f: f"{f.prompt_tokens_per_s:,.1f}"),
    ("output tokens /s", lambda f: f"{f.output_tokens_per_s:,.1f}"),
    ("steps /s", lambda f: f"{f.steps_per_s:,.1f}"),
    ("preemptions /s", lambda f: f"{f.preemptions_per_s:,.2f}"),
    ("TTFT p50 / p90 / p99 ms", lambda f: percentiles_ms(f.ttft)),
    ("ITL p50 / p90 / p99 ms", lambda f: percentiles_ms(f.itl)),
    ("send lag p50 / p90 / p99 ms", lambda f: percentiles_ms(f.lag or ())),
)

COLUMNS: Sequence[tuple[str, Cell]] = (
    ("running", lambda f: f"{f.running:,.0f}"),
    ("waiting", lambda f: f"{f.waiting:,.0f}"),
    ("KV %", lambda f: format_short(100 * f.kv_usage_fraction)),
    ("req/s", lambda f: format_short(f.requests_per_s)),
    ("prompt\ntok/s", lambda f: format_short(f.prompt_tokens_per_s)),
    ("output\ntok/s", lambda f: format_short(f.output_tokens_per_s)),
    ("TTFT\np50 ms", lambda f: _short_ms(f.ttft, 0)),
    ("TTFT\np99 ms", lambda f: _short_ms(f.ttft, -1)),
    ("ITL\np50 ms", lambda f: _short_ms(f.itl, 0)),
    ("ITL\np99 ms", lambda f: _short_ms(f.itl, -1)),
)
"""No cell is wider than 7 characters, so that a row fits in 80 columns."""

_LINES_AROUND = 9
"""Lines of a terminal beside those of the engines: title, head, rules, the line of all engines, those below."""


def build_table(title: str, figures: Mapping[str, EngineStats], height: int = 24) -> Table:
    """Return a table with a row for all engines, a row for each engine, and a caption with figures of the server. A
    terminal of `height` lines that is too small for all engines shows those with the most requests.
    """
    table = Table(title=title, title_justify="left", caption_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("engine", no_wrap=True)
    for label, _ in COLUMNS:
        table.add_column(label, justify="right", vertical="bottom", no_wrap=True)
    engines = {name: each for name, each in figures.items() if name != ALL}
    shown = _most_loaded(engines, max(1, height - _LINES_AROUND))
    for name in [*([ALL] if ALL in figures else []), *shown]:
        table.add_row(name, *(cell(figures[name]) for _, cell in COLUMNS), style="bold" if name == ALL else "")
    together = combined_stats(figures)
    caption = [f"and {len(engines) - len(shown):,} engines more"] if len(shown) < len(engines) else []
    if together is not None:
        caption.append(
            f"steps {format_short(together.steps_per_s)}/s, preemptions {format_short(together.preemptions_per_s)}/s"
        )
        caption += [f"TTFT p90 {_short_ms(together.ttft, 1)} ms, ITL p90 {_short_ms(together.itl, 1)} ms"]
        if together.lag is not None:
            caption.append(f"send lag p50 / p90 / p99 {percentiles_ms(together.lag)} ms")
    table.caption = "\n".join(caption)
    return table


def combined_stats(figures: Mapping[str, EngineStats]) -> EngineStats | None:
    """Return the figures of all engines, or of the only one; None when there are none yet."""
    return figures.get(ALL) or next(iter(figures.values()), None)


def _most_loaded(engines: Mapping[str, EngineStats], most: int) -> Sequence[str]:
    """Return the names of all engines, or of so many, those with the most requests."""
    if len(engines) <= most:
        return list(engines)
    kept = set(sorted(engines, key=lambda name: engines[name].running + engines[name].waiting, reverse=True)[:most])
    return [name for name in engines if name in kept]


def format_line(figures: Mapping[str, EngineStats]) -> str:
    """Return all engines together in one line of text."""
    together = combined_stats(figures)
    assert together is not None  # a line is written for figures only
    labelled = LABELLED if together.lag is not None else LABELLED[:-1]
    return ", ".join(f"{label} {cell(together)}" for label, cell in labelled)


def percentiles_ms(percentiles: Sequence[Percentile]) -> str:
    """Return percentiles in milliseconds; a dash for none."""
    return " / ".join(map(str, percentiles)) or "-"


def _short_ms(percentiles: Sequence[Percentile], place: int) -> str:
    if not percentiles:
        return "-"
    found = percentiles[place]
    return found.sign + format_short(found.seconds * 1000)


def format_short(value: float) -> str:
    """Return a number of at most 6 characters, two digits or more: thousands as k and millions as M."""
    if not isfinite(value):
        return "-"
    for limit, divisor, form, unit in _FORMS:
        if abs(value) < limit:
            return f"{value / divisor:{form}}{unit}"
    return f"{value:.0e}"


_FORMS: Sequence[tuple[float, float, str, str]] = (
    (0.005, 1, ".0f", ""),
    (9.995, 1, ".2f", ""),
    (99.95, 1, ".1f", ""),
    (9_999.5, 1, ",.0f", ""),
    (999_950, 1e3, ".1f", "k"),
    (999.95e6, 1e6, ".1f", "M"),
    (999.95e9, 1e9, ".1f", "G"),
)
"""Numbers below each limit: the divisor, the format and the unit."""


@dataclass(frozen=True, slots=True)
class Report:
    """Result of one poll: figures, or the reason for which there are none."""

    model_names: tuple[str, ...]
    figures: Mapping[str, EngineStats]
    settings: str = ""
    failure: str = ""


def watch(server: Server, interval_s: float, count: int, api_key: str | None) -> None:
    """Show `count` reports, or reports without end for 0. Raises RunError when the first poll fails."""
    live = Live(auto_refresh=False) if _can_redraw() else None
    screen: AbstractContextManager[object] = live or nullcontext()
    reports = _reports(server, interval_s, api_key)
    first = next(reports)  # the first poll precedes the live display
    with screen:
        for number, report in enumerate(chain([first], reports), start=1):
            if live is None:
                _print_report(report)
            else:
                title = f"{', '.join(report.model_names)} on {server.url}, {time.strftime('%H:%M:%S')}"
                lines = "\n".join(filter(None, (title, report.settings, report.failure)))
                live.update(build_table(lines, report.figures, live.console.height), refresh=True)
            if number == count:
                return


def fetch(server: Server, api_key: str | None) -> MetricsPage:
    """Return one reading of the page. Raises RunError for a server that does not answer or is no vLLM."""
    url = f"{server.url}/metrics"
    try:
        return parse_metrics_page(read_url(url, api_key).decode("utf-8", "replace"))
    except ResponseError as error:
        raise RunError(f"cannot use {url}: {error}") from error


def _fetch_dashboard_stats(server: Server, api_key: str | None) -> DashboardStats | None:
    """Return the figures of a mock server's dashboard; None where a proxy or an older server has no such route."""
    try:
        return parse_dashboard_figures(read_url(f"{server.url}/dashboard/figures", api_key).decode("utf-8", "replace"))
    except (RunError, ValueError, KeyError, TypeError):
        return None


def _reports(server: Server, interval_s: float, api_key: str | None) -> Iterator[Report]:
    """Yield a report after each interval. The poll after a failed one covers both intervals."""
    page, read_at = fetch(server, api_key), time.monotonic()
    figures: Mapping[str, EngineStats] = {}
    due = read_at
    while True:
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            now, now_at = fetch(server, api_key), time.monotonic()
        except RunError as error:
            yield Report(page.model_names, figures, failure=str(error))
            continue
        own = _fetch_dashboard_stats(server, api_key) if now.is_of_mock_server else None
        figures = with_dashboard_stats(stats_between(page, now, now_at - read_at), own)
        page, read_at = now, now_at
        yield Report(page.model_names, figures, format_error_counts(page.errors) if own is None else own.settings)


def _print_report(report: Report) -> None:
    if report.failure:
        warn(report.failure)
    else:
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} {format_line(report.figures)}\n")
        sys.stdout.flush()


def _can_redraw() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
