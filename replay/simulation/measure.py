"""The client's view of one request, derived from the engine's step log at its end, and of many, in columns."""

from collections.abc import Sequence as SequenceOf
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from blis_sim.engine.core import Engine
from blis_sim.engine.delivery import output_delay
from blis_sim.engine.events import Finished
from blis_sim.engine.latency.model import output_turn_us
from blis_sim.engine.sequence import NOWHERE, Outcome, Sequence
from blis_sim.engine.simulation import Simulation
from blis_sim.engine.units import Micros

COMPLETED = frozenset({Outcome.COMPLETED, Outcome.LENGTH_CAPPED})


NEVER = -1
"""In place of a duration or an instant: it has not happened."""

Latencies: TypeAlias = tuple[Micros, Micros, float, Micros, int]
"""TTFT, E2E, mean ITL, scheduling delay, all in microseconds or `NEVER`, and output tokens of a completed request.

TTFT includes the queueing overhead before the engine and the output overhead of the first token; E2E ends with the last
token and the overhead after it. What tokens wait for the others of their step is not in it.
"""


class ClientView:
    """The clients' view of an engine. Its overheads are read once, because there are millions of requests."""

    __slots__ = ("_steps", "engine", "itl_from_steps", "output_token_time", "post_decode_time", "serializes_tokens")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.serializes_tokens = engine.latency.output_sequence_time > 0 or output_turn_us(engine.latency) > 0
        """Whether tokens wait for the others of their step."""
        self.output_token_time = engine.latency.output_token_time
        self.post_decode_time = engine.latency.post_decode_time
        self.itl_from_steps = engine.config.engine == "blis"
        self._steps = engine.steps

    def latencies(self, sequence: Sequence, at: Micros) -> Latencies:
        """The outcome of a request: complete when it ended at `at`, else the outcome so far."""
        arrived_at, first_token_at, scheduled_at = sequence.arrived_at, sequence.first_token_at, sequence.scheduled_at
        delay_us = NEVER if scheduled_at is None else scheduled_at - arrived_at
        if first_token_at is None:
            return NEVER, NEVER, 0.0, delay_us, 0
        ttft_us = first_token_at + self.output_token_time - arrived_at
        if sequence.outcome not in COMPLETED:
            return ttft_us, NEVER, 0.0, delay_us, 0
        itl_sum_us = self.sum_of_steps(sequence) if self.itl_from_steps else at - first_token_at
        num_planned = sequence.request.output_tokens
        if not num_planned:
            return ttft_us, ttft_us + itl_sum_us, 0.0, delay_us, sequence.num_output_tokens
        num_gaps = (num_planned if sequence.outcome is Outcome.COMPLETED else sequence.num_decoded_tokens) - 1
        e2e_us = ttft_us + itl_sum_us + self.post_decode_time
        return ttft_us, e2e_us, itl_sum_us / max(num_gaps, 1), delay_us, sequence.num_output_tokens

    def latencies_with_remote_prefill(self, sequence: Sequence, prompt: Sequence, at: Micros) -> Latencies:
        """The outcome of a request whose prompt another instance computed; its scheduling delay is that of the prompt.

        BLIS (projectPDMetrics) lets the first token come with the first step here that decodes. After a preemption
        the prompt has been computed here, and E2E counts from there.
        """
        ttft_us, e2e_us, itl_mean_us, own_delay_us, num_tokens = self.latencies(sequence, at)
        delay_us = NEVER if prompt.scheduled_at is None else prompt.scheduled_at - sequence.arrived_at
        if self.itl_from_steps:
            if own_delay_us == NEVER or not sequence.token_runs:
                return NEVER, NEVER, 0.0, delay_us, 0
            first_itl_us = self._steps.run_time(sequence.token_runs[0][0], 1) + self.output_token_time
            ttft_us = own_delay_us + first_itl_us
            if e2e_us != NEVER and sequence.num_preemptions == 0:
                e2e_us -= first_itl_us  # it is the end of the first token as well as the gap to the second
        return ttft_us, e2e_us, itl_mean_us, delay_us, num_tokens

    def latencies_of_dropped(self, sequence: Sequence, prompt: Sequence, at: Micros) -> Latencies:
        """The outcome of a request that was dropped after its prompt had been computed here.

        BLIS gives it the TTFT of its prompt, and an E2E that ends when it is dropped.
        """
        ttft_us, _, _, delay_us, _ = self.latencies(prompt, at)
        return ttft_us, at - sequence.arrived_at, 0.0, delay_us, 0

    def sum_of_steps(self, sequence: Sequence) -> Micros:
        """BLIS's time between the first and the last token of a request: it counts no time between steps.

        That is a step's duration plus one output overhead for each token, so that time in which a request got nothing
        is not part of it. With vLLM's scheduling it is what passes between the ends of its steps.
        """
        overheads_us = sequence.num_decoded_tokens * self.output_token_time
        return overheads_us + sum(self._steps.run_time(first, count) for first, count in sequence.token_runs)


def replied_at(simulation: Simulation, finished: Finished) -> Micros:
    """When the last token of a completed request reaches its client.

    How many other tokens its step produced is taken to be how many requests the next step computes. In an API server
    process it waits for the tokens of requests that run longer, not for those of the steps before.
    """
    engine = simulation.instances[finished.sequence.instance]
    num_tokens, num_outputs = finished.sequence.num_output_tokens, engine.last_shape.num_requests
    delay_us = output_delay(engine.config, engine.latency, max(1, num_tokens), num_outputs, is_last=num_tokens > 0)
    if turn_us := output_turn_us(engine.latency):
        number = finished.sequence.running_number
        num_before = sum(each.running and each.running_number < number for each in engine.live.values())
        delay_us += int((num_before + 1) * turn_us)
    return finished.at + delay_us


def token_times(engine: Engine, sequence: Sequence) -> npt.NDArray[np.int64]:
    """When tokens of a completed request reached its client, on the engine's clock, in microseconds.

    One instant per step that brought any, as the tokens of a step travel together.
    """
    assert sequence.first_token_at is not None
    overhead_us = engine.latency.output_token_time
    first_us = sequence.first_token_at + overhead_us
    if engine.config.engine == "blis":
        spans = [engine.steps.span(first, count) for first, count in sequence.token_runs]
        gaps_us = [ends - starts + overhead_us for starts, ends in spans]
        times_us = first_us + np.cumsum(np.concatenate([np.zeros(1, np.int64), *gaps_us]))
    else:
        times_us = np.concatenate([np.array([first_us]), engine.steps.ends_in(sequence.token_runs) + overhead_us])
    # A request without output ends where its first token would have come.
    return times_us[: sequence.num_output_tokens]


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

OUTCOMES = tuple(Outcome)
NO_OUTCOME = -1
_CODES: dict[Outcome | None, int] = {None: NO_OUTCOME} | {outcome: code for code, outcome in enumerate(OUTCOMES)}
COMPLETED_CODES = [_CODES[outcome] for outcome in COMPLETED]

_STATE = attrgetter(
    "outcome",
    "instance",
    "num_output_tokens",
    "num_cached_tokens",
    "arrived_at",
    "queued_at",
    "scheduled_at",
    "first_token_at",
)


class OutcomeColumns(NamedTuple):
    """Outcomes of some requests; latencies as in `Latencies`."""

    outcome: Ints
    """Place in `OUTCOMES`, or `NO_OUTCOME`."""
    ttft_us: Ints
    e2e_us: Ints
    scheduling_delay_us: Ints
    output_tokens: Ints
    instance: Ints
    queued_at: Ints
    cached_tokens: Ints
    """Prompt tokens found at the first admission."""
    itl_mean_us: Floats

    @property
    def completed_places(self) -> list[int]:
        """Places of the requests that have completed with a token."""
        is_completed = np.isin(self.outcome, COMPLETED_CODES) & (self.e2e_us != NEVER)
        return np.flatnonzero(is_completed).tolist()


def outcome_columns(
    sequences: SequenceOf[Sequence], ended_at: SequenceOf[Micros], views: SequenceOf[ClientView]
) -> OutcomeColumns:
    """Outcomes of at least one request, each of which ended at its instant if it has.

    `views` are by number of instance. Requests that came to no instance have an outcome only.
    """
    outcomes, instances, num_tokens, num_cached, *instants = zip(*map(_STATE, sequences), strict=True)
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
    reported = OutcomeColumns(
        outcome,
        ttft_us=np.where(has_token, ttft_us, NEVER),
        e2e_us=np.where(is_completed, ttft_us + between_us + after_us, NEVER),
        scheduling_delay_us=np.where(scheduled_at != NEVER, scheduled_at - arrived_at, NEVER),
        output_tokens=np.where(is_completed, np.array(num_tokens, np.int64), 0),
        instance=instance,
        queued_at=queued_at,
        cached_tokens=np.array(num_cached, np.int64),
        itl_mean_us=np.where(has_output, between_us / np.maximum(num_gaps, 1), 0.0),
    )
    for place in np.flatnonzero([each.prompt_part is not None for each in sequences]).tolist():
        _report_disaggregated(reported, place, sequences[place], ended_at[place], views)
    return reported


def _or_never(instants: SequenceOf[Micros | None]) -> Ints:
    if None in instants:
        return np.array([NEVER if each is None else each for each in instants], np.int64)
    return np.array(instants, np.int64)


def _count_steps(
    between_us: Ints, is_completed: Bools, sequences: SequenceOf[Sequence], views: SequenceOf[ClientView]
) -> None:
    """Where BLIS counts, less than what has passed is between the first and the last token of a completed request."""
    if any(view.itl_from_steps for view in views):
        for place in np.flatnonzero(is_completed).tolist():
            view = views[sequences[place].instance]
            if view.itl_from_steps:
                between_us[place] = view.sum_of_steps(sequences[place])


def _num_decoded(sequences: SequenceOf[Sequence], outcome: Ints, planned: Ints) -> Ints:
    """Return the number of output tokens of each completed request."""
    capped = np.flatnonzero(outcome == _CODES[Outcome.LENGTH_CAPPED]).tolist()
    if not capped:
        return planned
    planned = planned.copy()
    planned[capped] = [sequences[place].num_decoded_tokens for place in capped]
    return planned


def _report_disaggregated(
    reported: OutcomeColumns, place: int, sequence: Sequence, ended_at: Micros, views: SequenceOf[ClientView]
) -> None:
    """The request at `place` had its prompt computed on another instance than its answer."""
    prompt = sequence.prompt_part
    assert prompt is not None
    if sequence.instance == NOWHERE:
        return
    if sequence.outcome is Outcome.DROPPED:
        latencies = views[prompt.instance].latencies_of_dropped(sequence, prompt, ended_at)
    else:
        latencies = views[sequence.instance].latencies_with_remote_prefill(sequence, prompt, ended_at)
    columns = (
        reported.ttft_us,
        reported.e2e_us,
        reported.itl_mean_us,
        reported.scheduling_delay_us,
        reported.output_tokens,
    )
    for column, value in zip(columns, latencies, strict=True):
        column[place] = value
