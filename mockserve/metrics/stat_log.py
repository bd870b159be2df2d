"""vLLM's log lines about throughput: one for each engine with activity, at a fixed interval."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mockserve.options.observability import in_vllm_form

if TYPE_CHECKING:
    from mockserve.metrics.page import MeasuredEngine

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Counters of one engine at the instant of a line."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _EngineLog:
    """The latest line of one engine."""

    counts: _Counts
    at_s: float
    was_active: bool = False


class StatLog:
    """Logs the throughput of engines every `interval_s` real seconds. Lines of idle engines have the level DEBUG."""

    def __init__(self, engines: "Mapping[int, MeasuredEngine]", interval_s: float) -> None:
        self._engines = engines
        self._interval_s = interval_s
        self._known: dict[int, _EngineLog] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start logging."""
        now_s = time.monotonic()
        self._known = {number: _EngineLog(_counts(each), now_s) for number, each in self._engines.items()}
        self._schedule()

    def end(self) -> None:
        """Stop logging."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def log(self, now_s: float) -> None:
        """Log one line for each engine; `now_s` is the present reading of a monotonic clock."""
        known, self._known = self._known, {}
        for number, engine in self._engines.items():
            self._known[number] = _log_engine(number, engine, known.get(number), now_s)

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._wake)

    def _wake(self) -> None:
        self.log(time.monotonic())
        self._schedule()


def _counts(engine: "MeasuredEngine") -> _Counts:
    metrics, counters = engine.metrics, engine.driver.engine.counters
    return _Counts(
        metrics.prompt_tokens_by_source["local_compute"],
        metrics.generation_tokens,
        counters.num_drafts,
        counters.num_draft_tokens,
        counters.num_accepted_tokens,
        tuple(counters.num_accepted_per_position),
    )


def _log_engine(number: int, engine: "MeasuredEngine", before: _EngineLog | None, now_s: float) -> _EngineLog:
    """Log the lines of one engine, and return what its next line needs."""
    counts = _counts(engine)
    if before is None:  # an engine that joined since the last line
        return _EngineLog(counts, now_s)
    span_s = now_s - before.at_s
    prompt_rate = _rate(counts.prompt_tokens - before.counts.prompt_tokens, span_s)
    generation_rate = _rate(counts.generation_tokens - before.counts.generation_tokens, span_s)
    is_active = bool(prompt_rate or generation_rate)
    level = logging.INFO if is_active or before.was_active else logging.DEBUG
    figures: dict[str, Any] = {"engine": number, "prompt_tokens_per_s": prompt_rate}
    figures |= {"generation_tokens_per_s": generation_rate}
    parts = [f"Avg prompt throughput: {prompt_rate:.1f} tokens/s"]
    parts += [f"Avg generation throughput: {generation_rate:.1f} tokens/s", *_state(engine)]
    line = in_vllm_form("loggers.py:335", **figures)
    _logger.log(level, "Engine %03d: %s", number, ", ".join(parts), extra=line)
    if counts.drafts > before.counts.drafts:
        drafts = _drafts(before.counts, counts, span_s)
        _logger.log(level, "SpecDecoding metrics: %s", drafts, extra=in_vllm_form("metrics.py:120", engine=number))
    return _EngineLog(counts, now_s, is_active)


def _rate(number: int, span_s: float) -> float:
    return number / span_s if span_s > 0 else 0.0


def _state(engine: "MeasuredEngine") -> list[str]:
    stats, metrics = engine.driver.engine.stats, engine.metrics
    parts = [f"Running: {stats.num_running} reqs", f"Waiting: {stats.num_waiting} reqs"]
    if stats.num_deferred:
        parts.append(f"Deferred: {stats.num_deferred} reqs")
    parts.append(f"GPU KV cache usage: {100 * stats.kv_usage_fraction:.1f}%")
    if (local := metrics.recent_hit_rate.percent) is not None:
        parts.append(f"Prefix cache hit rate: {local:.1f}%")
    if (external := metrics.recent_external_hit_rate.percent) is not None:
        parts.append(f"External prefix cache hit rate: {external:.1f}%")
    return parts


def _drafts(before: _Counts, after: _Counts, span_s: float) -> str:
    """Return the figures of speculative decoding between two instants."""
    num_drafts = after.drafts - before.drafts
    num_tokens = after.draft_tokens - before.draft_tokens
    num_accepted = after.accepted_tokens - before.accepted_tokens
    earlier = before.accepted_per_position or (0,) * len(after.accepted_per_position)
    rates = [(now - then) / num_drafts for now, then in zip(after.accepted_per_position, earlier, strict=True)]
    acceptance = 100 * num_accepted / num_tokens if num_tokens else float("nan")
    return (
        f"Mean acceptance length: {1 + num_accepted / num_drafts:.2f}, "
        f"Accepted throughput: {_rate(num_accepted, span_s):.2f} tokens/s, "
        f"Drafted throughput: {_rate(num_tokens, span_s):.2f} tokens/s, "
        f"Accepted: {num_accepted} tokens, Drafted: {num_tokens} tokens, "
        f"Per-position acceptance rate: {', '.join(f'{rate:.3f}' for rate in rates)}, "
        f"Avg Draft acceptance rate: {acceptance:.1f}%"
    )
