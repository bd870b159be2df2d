"""The figures per request from which aggregates are made: of a whole run, or as one of its instances saw it."""

from typing import NamedTuple

import numpy as np

from blis_sim.engine.sequence import NOWHERE, Sequence
from replay.analysis.clusters import cluster_of
from replay.simulation.measure import COMPLETED, ClientView, Latencies
from replay.simulation.record import NEVER, Bools, Ints
from replay.simulation.simulate import Simulated


class Columns(NamedTuple):
    """One entry per request; `NEVER` for durations of what has not happened."""

    is_completed: Bools
    ttft_us: Ints
    e2e_us: Ints
    scheduling_delay_us: Ints


def columns_of(simulated: Simulated, instance: int | None = None) -> Columns:
    """Return the columns of all requests, or of those that an instance served in part or in whole."""
    record, simulation = simulated.requests, simulated.simulation
    columns = Columns(record.is_completed, record.ttft_us, record.e2e_us, record.scheduling_delay_us)
    if instance is None:
        return columns
    is_its = record.instance == instance
    cluster = cluster_of(simulation)
    if cluster is None or cluster.disaggregation is None:
        return Columns(*(column[is_its] for column in columns))
    separated = cluster.disaggregation.separated
    view = ClientView(simulation.instances[instance])
    parts = _prompts(view, instance, separated)
    if view.engine.config.engine == "blis":
        ids = {sequence.request.id for sequence in separated}
        is_its &= np.array([request_id not in ids for request_id in record.ids], np.bool_)
        parts += _answers(view, instance, separated)
    whole = Columns(*(column[is_its] for column in columns))
    return Columns(*(np.concatenate(both) for both in zip(whole, _columns(parts), strict=True)))


def _prompts(view: ClientView, instance: int, separated: list[Sequence]) -> list[tuple[Sequence, Latencies]]:
    """Return the prefill sub-requests of an instance."""
    prompts = [each.prompt_part for each in separated]
    its = [each for each in prompts if each is not None and each.instance == instance]
    return [(each, view.latencies(each, each.first_token_at or NEVER)) for each in its]


def _answers(view: ClientView, instance: int, separated: list[Sequence]) -> list[tuple[Sequence, Latencies]]:
    """Return the requests of a decode instance. In BLIS these have no first token, only step times."""
    answers = []
    for each in separated:
        if each.instance == instance != NOWHERE:
            ttft_us, e2e_us, itl_mean_us, delay_us, num_tokens = view.latencies(each, NEVER)
            if not each.num_preemptions and ttft_us != NEVER:
                ttft_us, e2e_us = NEVER, e2e_us if e2e_us == NEVER else e2e_us - ttft_us
            answers.append((each, (ttft_us, e2e_us, itl_mean_us, delay_us, num_tokens)))
    return answers


def _columns(parts: list[tuple[Sequence, Latencies]]) -> Columns:
    latencies = [each for _, each in parts]
    return Columns(
        np.array([sequence.outcome in COMPLETED for sequence, _ in parts], np.bool_),
        np.array([ttft_us for ttft_us, _, _, _, _ in latencies], np.int64),
        np.array([e2e_us for _, e2e_us, _, _, _ in latencies], np.int64),
        np.array([delay_us for _, _, _, delay_us, _ in latencies], np.int64),
    )
