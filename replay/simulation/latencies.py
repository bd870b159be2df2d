"""Outcomes of many requests at once: the results of `ClientView` in columns."""

from collections.abc import Sequence as SequenceOf
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from blis_sim.engine.sequence import NOWHERE, Outcome, Sequence
from blis_sim.engine.units import Micros
from replay.simulation.measure import COMPLETED, NEVER, ClientView

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

OUTCOMES = tuple(Outcome)
NO_OUTCOME = -1
_CODES: dict[Outcome | None, int] = {None: NO_OUTCOME} | {outcome: code for code, outcome in enumerate(OUTCOMES)}
COMPLETED_CODES = [_CODES[outcome] for outcome in COMPLETED]

_STATE = attrgetter(
    "outcome", "instance", "num_output_tokens", "arrived_at", "queued_at", "scheduled_at", "first_token_at"
)


class Reported(NamedTuple):
    """Outcomes of some requests; latencies as in `Latencies`."""

    outcome: Ints
    """Place in `OUTCOMES`, or `NO_OUTCOME`."""
    ttft_us: Ints
    e2e_us: Ints
    scheduling_delay_us: Ints
    output_tokens: Ints
    instance: Ints
    queued_at: Ints
    itl_mean_us: Floats


def reported_of(
    sequences: SequenceOf[Sequence], ended_at: SequenceOf[Micros], views: SequenceOf[ClientView]
) -> Reported:
    """Outcomes of at least one request, each of which ended at its instant if it has.

    `views` are by number of instance. Requests that came to no instance have an outcome only.
    """
    outcomes, instances, num_tokens, *instants = zip(*map(_STATE, sequences), strict=True)
    arrived_at, queued_at, scheduled_at, first_token_at = map(_or_never, instants)
    outcome, instance = np.array([_CODES[each] for each in outcomes]), np.array(instances, np.int64)
    planned = np.array([each.request.output_tokens for each in sequences], np.int64)
    has_token = first_token_at != NEVER
    is_completed = has_token & np.isin(outcome, COMPLETED_CODES)
    has_output = is_completed & (planned > 0)
    ttft_us = first_token_at - arrived_at + np.array([view.output_token_time for view in views])[instance]
    after_us = np.where(has_output, np.array([view.post_decode_time for view in views])[instance], 0)
    between_us = np.array(ended_at, np.int64) - first_token_at
    _count_steps(between_us, is_completed, sequences, views)
    num_gaps = _num_decoded(sequences, outcome, planned) - 1
    reported = Reported(
        outcome,
        ttft_us=np.where(has_token, ttft_us, NEVER),
        e2e_us=np.where(is_completed, ttft_us + between_us + after_us, NEVER),
        scheduling_delay_us=np.where(scheduled_at != NEVER, scheduled_at - arrived_at, NEVER),
        output_tokens=np.where(is_completed, np.array(num_tokens, np.int64), 0),
        instance=instance,
        queued_at=queued_at,
        itl_mean_us=np.where(has_output, between_us / np.maximum(num_gaps, 1), 0.0),
    )
    for place in np.flatnonzero([each.prompt_part is not None for each in sequences]).tolist():
        _report_separated(reported, place, sequences[place], ended_at[place], views)
    return reported


def _or_never(instants: SequenceOf[Micros | None]) -> Ints:
    if None in instants:
        return np.array([NEVER if each is None else each for each in instants], np.int64)
    return np.array(instants, np.int64)


def _count_steps(
    between_us: Ints, is_completed: Bools, sequences: SequenceOf[Sequence], views: SequenceOf[ClientView]
) -> None:
    """Where BLIS counts, less than what has passed is between the first and the last token of a completed request."""
    if any(view.counts_steps for view in views):
        for place in np.flatnonzero(is_completed).tolist():
            view = views[sequences[place].instance]
            if view.counts_steps:
                between_us[place] = view.sum_of_steps(sequences[place])


def _num_decoded(sequences: SequenceOf[Sequence], outcome: Ints, planned: Ints) -> Ints:
    """How many tokens each completed request has got."""
    capped = np.flatnonzero(outcome == _CODES[Outcome.LENGTH_CAPPED]).tolist()
    if not capped:
        return planned
    planned = planned.copy()
    planned[capped] = [sequences[place].num_decoded_tokens for place in capped]
    return planned


def _report_separated(
    reported: Reported, place: int, sequence: Sequence, ended_at: Micros, views: SequenceOf[ClientView]
) -> None:
    """The request at `place` had its prompt computed on another instance than its answer."""
    assert sequence.prompt_part is not None
    if sequence.instance == NOWHERE:
        return
    view = views[sequence.instance]
    latencies = view.latencies_with_prompt_elsewhere(sequence, sequence.prompt_part, ended_at)
    columns = (
        reported.ttft_us,
        reported.e2e_us,
        reported.itl_mean_us,
        reported.scheduling_delay_us,
        reported.output_tokens,
    )
    for column, value in zip(columns, latencies, strict=True):
        column[place] = value
