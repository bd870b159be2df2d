"""The figures and files of a run: aggregate metrics, results per request. Field names and order are the original's."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from blis_sim.engine.core import Engine
from blis_sim.engine.sequence import Outcome
from blis_sim.engine.stats import EngineCounters
from blis_sim.options.addition import sequential_sum
from replay.analysis.breakdown import deadline_figures
from replay.analysis.clusters import columns_of, engine_names, hit_rate, totals_of, without_prefill_requests
from replay.simulation.record import NEVER, Pool, Record, RequestRecord, pool_of, pool_of_known
from replay.simulation.simulate import Simulated
from traces import ResultRow

JsonObject = dict[str, Any]
_REFUSED = frozenset({Outcome.DROPPED, Outcome.REJECTED})


def result_rows(record: Record, says_when_sent: bool = False) -> Iterator[ResultRow]:
    """One row per request with an E2E, ascending by number; of a repeated one the last stays."""
    places = np.flatnonzero(record.e2e_us != NEVER)
    numbers = record.numbers[places]
    order = np.argsort(numbers, kind="stable")
    is_last = np.append(numbers[order][1:] != numbers[order][:-1], [True] * bool(len(order)))
    places = places[order[is_last.astype(np.bool_)]]
    for each in record.entries(places):
        assert each.ttft_us is not None
        assert each.e2e_us is not None
        yield ResultRow(
            request_id=each.number,
            ttft_us=each.ttft_us,
            e2e_us=each.e2e_us,
            input_tokens=each.input_tokens,
            output_tokens=each.output_tokens if each.is_completed else each.planned_output_tokens,
            slo_class=each.row.slo_class,
            model=each.row.model,
            itl_mean_us=each.itl_mean_us or None,
            sent_at_us=each.arrived_at if says_when_sent else None,
        )


CLUSTER = "cluster"
"""The name of all instances together, even of a single one."""


def aggregate(simulated: Simulated, instance: int | None = None) -> JsonObject:
    """The aggregate metrics of a run or of one instance; the names of durations have their units."""
    simulation, record = simulated.simulation, simulated.requests
    engines = [engine for number, engine in enumerate(simulation.instances) if instance in (None, number)]
    totals = totals_of(engines) if instance is not None else without_prefill_requests(totals_of(engines), simulation)
    columns = columns_of(simulated, instance)
    num_completed = int(columns.is_completed.sum())
    ended = totals.ended
    duration_s = (simulation.clock if instance is None else engines[0].clock) / 1e6
    output_tokens = totals.output_tokens
    per_second = (lambda amount: amount / duration_s) if num_completed and duration_s > 0 else (lambda amount: 0)
    metrics: JsonObject = {
        "instance_id": CLUSTER if instance is None else engine_names(simulation)[instance],
        "completed_requests": num_completed,
        "still_queued": totals.num_waiting,
        "still_running": totals.num_running,
        "injected_requests": sum(ended.values()) + totals.num_waiting + totals.num_running,
        "total_input_tokens": totals.input_tokens,
        "total_output_tokens": output_tokens,
        "vllm_estimated_duration_s": duration_s,
        "responses_per_sec": per_second(num_completed),
        "tokens_per_sec": per_second(output_tokens),
        **_latency_json("e2e", pool_of_known(columns.e2e_us)),
        **_latency_json("ttft", pool_of_known(columns.ttft_us)),
        **_latency_json("itl", record.tokens.gaps(instance)),
        "scheduling_delay_p99_ms": pool_of_known(columns.scheduling_delay_us).percentile_ms(99),
    }
    if totals.num_kv_allocation_failures:
        metrics["kv_allocation_failures"] = totals.num_kv_allocation_failures
    metrics["preemption_count"] = totals.num_preemptions
    metrics["dropped_unservable"] = ended[Outcome.DROPPED]
    metrics["length_capped_requests"] = ended[Outcome.LENGTH_CAPPED]
    metrics["timed_out_requests"] = ended[Outcome.TIMED_OUT]
    if ended[Outcome.FAILED]:
        metrics["failed_requests"] = ended[Outcome.FAILED]
    if any(engine.config.speculation is not None for engine in engines):
        metrics |= {
            "spec_decode_num_drafts": totals.num_drafts,
            "spec_decode_num_draft_tokens": totals.num_draft_tokens,
            "spec_decode_num_accepted_tokens": totals.num_accepted_tokens,
            "spec_decode_num_accepted_tokens_per_pos": totals.num_accepted_per_position,
        }
        metrics |= _draft_estimates(engines, totals)
    if instance is None and engines and engines[0].config.uses_deadlines:
        metrics |= deadline_figures(record, engines[0].config.urgency).as_json()
    return metrics


def cache_hit_rate(simulated: Simulated) -> float:
    """The share of prompt tokens found in the prefix cache, 0 when none were looked for: the mean of the instances.

    Tokens that are loaded from CPU memory with vLLM's scheduling count as found.
    """
    engines = simulated.simulation.instances
    return sequential_sum(map(hit_rate, engines)) / len(engines) if engines else 0.0


def metrics_file(simulated: Simulated, metrics: JsonObject, judged: JsonObject) -> JsonObject:
    """Return the aggregate metrics with the cache hit rate, one row per request by arrival, and the `judged` entries.

    Rows are generated lazily. Refused requests have no row.
    """
    detailed: JsonObject = {}
    for key, value in metrics.items():
        detailed[key] = value
        if key == "preemption_count":
            detailed["cache_hit_rate"] = cache_hit_rate(simulated)
    names = engine_names(simulated.simulation)
    rows = (
        _request_row(each, names)
        for each in simulated.requests
        if each.outcome not in _REFUSED or each.e2e_us is not None
    )
    return {**detailed, "requests": rows, **judged}


def adapter_figures(simulated: Simulated) -> JsonObject:
    """Return loads, latencies and throughput of each adapter that was loaded."""
    engines = simulated.simulation.instances
    loads = sum((engine.counters.adapters.loads for engine in engines), Counter[str]())
    if not loads:
        return {}
    evictions = sum((engine.counters.adapters.evictions for engine in engines), Counter[str]())
    ttft_us: dict[str, list[int]] = {}
    num_output_tokens: Counter[str] = Counter()
    for each in simulated.requests:
        name = each.row.adapter or each.row.model
        if name in loads:
            ttft_us.setdefault(name, []).extend(() if each.ttft_us is None else (each.ttft_us,))
            num_output_tokens[name] += each.output_tokens if each.is_completed else 0
    duration_s = simulated.simulation.clock / 1e6
    return {
        name: {
            "load_count": loads[name],
            "eviction_count": evictions[name],
            "ttft_p50_us": pool_of(np.array(ttft_us[name])).percentile_ms(50) * 1000,
            "ttft_p99_us": pool_of(np.array(ttft_us[name])).percentile_ms(99) * 1000,
            "throughput_tok_per_s": num_output_tokens[name] / duration_s if duration_s > 0 else 0,
        }
        for name in sorted(ttft_us)
    }


def _latency_json(name: str, pool: Pool) -> JsonObject:
    return {
        f"{name}_mean_ms": pool.mean_ms(),
        f"{name}_p90_ms": pool.percentile_ms(90),
        f"{name}_p95_ms": pool.percentile_ms(95),
        f"{name}_p99_ms": pool.percentile_ms(99),
    }


def _draft_estimates(engines: Iterable[Engine], counters: EngineCounters) -> JsonObject:
    """Gain of drafts by arithmetic, beside the measured gain, where a draft cost or gates are given."""
    speculation = next(each.config.speculation for each in engines if each.config.speculation is not None)
    if speculation.gates is None and speculation.draft_cost is None:
        return {}
    return {
        "spec_decode_expected_accepted_per_draft": round(speculation.expected_accepted_tokens, 4),
        "spec_decode_accepted_per_draft": round(counters.num_accepted_tokens / max(1, counters.num_drafts), 4),
        "spec_decode_theoretical_speedup": round(speculation.theoretical_speedup, 4),
    }


def _request_row(each: RequestRecord, names: Sequence[str]) -> JsonObject:
    row = each.row
    optional = {
        "slo_class": row.slo_class,
        "tenant_id": row.tenant_id,
        "handled_by": names[each.instance] if each.instance >= 0 else "",
        "model": row.model,
        "adapter": row.adapter,
        "length_capped": each.outcome is Outcome.LENGTH_CAPPED,
        "gateway_queue_delay_ms": each.gateway_wait_us / 1000,
        "session_id": row.session_id,
    }
    return {
        "arrived_at": each.arrived_at / 1e6,
        "requestID": each.id,
        "num_prefill_tokens": each.input_tokens,
        "num_decode_tokens": each.planned_output_tokens,
        "ttft_ms": (each.ttft_us or 0) / 1000,
        "itl_ms": each.itl_mean_us / 1000,
        "e2e_ms": (each.e2e_us or 0) / 1000,
        "scheduling_delay_ms": (each.scheduling_delay_us or 0) / 1000,
        **{key: value for key, value in optional.items() if value},
        "round_index": row.round_index,
    }
