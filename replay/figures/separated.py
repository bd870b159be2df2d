"""The figures of a run in which prompts and answers were computed on different instances."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blis_sim.engine.sequence import Outcome
from blis_sim.engine.simulation import Simulation
from replay.figures.clustered import cluster_of
from replay.figures.distribution import Distribution, distribution
from replay.figures.totals import Totals
from replay.running.measure import COMPLETED
from replay.running.record import NEVER
from replay.running.simulate import Simulated

if TYPE_CHECKING:
    from blis_sim.engine.cluster.disaggregation.handover import Disaggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedFigures:
    """Durations in microseconds."""

    num_separated: int
    num_dropped: int
    """Requests whose decode instance had too few free KV blocks for the prompt."""
    prompts_per_s: float
    """Prompts computed for others."""
    answers_per_s: float
    """All requests completed."""
    ttft: Distribution
    """Of separated requests."""
    transfer: Distribution

    @property
    def imbalance(self) -> float:
        """How many times as much the busier half did; 0 when one did nothing."""
        least, most = sorted((self.prompts_per_s, self.answers_per_s))
        return most / least if least else 0.0


def separated_figures(simulated: Simulated, duration_s: float) -> SeparatedFigures | None:
    """Those of a finished run; None when no instance had a role."""
    disaggregation = disaggregation_of(simulated.simulation)
    if disaggregation is None:
        return None
    record = simulated.requests
    ids = {sequence.request.id for sequence in disaggregation.separated}
    is_separated = np.array([request_id in ids for request_id in record.ids], np.bool_)
    ttft_us = record.ttft_us
    num_prompts = sum(_computed_prompts(disaggregation).values())
    return SeparatedFigures(
        num_separated=len(ids),
        num_dropped=disaggregation.num_dropped,
        prompts_per_s=num_prompts / duration_s if duration_s else 0.0,
        answers_per_s=int(record.is_completed.sum()) / duration_s if duration_s else 0.0,
        ttft=distribution(ttft_us[is_separated & (ttft_us != NEVER)]),
        transfer=distribution(np.array(disaggregation.transfer_us, np.int64)),
    )


def without_prompts(totals: Totals, simulation: Simulation) -> Totals:
    """The totals of all instances of a cluster, in which each request counts once whatever it consisted of.

    Requests in transfer count as running.
    """
    disaggregation = disaggregation_of(simulation)
    if disaggregation is None:
        return totals
    for outcome, count in _computed_prompts(disaggregation).items():
        totals.ended[outcome] -= count
    for sequence in disaggregation.separated:
        prompt = sequence.prompt_part
        if prompt is not None and prompt.outcome in COMPLETED:
            totals.output_tokens -= prompt.num_output_tokens
    totals.num_running += disaggregation.num_in_transfer
    for outcome, count in disaggregation.ended_in_transfer.items():
        totals.ended[outcome] += count
    return totals


def disaggregation_of(simulation: Simulation) -> "Disaggregation | None":
    """What separated prompts from answers, if anything did."""
    cluster = cluster_of(simulation)
    return None if cluster is None else cluster.disaggregation


def _computed_prompts(disaggregation: "Disaggregation") -> Counter[Outcome]:
    """How prompts ended that were computed for others."""
    prompts = [sequence.prompt_part for sequence in disaggregation.separated]
    outcomes = [prompt.outcome for prompt in prompts if prompt is not None]
    return Counter(outcome for outcome in outcomes if outcome in COMPLETED)
