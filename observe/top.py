"""Rates and percentiles between two readings of a metrics page, read periodically and shown on a terminal."""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from http.client import HTTPException
from itertools import chain
from math import inf, isfinite, nan
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from rich.live import Live
from rich.table import Table
from rich.text import Text

from blis_sim.options.printing import TABLE, printable
from blis_sim.report.tables import flat, streamed
from observe.errors import ResponseError, RunError, warn
from observe.http import Server

# Rates and percentiles between two readings of a metrics page, and the figures that a mock server has of its own.

PREFIXES = ("vllm:", "blis_")
_LAG = "blis_send_lag_seconds"
REPLIES = "http_requests"
"""The counter of replies by class of status, of vLLM's HTTP instrumentation."""


@dataclass(slots=True)
class EngineSamples:
    """The samples of one engine; those of a name that differ in other labels are added up.

    `buckets` holds, by histogram, how many observations are at most each bound, infinity included.
    """

    values: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    buckets: dict[str, dict[float, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """One reading of a metrics page. Samples without an engine label, such as the lag of the mock server, are in engine
    "".

    `errors` are replies by class of status, such as 4xx.
    """

    model_names: tuple[str, ...]
    engines: Mapping[str, EngineSamples]
    errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_of_mock_server(self) -> bool:
        """Whether the page is one of `blis serve`."""
        return "" in self.engines and _LAG in self.engines[""].buckets


def parse_metrics_page(text: str) -> MetricsPage:
    """The figures of vLLM on a page in Prometheus' text format. Raises ResponseError for a page of anything else."""
    engines: dict[str, EngineSamples] = defaultdict(EngineSamples)
    names: dict[str, None] = {}
    errors: dict[str, float] = defaultdict(float)
    try:
        for family in text_string_to_metric_families(text):
            if family.name == REPLIES:
                _add_errors(errors, family.samples)
            if not family.name.startswith(PREFIXES):
                continue
            for sample in family.samples:
                labels = sample.labels
                engine = engines[printable(labels.get("engine", ""))]
                if name := labels.get("model_name"):
                    names[printable(name)] = None
                if sample.name.endswith("_bucket"):
                    engine.buckets[sample.name.removesuffix("_bucket")][float(labels["le"])] += sample.value
                else:
                    engine.values[sample.name] += sample.value
    except (ValueError, KeyError) as error:
        raise ResponseError(f"it is not in Prometheus' text format ({error})") from error
    if not any(_SUCCESS in engine.values for engine in engines.values()):
        raise ResponseError("it holds no metrics of vLLM")
    return MetricsPage(tuple(names), dict(engines), dict(errors))


def _add_errors(errors: dict[str, float], samples: Iterable[Sample]) -> None:
    """Add up replies by class of status, where that is one of errors."""
    for sample in samples:
        status = sample.labels.get("status", "")
        if sample.name == f"{REPLIES}_total" and status.startswith(("4", "5")):
            errors[status] += sample.value


RUNNING = "vllm:num_requests_running"
_SUCCESS = "vllm:request_success_total"
FRACTIONS = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile in seconds, or the bucket bound where a histogram has nothing more precise.

    `sign` is `<` for one in the first bucket, of which only its upper bound is known. It is `>` for one beyond the last
    finite bound.
    """

    seconds: float
    sign: str = ""

    def __str__(self) -> str:
        return f"{self.sign}{' ' * bool(self.sign)}{self.seconds * 1000:,.1f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """One engine over one interval, or all of them together.

    Percentiles are p50, p90 and p99, empty when nothing was observed. `lag` is only known of the mock server.
    """

    running: float
    waiting: float
    kv_usage_fraction: float
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    steps_per_s: float
    preemptions_per_s: float
    ttft: Sequence[Percentile] = field(default=())
    itl: Sequence[Percentile] = field(default=())
    lag: Sequence[Percentile] | None = None


ALL = "all"


def stats_between(before: MetricsPage, after: MetricsPage, elapsed_s: float) -> dict[str, EngineStats]:
    """The figures of each engine, and of all where there are several, over the time between two readings."""
    common = after.engines.get("", EngineSamples())
    lag = None
    if _LAG in common.buckets:
        lag = _joint_percentiles(_LAG, [(before.engines.get("", EngineSamples()), common)])
    named = [name for name, engine in after.engines.items() if _SUCCESS in engine.values]
    pairs = {name: (before.engines.get(name, EngineSamples()), after.engines[name]) for name in named}
    found = {name or "0": _figures([pair], elapsed_s, lag if len(pairs) == 1 else None) for name, pair in pairs.items()}
    return found if len(found) == 1 else {**found, ALL: _figures(list(pairs.values()), elapsed_s, lag)}


Pair = tuple[EngineSamples, EngineSamples]


def _figures(pairs: Sequence[Pair], elapsed_s: float, lag: Sequence[Percentile] | None) -> EngineStats:
    """Combine several engines: the sums of their figures, and the mean usage of their caches."""

    def rate(name: str) -> float:
        return sum(_increase(old.values.get(name, 0.0), new.values.get(name, 0.0)) for old, new in pairs) / elapsed_s

    def now(name: str) -> float:
        """Sum a gauge, which an engine of several processes has from its first step on."""
        return sum(new.values.get(name, 0.0 if RUNNING not in new.values else nan) for _, new in pairs)

    return EngineStats(
        running=now(RUNNING),
        waiting=now("vllm:num_requests_waiting"),
        kv_usage_fraction=now("vllm:kv_cache_usage_perc") / len(pairs),
        requests_per_s=rate(_SUCCESS),
        prompt_tokens_per_s=rate("vllm:prompt_tokens_total"),
        output_tokens_per_s=rate("vllm:generation_tokens_total"),
        steps_per_s=rate("vllm:iteration_tokens_total_count"),
        preemptions_per_s=rate("vllm:num_preemptions_total"),
        ttft=_joint_percentiles("vllm:time_to_first_token_seconds", pairs),
        itl=_joint_percentiles("vllm:inter_token_latency_seconds", pairs),
        lag=lag,
    )


def _increase(before: float, after: float) -> float:
    """Return the growth of a counter; a counter that shrank was reset by a restart of its server."""
    return after - before if after >= before else after


def _joint_percentiles(name: str, pairs: Sequence[Pair]) -> Sequence[Percentile]:
    total: dict[float, float] = {}
    for old, new in pairs:
        for bound, count in bucket_increase(old.buckets.get(name, {}), new.buckets.get(name, {})).items():
            total[bound] = total.get(bound, 0.0) + count
    if not total or total[max(total)] <= 0:
        return ()
    return [_percentile(total, fraction) for fraction in FRACTIONS]


def _percentile(buckets: Mapping[float, float], fraction: float) -> Percentile:
    bounds = sorted(bound for bound in buckets if bound != inf)
    value = quantile(buckets, fraction)
    if bounds and value == inf:
        return Percentile(bounds[-1], ">")
    if bounds and value <= bounds[0]:
        return Percentile(bounds[0], "<")
    return Percentile(value)


def bucket_increase(before: Mapping[float, float], after: Mapping[float, float]) -> Mapping[float, float]:
    """Return the growth of each bucket between two readings. A histogram that shrank was reset."""
    if not after or after.get(inf, 0.0) < before.get(inf, 0.0):
        return after
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}


def quantile(buckets: Mapping[float, float], fraction: float) -> float:
    """The value that so large a fraction of the observations does not exceed, as Prometheus' histogram_quantile has it.

    Linear within a bucket, whose counts are cumulative. Infinite when it lies beyond the last finite bound, where
    Prometheus gives that bound.
    """
    bounds = sorted(buckets)
    rank = fraction * buckets[bounds[-1]]
    lower, seen = 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= rank and count > seen:
            # Rounding must not lead out of the bucket.
            return bound if bound == inf else min(bound, lower + (bound - lower) * (rank - seen) / (count - seen))
        lower, seen = bound, count
    return inf


@dataclass(frozen=True, slots=True)
class DashboardStats:
    """A server's settings in words, and percentiles by engine, where `ALL` stands for all of them."""

    settings: str
    ttft: Mapping[str, Sequence[Percentile]] = field(default_factory=dict)
    itl: Mapping[str, Sequence[Percentile]] = field(default_factory=dict)


def parse_dashboard_figures(text: str) -> DashboardStats:
    """Read the reply to /dashboard/figures. Raises ValueError, KeyError or TypeError for anything else."""
    found = json.loads(text)
    server, figures = found["server"], found["figures"]
    ttft = {str(each["engine"]): _dashboard_percentiles(each["ttft_ms"]) for each in figures["engines"]}
    itl = {str(each["engine"]): _dashboard_percentiles(each["itl_ms"]) for each in figures["engines"]}
    now = figures["now"]
    if now:
        ttft[ALL] = _dashboard_percentiles([now[f"ttft_{name}_ms"][0] for name in ("p50", "p90", "p99")])
        itl[ALL] = _dashboard_percentiles([now[f"itl_{name}_ms"][0] for name in ("p50", "p90", "p99")])
    errors = figures["errors_by_status"]
    gpus = server["tp"] * server["dp"]
    faults = [*(f"{kind} {rate:.0%}" for kind, rate in server["faults"].items()), *server["engine_faults"]]
    parts = [
        f"{server['gpu'] or 'no GPU'}{f' x {gpus}' if gpus > 1 else ''}, tp {server['tp']}",
        "no speed limit" if server["speed"] is None else f"speed {server['speed']:g}x",
        f"faults {', '.join(faults) or 'none'}",
        format_error_counts(errors),
    ]
    return DashboardStats("; ".join(parts), ttft, itl)


def _dashboard_percentiles(values_ms: Sequence[float | None] | None) -> Sequence[Percentile]:
    return [Percentile(each / 1000) for each in values_ms or () if each is not None]


def format_error_counts(errors: Mapping[str, float]) -> str:
    """Return the number of replies for each status of error."""
    return f"errors {', '.join(f'{status}: {number:,.0f}' for status, number in errors.items()) or 'none'}"


def with_dashboard_stats(figures: Mapping[str, EngineStats], own: DashboardStats | None) -> Mapping[str, EngineStats]:
    """Return the figures with the server's own percentiles, where it has some."""
    if own is None:
        return figures
    return {
        name: replace(each, ttft=own.ttft.get(name, each.ttft), itl=own.itl.get(name, each.itl))
        for name, each in figures.items()
    }


# A metrics page read periodically, and its figures shown as a table of 80 columns on a terminal, or as lines.

TIMEOUT_S = 10.0
MOST_PAGE_BYTES = 64 << 20
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Connects directly, ignoring proxies of the environment, as the load client does."""


def read_url(url: str, api_key: str | None) -> bytes:
    """Return the body of a reply. Raises RunError that names the URL without its query."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    shown = url.partition("?")[0]
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as reply:
            body: bytes = reply.read(MOST_PAGE_BYTES + 1)
        if len(body) > MOST_PAGE_BYTES:
            raise RunError(f"cannot read {shown}: more than {MOST_PAGE_BYTES >> 20} MB")
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
    # As plain text, since names with brackets are no markup.
    table = Table(title=Text(title), title_justify="left", caption_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("engine", no_wrap=True)
    for label, _ in COLUMNS:
        table.add_column(label, justify="right", vertical="bottom", no_wrap=True)
    engines = {name: each for name, each in figures.items() if name != ALL}
    shown = _most_loaded(engines, max(1, height - _LINES_AROUND))
    for name in [*([ALL] if ALL in figures else []), *shown]:
        table.add_row(Text(name), *(cell(figures[name]) for _, cell in COLUMNS), style="bold" if name == ALL else "")
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
    """Result of one poll: figures, and why servers did not answer. With no answer at all the figures are old ones."""

    model_names: tuple[str, ...]
    figures: Mapping[str, EngineStats]
    settings: str = ""
    failure: str = ""
    is_new: bool = True


def watch(servers: Sequence[Server], interval_s: float, count: int, api_key: str | None, form: str = TABLE) -> None:
    """Show `count` reports, or reports without end for 0. Raises RunError when no server answers the first poll."""
    live = Live(auto_refresh=False) if form == TABLE and _can_redraw() else None
    screen: AbstractContextManager[object] = live or nullcontext()
    reports = _reports(servers, interval_s, api_key)
    where = servers[0].url if len(servers) == 1 else f"{len(servers)} servers"
    first = next(reports)  # the first poll precedes the live display
    with screen:
        for number, report in enumerate(chain([first], reports), start=1):
            if live is None:
                _print_report(report, form, is_first=number == 1)
            else:
                title = f"{', '.join(report.model_names)} on {where}, {time.strftime('%H:%M:%S')}"
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


def names_of(servers: Sequence[Server]) -> list[str]:
    """Return names of servers: their ports where the host is the same; an empty one for a single server."""
    if len(servers) == 1:
        return [""]
    ports = [str(each.port) for each in servers]
    is_port_enough = len({each.host for each in servers}) == 1 and len(set(ports)) == len(ports)
    return ports if is_port_enough else [each.url.partition("://")[2] for each in servers]


def joined(pages: Mapping[str, MetricsPage]) -> MetricsPage:
    """Return the pages of several servers as one, whose engines have the names of their servers in front."""
    if tuple(pages) == ("",):
        return pages[""]
    engines: dict[str, EngineSamples] = {}
    errors: dict[str, float] = defaultdict(float)
    lag: dict[float, float] = defaultdict(float)
    for server, page in pages.items():
        named = {name: each for name, each in page.engines.items() if _SUCCESS in each.values}
        engines |= {server if len(named) == 1 else f"{server}/{name or 0}": each for name, each in named.items()}
        for status, number in page.errors.items():
            errors[status] += number
        for bound, number in page.engines.get("", EngineSamples()).buckets.get(_LAG, {}).items():
            lag[bound] += number
    if lag:
        engines[""] = EngineSamples(buckets={_LAG: lag})
    names = dict.fromkeys(name for page in pages.values() for name in page.model_names)
    return MetricsPage(tuple(names), engines, errors)


@contextmanager
def _threads(count: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """Yield `map` with a thread for each of several items; who leaves early does not wait for them."""
    if count == 1:
        yield map
        return
    pool = ThreadPoolExecutor(count)
    try:
        yield pool.map
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _reports(servers: Sequence[Server], interval_s: float, api_key: str | None) -> Iterator[Report]:
    """Yield a report after each interval. The poll after one that no server answered covers both intervals.

    Of several servers, one that did not answer is left out, and counts from its next answer on.
    """
    named = dict(zip(names_of(servers), servers, strict=True))

    def fetched(server: Server) -> MetricsPage | RunError:
        try:
            return fetch(server, api_key)
        except RunError as error:
            return error

    with _threads(len(servers)) as for_each:

        def polled() -> tuple[dict[str, MetricsPage], str]:
            found = dict(zip(named, for_each(fetched, named.values()), strict=True))
            failures = [str(each) for each in found.values() if isinstance(each, RunError)]
            return {name: each for name, each in found.items() if isinstance(each, MetricsPage)}, "\n".join(failures)

        pages, failure = polled()
        read_at = due = time.monotonic()
        if not pages:
            raise RunError(failure)
        report = Report((), {})
        while True:
            due = max(due + interval_s, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            answered, failure = polled()
            if not answered:
                report = replace(report, model_names=joined(pages).model_names, failure=failure, is_new=False)
                yield report
                continue
            now_at, now = time.monotonic(), joined(answered)
            figures: Mapping[str, EngineStats]
            figures = stats_between(
                joined({name: pages.get(name, page) for name, page in answered.items()}), now, now_at - read_at
            )
            own = None
            if len(servers) == 1 and now.is_of_mock_server:
                own = _fetch_dashboard_stats(servers[0], api_key)
                figures = with_dashboard_stats(figures, own)
            pages, read_at = answered, now_at
            settings = format_error_counts(now.errors) if own is None else own.settings
            report = Report(now.model_names, figures, settings, failure)
            yield report


def _print_report(report: Report, form: str, is_first: bool) -> None:
    if report.failure:
        warn(report.failure)
    if not report.is_new:
        return
    if form == TABLE:
        text = f"{time.strftime('%H:%M:%S')} {format_line(report.figures)}\n"
    else:
        found = {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "models": report.model_names}
        engines = {name: _plain_figures(stats) for name, stats in report.figures.items()}
        rows = (flat({**found, "engine": name, **figures}) for name, figures in engines.items())
        text = streamed(form, {**found, "engines": engines}, rows, is_first)
    sys.stdout.write(text)
    sys.stdout.flush()


def _plain_figures(stats: EngineStats) -> dict[str, Any]:
    """Return the figures of an engine as JSON has them, times in milliseconds; None for what was not observed."""
    times = {"ttft": stats.ttft, "itl": stats.itl, "lag": stats.lag or ()}
    numbers = {each.name: getattr(stats, each.name) for each in fields(stats) if each.name not in times}
    found = {name: value if isfinite(value) else None for name, value in numbers.items()}
    for name, percentiles in times.items():
        values = [round(each.seconds * 1000, 3) if isfinite(each.seconds) else None for each in percentiles]
        names = [f"{name}_p{round(100 * fraction)}_ms" for fraction in FRACTIONS]
        found |= dict(zip(names, values or [None] * len(names), strict=True))
    return found


def _can_redraw() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
