"""The counters of several instances, added up."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from blis_sim.engine.core import Engine
from blis_sim.engine.stats import EngineCounters


@dataclass(slots=True)
class Totals(EngineCounters):
    """Totals of all instances, and the instances that remain."""

    num_waiting: int = 0
    num_running: int = 0


def totals_of(engines: Iterable[Engine]) -> Totals:
    """The totals of these instances."""
    totals = Totals()
    for engine in engines:
        _add(totals, engine.counters)
        stats = engine.stats
        totals.num_waiting += stats.num_waiting
        totals.num_running += stats.num_running
    return totals


def _add(totals: Totals, counters: EngineCounters) -> None:
    for outcome, count in counters.ended.items():
        totals.ended[outcome] += count
    totals.num_enqueued += counters.num_enqueued
    totals.input_tokens += counters.input_tokens
    totals.output_tokens += counters.output_tokens
    totals.num_preemptions += counters.num_preemptions
    totals.num_kv_allocation_failures += counters.num_kv_allocation_failures
    totals.num_drafts += counters.num_drafts
    totals.num_draft_tokens += counters.num_draft_tokens
    totals.num_accepted_tokens += counters.num_accepted_tokens
    pairs = zip_longest(totals.num_accepted_per_position, counters.num_accepted_per_position, fillvalue=0)
    totals.num_accepted_per_position = [sum(pair) for pair in pairs]
