"""Data-parallel ranks that share experts: engines with queues and KV caches of their own whose steps begin together.

Each forward pass is one of all ranks, because experts wait for the tokens of all; a rank without work takes part with a
dummy batch. A wave of forward passes begins with a request on any rank and ends at an all-reduce, every
`SYNC_INTERVAL` passes, that finds no request anywhere.
Facts: vllm/v1/engine/core.py, `DPEngineCoreProc`; vllm/config/parallel.py, `dp_sync_interval`.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.dp_balance import LockstepReports, load_of
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import DUMMY_SHAPE, JointSteps, with_joint_steps
from blis_sim.engine.ranks import IndependentRanks, RankGroup
from blis_sim.engine.units import Micros

SYNC_INTERVAL = 16
"""Forward passes between two all-reduces that may end a wave."""
_MAX_EMPTY_FORWARDS = 4 * SYNC_INTERVAL
"""Empty forward passes in a row after which nothing changes until something other than a forward pass is due."""


class LockstepRanks(RankGroup):
    """Ranks whose forward passes begin together."""

    def __init__(self, engines: SequenceOf[Engine], steps: JointSteps) -> None:
        """`steps` is the part of the latency models that all engines share."""
        super().__init__(engines)
        self._steps = steps
        self._ranks = [engine.lockstep_scheduler() for engine in engines]
        self._runs_ahead = engines[0].config.async_scheduling
        self._reports = LockstepReports(len(engines))
        self._ends_at: Micros | None = None
        """Instant at which the forward pass under way ends; None between waves."""
        self._is_last = False
        """Whether the wave ends with the forward pass under way."""
        self._wave = 0
        self._num_forwards = 0
        """Forward passes of this wave that have begun."""
        self._num_empty = 0
        """Forward passes in a row for which no rank has a step."""
        self._executing: list[bool] = [False] * len(engines)
        """For each rank whether the forward pass under way computes a step of its own."""
        self._composed: list[bool] = [False] * len(engines)
        """For each rank whether it composed a step for the forward pass after it, with asynchronous scheduling."""
        self._was_idle = [False] * len(engines)
        """For each rank whether it had no request when the forward pass under way began."""

    def _do_due(self, at: Micros) -> None:
        """Do all of one instant: the end of a forward pass, arrivals, what engines have due, the next forward pass."""
        ends = at == self._ends_at
        if ends:
            self._end_forward(at)
        self._process_arrivals(at)
        for number, engine in enumerate(self._engines):
            due_at = engine.next_event_at()
            if due_at is not None and due_at <= at:
                self._note(number, engine.advance(at))
        if ends:
            self._report(self._num_processed + 1, at)
            self._begin_next_forward(at)
        elif self._ends_at is None:
            self._begin_wave(at)
        for number, engine in enumerate(self._engines):
            self._note(number, engine.advance(at))

    def _next_forward_at(self) -> Micros | None:
        return self._ends_at

    def _update_loads(self, at: Micros) -> None:
        while (due_at := self._reports.due_at()) <= at:
            self._balancer.update_loads(self._reports.loads_due(due_at))

    def _report(self, num_forwards: int, at: Micros) -> None:
        """Let each rank report how many requests it has, after `num_forwards` forward passes of the wave."""
        for rank, engine in enumerate(self._engines):
            self._reports.report(rank, load_of(engine.stats), (self._wave, num_forwards), at)

    # --- forward passes ---

    @property
    def _num_processed(self) -> int:
        """The number that ranks stamp loads with when they have processed the outputs of a forward pass."""
        return self._num_forwards - (not self._runs_ahead)

    def _begin_wave(self, at: Micros) -> None:
        """Begin a wave of forward passes if there are requests."""
        if not self._has_work():
            return
        self._wave += 1
        self._num_forwards = self._num_empty = 0
        self._was_idle = [False] * len(self._ranks)
        self._report(0, at)
        self._composed = self._compose(at)
        self._begin_forward(at)
        if self._runs_ahead:
            self._report(0, at)

    def _end_forward(self, at: Micros) -> None:
        """Process the outputs of the forward pass under way."""
        for rank, has_step in zip(self._ranks, self._executing, strict=True):
            if has_step:
                rank.end_forward(at)
        self._report(self._num_processed, at)

    def _begin_next_forward(self, at: Micros) -> None:
        """Begin the forward pass after the one that ended, or the next wave."""
        if not self._runs_ahead:
            self._is_last = self._is_wave_over()
        if self._is_last or self._num_empty > _MAX_EMPTY_FORWARDS:
            self._ends_at = None
            if self._is_last:
                self._begin_wave(at)
            return
        if not self._runs_ahead:
            self._composed = self._compose(at)
        self._begin_forward(at)

    def _has_work(self) -> bool:
        return any(rank.has_work for rank in self._ranks)

    def _is_wave_over(self) -> bool:
        """Whether an all-reduce follows the latest forward pass and finds no request on any rank."""
        return self._num_forwards % SYNC_INTERVAL == 0 and not self._has_work()

    def _compose(self, at: Micros) -> list[bool]:
        """Compose a forward pass. Returns for each rank whether it has a step in it.

        A rank without requests has decided on its dummy batch one forward pass ahead of the others, except where it
        waited for them in an all-reduce.
        """
        number = self._num_forwards
        is_ahead = number % SYNC_INTERVAL != 0
        composed: list[bool] = []
        for rank, was_idle in zip(self._ranks, self._was_idle, strict=True):
            composed.append(not (is_ahead and was_idle) and rank.compose_forward(at, number))
        self._was_idle = [not rank.has_work for rank in self._ranks]
        return composed

    def _begin_forward(self, at: Micros) -> None:
        """Begin the composed forward pass on all ranks, which ends when the slowest of them is done.

        With asynchronous scheduling the one after it is composed now.
        """
        self._executing = executing = self._composed
        self._num_forwards += 1
        self._num_empty = 0 if any(executing) else self._num_empty + 1
        ranks = list(zip(self._ranks, self._engines, executing, strict=True))
        self._steps.shapes = [rank.forward_shape(at) if has_step else DUMMY_SHAPE for rank, _, has_step in ranks]
        ends_at = at + 1
        for rank, engine, has_step in ranks:
            own_end = rank.begin_forward(at) if has_step else at + engine.latency.step_time(DUMMY_SHAPE)
            ends_at = max(ends_at, own_end)
        for rank, _, has_step in ranks:
            if has_step:
                rank.record_forward(at, ends_at)
        self._ends_at = ends_at
        if self._runs_ahead:
            self._is_last = self._is_wave_over()
            self._composed = self._compose(at)


def new_ranks(
    config: EngineConfig,
    latency: LatencyModel,
    num_ranks: int,
    new_engine: Callable[[EngineConfig, LatencyModel], Engine] = Engine,
    shares_experts: bool = True,
) -> RankGroup:
    """Return `num_ranks` engines of one configuration. If they share experts, their steps are timed together."""
    if not shares_experts:
        return IndependentRanks([new_engine(config, latency) for _ in range(num_ranks)])
    shared, steps = with_joint_steps(latency)
    return LockstepRanks([new_engine(config, shared) for _ in range(num_ranks)], steps)
