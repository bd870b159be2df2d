"""Reads the server's metrics before, during and after a run into a file beside the recording."""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import orjson

from observe.client.client import Client
from observe.client.connection import CANCELLED
from observe.http.request import get_bytes
from observe.messages import warn
from traces import JsonLinesWriter

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_QUERIES = "vllm:prefix_cache_queries_total"
_HITS = "vllm:prefix_cache_hits_total"
_CACHE_SETTINGS = "vllm:cache_config_info{"
_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Reading:
    """vLLM's samples at an instant (Unix microseconds), by name with labels, without the buckets of histograms."""

    at_us: int
    samples: Mapping[str, float]

    def total(self, name: str) -> float:
        """The sum over all label sets of a metric."""
        return sum(value for key, value in self.samples.items() if key.partition("{")[0] == name)


def reading_of(page: str, at_us: int) -> Reading:
    """The samples of a page in Prometheus' text format; lines that are none are passed over."""
    samples = {}
    for line in page.split("\n"):
        name, _, value = line.rpartition(" ")
        if line.startswith("vllm:") and "_bucket{" not in name:
            try:
                samples[name] = float(value)
            except ValueError:
                continue
    return Reading(at_us, samples)


def cache_settings(reading: Reading) -> dict[str, str]:
    """The settings of the KV cache, as vLLM publishes them in the labels of a metric; empty where it does not."""
    for name in reading.samples:
        if name.startswith(_CACHE_SETTINGS):
            return {label: text for label, text in _LABEL.findall(name) if text != "None"}
    return {}


def header_settings(cache: Mapping[str, str], max_model_len: Any) -> dict[str, Any]:
    """Return the settings that the header of a trace has fields for, if they are plausible."""
    found: dict[str, Any] = {}
    for name, value, kind, most in (
        ("block_size", cache.get("block_size"), int, _MOST_TOKENS),
        ("gpu_memory_utilization", cache.get("gpu_memory_utilization"), float, 1),
        ("max_model_len", max_model_len if type(max_model_len) is int else None, int, _MOST_TOKENS),
    ):
        with suppress(ValueError):
            setting = kind(value or "")
            if 0 < setting <= most:
                found[name] = setting
    return found


def observed_hit_rate(before: Reading, after: Reading) -> dict[str, Any] | None:
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

    def __init__(self, client: Client, headers: Mapping[str, str], path: Path, *, resume: bool) -> None:
        self.num_failed = 0
        self.readings: list[Reading] = []
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
            warn(f"{self._client.server.url}/metrics has no metrics to read")
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
        if self.num_failed:
            warn(f"{self.num_failed} readings of the server's metrics failed")
        return None if len(self.readings) < 2 else observed_hit_rate(self.readings[0], self.readings[-1])

    async def _read(self) -> Reading | None:
        request = get_bytes(self._client.server, "/metrics", self._headers)
        outcome = await self._client.fetch(request, timeout_s=_TIMEOUT_S)
        # The body of any answer is read, whether or not it is JSON.
        if outcome.reply.status_code != 200 or not outcome.reply.complete:
            # One that the end of the run cut is followed by the last one.
            self.num_failed += outcome.kind != CANCELLED
            return None
        return reading_of(outcome.reply.text, self._client.clock.epoch_us(perf_counter_ns()))

    def _keep(self, reading: Reading, phase: str) -> None:
        self.readings = [*self.readings[:1], reading]
        self._write({"at_us": reading.at_us, "phase": phase, "samples": dict(reading.samples)})

    def _write(self, entry: Mapping[str, Any]) -> None:
        try:
            self._writer.write(orjson.dumps(entry).decode())
        except OSError as error:
            warn(f"the server's metrics cannot be written: {(error.strerror or str(error)).lower()}")


def _max_model_len(card: Any) -> Any:
    try:
        return card["data"][0]["max_model_len"]
    except (KeyError, IndexError, TypeError):
        return None
