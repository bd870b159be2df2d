"""What a server's metrics page says: vLLM's samples, the settings among them, and the hit rate between two readings."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

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
    for line in page.splitlines():
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
    """Those settings that the header of a trace has room for, where they can be true."""
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

    None when nothing was asked of the cache, or the counters began anew in between.
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
