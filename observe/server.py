"""Queries to the server: model, tokenizer and settings before a run, metrics before, during and after it."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import orjson

from observe.body import RequestStyle
from observe.client import CANCELLED, Client, Outcome
from observe.errors import RunError, warn
from observe.http import get_bytes, post_bytes
from observe.requests import WORDS, PlannedRequest, TokenScale, calibration_text, scale_from_counts
from traces import JsonLinesWriter
from traces.redaction import Redactor
from traces.server_settings import (
    INTERRUPTIONS,
    blocks_of_one_engine,
    plausible,
    plausible_simulation,
    read_settings_file,
)

_RTT_PROBES = 10
_PREWARM_REQUESTS = 4
_PREWARM_PROMPT = " ".join(["warm"] * 256)
_PREWARM_OUTPUT_TOKENS = 64
_PREWARM_PAUSE_S = 0.5
"""Pause after a request that failed."""
_PERMANENT_ERRORS = frozenset({401, 403, 404, 405})


@dataclass(frozen=True, slots=True)
class ServerQueries:
    """Queries one server, over its client, with the headers of all requests."""

    client: Client
    headers: Mapping[str, str]

    @property
    def health_request(self) -> bytes:
        """Return the cheapest request. Any reply to this request shows that the server answers."""
        return get_bytes(self.client.server, "/health", self.headers)

    async def first_model(self) -> str:
        """The first model that the server lists. Raises RunError when it lists none."""
        outcome = await self._models()
        model = _path(outcome.reply.json(), "data", 0, "id") if outcome.status == "ok" else None
        if not isinstance(model, str) or not model:
            reason = outcome.error_message or "no model is listed there"
            raise RunError(
                f"cannot ask {self.client.server.url}/v1/models for the model, give --model: {_short(reason)}"
            )
        return model

    async def adapters(self) -> frozenset[str]:
        """The LoRA adapters that the server lists: models that have a parent."""
        outcome = await self._models()
        cards = _path(outcome.reply.json(), "data") if outcome.status == "ok" else None
        listed = cards if isinstance(cards, list) else []
        return frozenset(str(_path(card, "id")) for card in listed if isinstance(_path(card, "parent"), str))

    async def context_tokens(self, model: str) -> int | None:
        """The longest context of a model, prompt and output together, where the server lists it as vLLM does."""
        outcome = await self._models()
        cards = _path(outcome.reply.json(), "data") if outcome.status == "ok" else None
        lengths = {_path(card, "id"): _path(card, "max_model_len") for card in cards} if isinstance(cards, list) else {}
        length = lengths.get(model)
        return length if isinstance(length, int) and length > 0 else None

    async def compares_vectors(self) -> bool:
        """Whether the model scores texts by their vectors, as one does that vLLM serves for embeddings.

        A route that takes another method answers 405, and one that is not there 404.
        """
        request = get_bytes(self.client.server, "/v1/embeddings", self.headers)
        return (await self.client.fetch(request)).reply.status_code == 405

    async def token_scale(self, style: RequestStyle) -> TokenScale:
        """Measure how the server counts words. Raises RunError when the server would refuse all other requests, too."""
        once = await self._count_prompt_tokens(style, 1)
        twice = await self._count_prompt_tokens(style, 2) if once is not None else None
        scale = scale_from_counts(once, twice)
        if scale is None:
            counted = "no token count" if once is None else f"{once} tokens"
            warn(f"prompts have one word per token, as the server gave {counted} for {len(WORDS)} words")
        return scale or TokenScale()

    async def keep_warm(self, style: RequestStyle, duration_s: float) -> int:
        """Keep a few requests in flight for so long. Returns how many were answered."""
        body = replace(style, streaming=False, exact_output=True).body(_PREWARM_PROMPT, _PREWARM_OUTPUT_TOKENS)
        request = post_bytes(self.client.server, style.path, self.headers, body)
        ends_at = perf_counter_ns() + round(duration_s * 1e9)

        async def keep_one_in_flight() -> int:
            num_answered = 0
            while (left_s := (ends_at - perf_counter_ns()) / 1e9) > 0:
                outcome = await self.client.fetch(request, timeout_s=left_s)
                if outcome.status == "ok":
                    num_answered += 1
                else:
                    await asyncio.sleep(min(_PREWARM_PAUSE_S, max(0.0, left_s)))
            return num_answered

        return sum(await asyncio.gather(*(keep_one_in_flight() for _ in range(_PREWARM_REQUESTS))))

    async def round_trip_ms(self) -> float | None:
        """The shortest of a few round trips on a connection that is open; None when none came back."""
        times = []
        for _ in range(_RTT_PROBES):
            outcome = await self.client.fetch(self.health_request, timeout_s=5)
            if outcome.reply.status_code:
                times.append(outcome.reply.first_byte - outcome.sent)
        return round(min(times) / 1e6, 3) if times else None

    async def _models(self) -> Outcome:
        return await self.client.fetch(get_bytes(self.client.server, "/v1/models", self.headers))

    async def _count_prompt_tokens(self, style: RequestStyle, num_rounds: int) -> int | None:
        body = style.calibration_body(calibration_text(num_rounds))
        outcome = await self.client.fetch(post_bytes(self.client.server, style.path, self.headers, body))
        url = self.client.server.url + style.path
        if outcome.reply.status_code in _PERMANENT_ERRORS:
            raise RunError(f"{url} answered {_short(outcome.error_message)}")
        return outcome.reply.prompt_tokens or None


def _path(value: Any, *keys: str | int) -> Any:
    """Return a nested value of parsed JSON; None when a key on the path is missing."""
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:197] + "..."


_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_QUERIES = "vllm:prefix_cache_queries_total"
_HITS = "vllm:prefix_cache_hits_total"
_CACHE_SETTINGS = "vllm:cache_config_info{"
_MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class MetricsReading:
    """vLLM's samples at an instant (Unix microseconds), by name with labels, without the buckets of histograms."""

    at_us: int
    samples: Mapping[str, float]

    def total(self, name: str) -> float:
        """The sum over all label sets of a metric."""
        return sum(value for key, value in self.samples.items() if key.partition("{")[0] == name)


def parse_reading(page: str, at_us: int) -> MetricsReading:
    """The samples of a page in Prometheus' text format; lines that are none are passed over."""
    samples = {}
    for line in page.split("\n"):
        name, _, value = line.rpartition(" ")
        if line.startswith("vllm:") and "_bucket{" not in name:
            try:
                samples[name] = float(value)
            except ValueError:
                continue
    return MetricsReading(at_us, samples)


def cache_settings(reading: MetricsReading) -> dict[str, str]:
    """The settings of the KV cache of one engine, from the labels of a metric of vLLM; empty without the metric."""
    for name in reading.samples:
        if name.startswith(_CACHE_SETTINGS):
            found = {label: text for label, text in _LABEL.findall(name) if text != "None"}
            num_engines = sum(each.startswith(_CACHE_SETTINGS) for each in reading.samples)
            blocks = blocks_of_one_engine(found, num_engines)
            return found if blocks is None else {**found, "num_gpu_blocks": str(blocks)}
    return {}


def header_settings(cache: Mapping[str, str], max_model_len: Any) -> dict[str, Any]:
    """Return the settings that the header of a trace has fields for, if they are plausible."""
    found: dict[str, Any] = {}
    for name, value, kind, most in (
        ("block_size", cache.get("block_size"), int, _MAX_TOKENS),
        ("gpu_memory_utilization", cache.get("gpu_memory_utilization"), float, 1),
        ("max_model_len", max_model_len if type(max_model_len) is int else None, int, _MAX_TOKENS),
    ):
        with suppress(ValueError):
            setting = kind(value or "")
            if 0 < setting <= most:
                found[name] = setting
    return found


def observed_hit_rate(before: MetricsReading, after: MetricsReading) -> dict[str, Any] | None:
    """The share of prompt tokens found in the prefix cache between two readings, as a header has it.

    None when the cache was not queried, or the counters began anew in between.
    """
    queries = after.total(_QUERIES) - before.total(_QUERIES)
    hits = after.total(_HITS) - before.total(_HITS)
    if queries <= 0 or not 0 <= hits <= queries < inf:
        return None
    return {
        "source": "gpu-prefix-cache-fallback",
        "hit_rate": hits / queries,
        "block_hits": hits,
        "block_queries": queries,
    }


_TIMEOUT_S = 5


class Scraper:
    """Reads `/metrics` of one server and appends each reading, a JSON object per line, to a file.

    The first line of a new file has the server's own settings. A page that does not come is counted in `num_failed`, a
    file that cannot be written any more ends the reading.
    """

    def __init__(
        self,
        client: Client,
        headers: Mapping[str, str],
        path: Path,
        *,
        resume: bool,
        redactor: Redactor | None = None,
        page: Client | None = None,
    ) -> None:
        """`page` leads to another page than `/metrics` of the server; it gets no headers, and is closed at the end."""
        self._page = page
        server = client.server if page is None else page.server
        route = "" if page is not None and server.prefix else "/metrics"
        self._url = f"{server.url}{route}"
        self._request = get_bytes(server, route, headers if page is None else {})
        self._redactor = redactor
        self.num_failed = 0
        self.readings: list[MetricsReading] = []
        self._client = client
        self._headers = headers
        self._writer = JsonLinesWriter(path, resume=resume)

    async def begin(self) -> dict[str, Any]:
        """Take the first reading. Returns its settings of the server for the header of the recording."""
        reading = await self._read()
        cache = cache_settings(reading) if reading is not None else {}
        models = await self._client.fetch(get_bytes(self._client.server, "/v1/models", self._headers))
        version = await self._client.fetch(get_bytes(self._client.server, "/version", self._headers))
        card = models.reply.json() if models.status == "ok" else None
        settings = {
            "version": version.reply.json() if version.status == "ok" else None,
            "models": card,
            "cache_config": cache,
        }
        self._write({"server": settings})
        if reading is None:
            warn(f"{self._url} has no metrics to read")
        else:
            self._keep(reading, "before")
        return header_settings(cache, _max_model_len(card))

    async def keep_reading(self, interval_s: float) -> None:
        """Take a reading every so many seconds, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            reading = await self._read()
            if reading is not None:
                self._keep(reading, "during")

    async def end(self) -> dict[str, Any] | None:
        """Take the last reading and close the file; the prefix cache's hit rate during the run, if it is known."""
        reading = await self._read()
        if reading is not None:
            self._keep(reading, "after")
        self._writer.close()
        if self._page is not None:
            await self._page.close()
        if self.num_failed:
            warn(f"{self.num_failed} readings of the server's metrics failed")
        return None if len(self.readings) < 2 else observed_hit_rate(self.readings[0], self.readings[-1])

    async def _read(self) -> MetricsReading | None:
        outcome = await (self._page or self._client).fetch(self._request, timeout_s=_TIMEOUT_S)
        # The body of any answer is read, whether or not it is JSON.
        if outcome.reply.status_code != 200 or not outcome.reply.complete:
            # A reading that the end of the run cancelled is followed by the last reading.
            self.num_failed += outcome.kind != CANCELLED
            return None
        return parse_reading(outcome.reply.text, self._client.clock.epoch_us(perf_counter_ns()))

    def _keep(self, reading: MetricsReading, phase: str) -> None:
        self.readings = [*self.readings[:1], reading]
        self._write({"at_us": reading.at_us, "phase": phase, "samples": dict(reading.samples)})

    def _write(self, entry: Mapping[str, Any]) -> None:
        try:
            line = orjson.dumps(entry).decode()
            self._writer.write(line if self._redactor is None else self._redactor.body(line))
        except OSError as error:
            warn(f"the server's metrics cannot be written: {(error.strerror or str(error)).lower()}")


def _max_model_len(card: Any) -> Any:
    try:
        return card["data"][0]["max_model_len"]
    except (KeyError, IndexError, TypeError):
        return None


_OF_CONFIG: Mapping[tuple[str, str], str] = {
    ("parallel_config", "tensor_parallel_size"): "tensor_parallel",
    ("parallel_config", "pipeline_parallel_size"): "pipeline_parallel",
    ("parallel_config", "data_parallel_size"): "data_parallel",
    ("parallel_config", "enable_expert_parallel"): "enable_expert_parallel",
    ("scheduler_config", "max_num_seqs"): "max_num_seqs",
    ("scheduler_config", "max_num_batched_tokens"): "max_num_batched_tokens",
    ("scheduler_config", "enable_chunked_prefill"): "enable_chunked_prefill",
    ("scheduler_config", "async_scheduling"): "async_scheduling",
    ("cache_config", "block_size"): "block_size",
    ("cache_config", "num_gpu_blocks"): "num_gpu_blocks",
    ("cache_config", "gpu_memory_utilization"): "gpu_memory_utilization",
    ("cache_config", "enable_prefix_caching"): "enable_prefix_caching",
    ("model_config", "model"): "model",
    ("model_config", "max_model_len"): "max_model_len",
}
"""Path of each setting in the reply of `/server_info`."""
_LABELS: Mapping[str, type] = {
    "block_size": int,
    "num_gpu_blocks": int,
    "gpu_memory_utilization": float,
    "enable_prefix_caching": bool,
}
"""Settings that the labels of `vllm:cache_config_info` have, with their types."""


async def settings_of_server(client: Client, headers: Mapping[str, str], file: str | None) -> dict[str, Any]:
    """Return the settings that a server publishes, and those of `file`, which win. Raises TraceError.

    Routes that a server does not have are left out: `/server_info` is there in vLLM's development mode alone, and
    `/blis/settings` where `blis serve` answers.
    """
    given = {} if file is None else read_settings_file(Path(file))

    async def fetched(path: str) -> Any:
        outcome = await client.fetch(get_bytes(client.server, path, headers), timeout_s=_TIMEOUT_S)
        return outcome.reply.json() if outcome.status == "ok" else None

    metrics = await client.fetch(get_bytes(client.server, "/metrics", headers), timeout_s=_TIMEOUT_S)
    labels: dict[str, str] = {}
    if metrics.reply.status_code == 200 and metrics.reply.complete:
        labels = cache_settings(parse_reading(metrics.reply.text, client.clock.epoch_us(perf_counter_ns())))
    found: dict[str, Any] = {}
    for name, kind in _LABELS.items():
        with suppress(KeyError, ValueError):
            found[name] = labels[name] == "True" if kind is bool else kind(labels[name])
    found |= _of_models(await fetched("/v1/models"))
    version = _entry(await fetched("/version"), "version")
    found |= {} if version is None else {"version": version}
    config = _entry(await fetched("/server_info?config_format=json"), "vllm_config")
    configured = {name: _entry(_entry(config, part), key) for (part, key), name in _OF_CONFIG.items()}
    simulated = plausible_simulation(await fetched("/blis/settings"))
    return {**plausible(found), **plausible(configured), **given, **simulated}


async def interruptions_of_server(client: Client, headers: Mapping[str, str]) -> list[Any]:
    """Return when the engines of a simulated server were paused, resumed or emptied so far."""
    outcome = await client.fetch(get_bytes(client.server, "/blis/settings", headers), timeout_s=_TIMEOUT_S)
    published = plausible_simulation(outcome.reply.json()) if outcome.status == "ok" else {}
    found: list[Any] = published.get(INTERRUPTIONS, [])
    return found


def _of_models(listed: Any) -> dict[str, Any]:
    """Return the context of the first model, and its root: the checkpoint behind the served name."""
    with suppress(KeyError, IndexError, TypeError):
        return {"max_model_len": listed["data"][0].get("max_model_len"), "model": listed["data"][0].get("root")}
    return {}


def _entry(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


_WARM_CACHE_TIMEOUT_S = 1
_WARM_CACHE_MARGIN = 0.3
"""Share of the prompt tokens beyond the shared ones that the cache may hold: chat templates, blocks that are cut."""


async def metrics_page(client: Client, headers: Mapping[str, str]) -> MetricsReading | None:
    """Return the metrics of the server at this instant, None where there are none."""
    outcome = await client.fetch(get_bytes(client.server, "/metrics", headers), timeout_s=_WARM_CACHE_TIMEOUT_S)
    if outcome.reply.status_code != 200 or not outcome.reply.complete:
        return None
    return parse_reading(outcome.reply.text, client.clock.epoch_us(perf_counter_ns()))


def shared_share(plan: Sequence[PlannedRequest]) -> float:
    """The largest share of the prompt tokens of a plan that its own requests can leave in a prefix cache."""
    shared = sum(each.prefix_tokens + each.context_tokens for each in plan)
    return shared / max(1, sum(each.prefix_tokens + each.input_tokens for each in plan))


def warn_of_warm_cache(before: MetricsReading | None, after: MetricsReading | None, expected: float, seed: int) -> None:
    """Warn when the share of prompt tokens that the cache held between two readings is far above the expected one."""
    found = None if before is None or after is None else observed_hit_rate(before, after)
    if found is None or found["hit_rate"] <= expected + _WARM_CACHE_MARGIN:
        return
    warn(
        f"the server's prefix cache held {found['hit_rate']:.0%} of the prompt tokens, of which the requests share at "
        f"most {expected:.0%} with each other. An earlier run with --seed {seed} has sent these prompts, so TTFT is "
        "that of a warm cache. Give another --seed, or empty the cache (POST /reset_prefix_cache)"
    )
