"""The files and figures of a run: results per request, aggregate metrics. Field names and order are the original's."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from engine.sequence import Outcome
from engine.stats import EngineCounters
from replay.measure import Measured, Pool, itl_pool, pool_of
from replay.simulate import Simulated
from traces import ResultRow, TraceRow

JsonObject = dict[str, Any]


def result_rows(measured: Iterable[Measured]) -> list[ResultRow]:
    """One row per completed request, ascending by request id; of a repeated id the last one stays."""
    rows = {
        each.arrival.row.request_id: ResultRow(
            request_id=each.arrival.row.request_id,
            ttft_us=each.ttft_us,
            e2e_us=each.e2e_us,
            input_tokens=each.arrival.request.input_tokens,
            output_tokens=each.output_tokens,
            slo_class=each.arrival.row.slo_class,
            model=each.arrival.row.model,
            itl_mean_us=each.itl_mean_us or None,
        )
        for each in measured
        if each.ttft_us is not None and each.e2e_us is not None
    }
    return [rows[request_id] for request_id in sorted(rows)]


def aggregate(simulated: Simulated, measured: list[Measured]) -> JsonObject:
    """The aggregate metrics of a run; durations in the unit their names say."""
    engine = simulated.engine
    counters = engine.counters
    stats = engine.stats
    completed = [each for each in measured if each.is_completed]
    ended = counters.ended
    duration_s = engine.clock / 1e6
    output_tokens = counters.output_tokens
    per_second = (lambda amount: amount / duration_s) if completed and duration_s > 0 else (lambda amount: 0)
    metrics: JsonObject = {
        "instance_id": "cluster",
        "completed_requests": len(completed),
        "still_queued": stats.num_waiting,
        "still_running": stats.num_running,
        "injected_requests": sum(ended.values()) + stats.num_waiting + stats.num_running,
        "total_input_tokens": counters.input_tokens,
        "total_output_tokens": output_tokens,
        "vllm_estimated_duration_s": duration_s,
        "responses_per_sec": per_second(len(completed)),
        "tokens_per_sec": per_second(output_tokens),
        **_latencies("e2e", pool_of(each.e2e_us for each in completed if each.e2e_us is not None)),
        **_latencies("ttft", pool_of(each.ttft_us for each in measured if each.ttft_us is not None)),
        **_latencies("itl", itl_pool(simulated)),
        "scheduling_delay_p99_ms": pool_of(
            each.scheduling_delay_us for each in measured if each.scheduling_delay_us is not None
        ).percentile_ms(99),
    }
    if counters.num_kv_allocation_failures:
        metrics["kv_allocation_failures"] = counters.num_kv_allocation_failures
    metrics["preemption_count"] = counters.num_preemptions
    metrics["dropped_unservable"] = ended[Outcome.DROPPED]
    metrics["length_capped_requests"] = ended[Outcome.LENGTH_CAPPED]
    metrics["timed_out_requests"] = ended[Outcome.TIMED_OUT]
    if engine.config.speculation is not None:
        metrics |= _drafts(counters)
    return metrics


def metrics_file(simulated: Simulated, measured: list[Measured]) -> JsonObject:
    """The aggregate metrics with the cache hit rate and one row per request, by arrival.

    Requests that were refused, or would have arrived after the horizon, have no row.
    """
    metrics = aggregate(simulated, measured)
    hits, queried = simulated.engine.kv.hit_tokens, simulated.engine.kv.queried_tokens
    detailed: JsonObject = {}
    for key, value in metrics.items():
        detailed[key] = value
        if key == "preemption_count":
            detailed["cache_hit_rate"] = hits / queried if queried else 0
    seen_until = simulated.engine.now or 0
    detailed["requests"] = [
        _request_row(each) for each in measured if each.arrival.at <= seen_until and each.outcome is not Outcome.DROPPED
    ]
    return detailed


def trace_rows(simulated: Simulated, measured: Iterable[Measured]) -> list[TraceRow]:
    """The rows of a run as a trace: the requests with what became of them, numbered by arrival.

    Requests that would have arrived after the horizon have no row. The last chunk is that of the last token; the
    overhead after it, which is part of E2E, has no column.
    """
    seen_until = simulated.engine.now or 0
    post_decode_us = simulated.engine.latency.post_decode_time
    return [_trace_row(each, post_decode_us) for each in measured if each.arrival.at <= seen_until]


def _trace_row(each: Measured, post_decode_us: int) -> TraceRow:
    at, row = each.arrival.at, each.arrival.row
    first_us = last_us = 0
    if each.ttft_us is not None:
        first_us = last_us = at + each.ttft_us
    if each.e2e_us is not None:
        last_us = at + each.e2e_us - (post_decode_us if row.output_tokens else 0)
    status = "ok" if each.is_completed else "timeout" if each.outcome is Outcome.TIMED_OUT else "incomplete"
    return replace(row, first_chunk_time_us=first_us, last_chunk_time_us=last_us, status=status)


def _latencies(name: str, pool: Pool) -> JsonObject:
    return {
        f"{name}_mean_ms": pool.mean_ms(),
        f"{name}_p90_ms": pool.percentile_ms(90),
        f"{name}_p95_ms": pool.percentile_ms(95),
        f"{name}_p99_ms": pool.percentile_ms(99),
    }


def _drafts(counters: EngineCounters) -> JsonObject:
    """What became of drafted tokens, under the names that vLLM's metrics have."""
    return {
        "spec_decode_num_drafts": counters.num_drafts,
        "spec_decode_num_draft_tokens": counters.num_draft_tokens,
        "spec_decode_num_accepted_tokens": counters.num_accepted_tokens,
        "spec_decode_num_accepted_tokens_per_pos": counters.num_accepted_per_position,
    }


def _request_row(each: Measured) -> JsonObject:
    row = each.arrival.row
    optional = {
        "slo_class": row.slo_class,
        "tenant_id": row.tenant_id,
        "handled_by": "instance_0",
        "model": row.model,
        "adapter": row.adapter,
        "length_capped": each.outcome is Outcome.LENGTH_CAPPED,
        "session_id": row.session_id,
    }
    return {
        "arrived_at": each.arrival.at / 1e6,
        "requestID": each.arrival.request.id,
        "num_prefill_tokens": each.arrival.request.input_tokens,
        "num_decode_tokens": each.arrival.request.output_tokens,
        "ttft_ms": (each.ttft_us or 0) / 1000,
        "itl_ms": each.itl_mean_us / 1000,
        "e2e_ms": (each.e2e_us or 0) / 1000,
        "scheduling_delay_ms": (each.scheduling_delay_us or 0) / 1000,
        **{key: value for key, value in optional.items() if value},
        "round_index": row.round_index,
    }
