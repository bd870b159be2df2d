"""Where readings come from: the metrics page of a server, or a Prometheus that scrapes it."""

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

from blis_sim.bench.errors import BenchError
from blis_sim.bench.watch.options import WatchOptions
from blis_sim.bench.watch.readings import NAMES, Reading, Sample, reading_of, unbroken
from observe.top.reading import read_url

_OF_SERVER = ("job", "instance", "pod", "namespace", "model_name")
"""Labels in which servers differ; engines of one server differ in `engine` alone."""


class Source(Protocol):
    """Readings of one server. `poll` may raise BlisError; the readings stay as they were then."""

    @property
    def poll_every_s(self) -> float: ...

    def poll(self) -> None:
        """Read now."""
        ...

    @property
    def readings(self) -> Sequence[Reading]:
        """Readings since the server last started, ascending, no older than was requested."""
        ...


def source_of(options: WatchOptions, keep_s: float) -> Source:
    """Return the source that the URL names, with readings of the last `keep_s`."""
    url = (options.url or "").rstrip("/")
    if options.reads_prometheus:
        base = url[: url.index("/api/v1") + len("/api/v1")]
        return PrometheusSource(f"{base}/query", options.selector, options.api_key, options.watch_interval, keep_s)
    page = url if urlsplit(url).path.endswith("/metrics") else f"{url}/metrics"
    return PageSource(page, options.api_key, options.scrape_interval, keep_s)


class PageSource:
    """The metrics page of a server."""

    def __init__(self, url: str, api_key: str | None, poll_every_s: float, keep_s: float) -> None:
        self.poll_every_s = poll_every_s
        self.readings: Sequence[Reading] = []
        self._url, self._api_key, self._keep_s = url, api_key, keep_s

    def poll(self) -> None:
        text = read_url(self._url, self._api_key).decode("utf-8", "replace")
        try:
            reading = reading_of(time.time(), _samples(text))
        except (BenchError, ValueError, KeyError) as error:
            raise BenchError(f"cannot use {self._url}: {error}") from error
        kept = [each for each in self.readings if each.at_s >= reading.at_s - self._keep_s]
        self.readings = unbroken([*kept, reading])


class PrometheusSource:
    """A Prometheus, which keeps the readings itself."""

    def __init__(self, url: str, selector: str, api_key: str | None, poll_every_s: float, keep_s: float) -> None:
        self.poll_every_s = poll_every_s
        self.readings: Sequence[Reading] = []
        self._api_key, self._url = api_key, url
        labels = f'__name__=~"{"|".join(NAMES)}"' + (f",{selector}" if selector else "")
        self._query = f"{{{labels}}}[{max(1, round(keep_s))}s]"

    def poll(self) -> None:
        data = read_url(f"{self._url}?{urlencode({'query': self._query})}", self._api_key)
        try:
            series = _series(json.loads(data))
            self.readings = unbroken(_readings(series))
        except (BenchError, ValueError, KeyError, TypeError) as error:
            raise BenchError(f"cannot use {self._url}: {error}") from error


def _samples(text: str) -> list[Sample]:
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(text)
    return [
        (sample.name, sample.labels, sample.value)
        for family in families
        if family.name.startswith("vllm:")
        for sample in family.samples
    ]


def _series(reply: Any) -> list[dict[str, Any]]:
    if reply.get("status") != "success" or reply["data"].get("resultType") != "matrix":
        raise BenchError(f"it answers no range of samples: {reply.get('error') or reply.get('status')}")
    found: list[dict[str, Any]] = reply["data"]["result"]
    if not found:
        raise BenchError("it has no metrics of vLLM with these labels")
    # vLLM's cache_config_info has no model_name, unlike the other metrics of the same server.
    named = [each["metric"] for each in found if "model_name" in each["metric"]] or [each["metric"] for each in found]
    servers = {tuple((name, labels.get(name, "")) for name in _OF_SERVER) for labels in named}
    if len(servers) > 1:
        names = " and ".join(
            sorted("{" + ",".join(f'{name}="{value}"' for name, value in each if value) + "}" for each in servers)[:2]
        )
        raise BenchError(f"it has metrics of {len(servers)} servers, name one by --selector: {names}")
    return found


def _readings(series: Sequence[dict[str, Any]]) -> list[Reading]:
    """Return a reading for each scrape: all samples of one have the same instant."""
    by_instant: dict[float, list[Sample]] = defaultdict(list)
    for each in series:
        labels = {name: str(value) for name, value in each["metric"].items()}
        for at_s, value in each["values"]:
            by_instant[float(at_s)].append((labels["__name__"], labels, float(value)))
    most = max(map(len, by_instant.values()), default=0)
    # Instants with few samples are those of series that ended, such as of a server before.
    return [reading_of(at_s, by_instant[at_s]) for at_s in sorted(by_instant) if 2 * len(by_instant[at_s]) > most]
