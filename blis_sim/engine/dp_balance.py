"""The choice of a data-parallel rank for each request, as vLLM 0.33's internal load balancer makes it.

Each front end scores the ranks by the latest reported loads, which are up to 100 ms old, and by the requests that it
has sent itself since. Facts: vllm/v1/engine/core_client.py `DPLBAsyncMPClient`, vllm/v1/engine/coordinator.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blis_sim.engine.stats import EngineStats
from blis_sim.engine.units import Micros

REPORT_INTERVAL_US: Micros = 100_000
"""Least time between two reports of loads."""
IDLE_REPORT_INTERVAL_US: Micros = 5_000_000
"""Time after which loads that have not changed are reported again."""
STEP_REPORTS_US: Micros = 50_000
"""Ranks in lockstep are waited for this long, so that the loads of one forward pass are all there."""
PRESSURE_FROM = 0.5
"""KV cache usage up to which a queue counts for its length alone."""
PRESSURE_WEIGHT = 6.0


@dataclass(frozen=True, slots=True)
class RankLoad:
    """The load of a rank, reported at each change of its numbers of requests."""

    num_waiting: int = 0
    num_running: int = 0
    kv_usage_fraction: float = 0.0


def load_of(stats: EngineStats) -> RankLoad:
    """Return the current load of an engine."""
    return RankLoad(stats.num_waiting, stats.num_running, stats.kv_usage_fraction)


class LoadReports:
    """The coordinator: collects the loads of all ranks and computes when they are reported to the front ends.

    This is vLLM's rule for ranks that step independently, as those of models without experts do.
    """

    def __init__(self, num_ranks: int) -> None:
        self._loads = [RankLoad()] * num_ranks
        self._changed_at: Micros | None = None
        self._reported_at: Micros | None = None

    def report(self, rank: int, load: RankLoad, at: Micros) -> None:
        """Set the load of `rank` from `at` on. Nothing is reported unless the numbers of requests change."""
        known = self._loads[rank]
        if (load.num_waiting, load.num_running) == (known.num_waiting, known.num_running):
            return
        self._loads[rank] = load
        if self._changed_at is None:
            self._changed_at = at

    def due_at(self) -> Micros | None:
        """Return when the next report to the front ends is due; None before the first change."""
        if self._reported_at is None:
            return self._changed_at
        if self._changed_at is None:
            return self._reported_at + IDLE_REPORT_INTERVAL_US
        return max(self._changed_at, self._reported_at + REPORT_INTERVAL_US)

    def loads_due(self, at: Micros) -> tuple[RankLoad, ...]:
        """Return the loads reported to the front ends at `at`."""
        self._reported_at, self._changed_at = at, None
        return tuple(self._loads)


class LockstepReports:
    """The coordinator of ranks in lockstep: front ends get the loads as they were before the latest forward pass.

    Loads of a rank are stamped with the number of its forward pass. The loads of one pass are kept when the first
    report of the next arrives, and are those that front ends get.
    """

    def __init__(self, num_ranks: int) -> None:
        self._loads = [RankLoad()] * num_ranks
        self._before: tuple[RankLoad, ...] | None = None
        """The loads before the latest forward pass that a rank reported from; None once they were passed on."""
        self._stamp = (0, 0)
        self._has_changed = False
        self._changed_at: Micros = 0
        """Instant of the latest report."""
        self._reported_at: Micros = -IDLE_REPORT_INTERVAL_US

    def report(self, rank: int, load: RankLoad, stamp: tuple[int, int], at: Micros) -> None:
        """Take the load of `rank` from `at` on; `stamp` has its wave and how many forward passes that has had."""
        known = self._loads[rank]
        if (load.num_waiting, load.num_running) == (known.num_waiting, known.num_running):
            return
        if stamp > self._stamp:
            if self._has_changed:
                self._before = tuple(self._loads)
            self._stamp = stamp
        self._loads[rank] = load
        self._has_changed = True
        self._changed_at = at

    def due_at(self) -> Micros:
        """Return when the next report to the front ends is due, unless a report of a rank comes before."""
        if self._before is not None:
            return max(self._changed_at, self._reported_at + REPORT_INTERVAL_US)
        interval = REPORT_INTERVAL_US if self._has_changed else IDLE_REPORT_INTERVAL_US
        return max(max(self._changed_at, self._reported_at) + STEP_REPORTS_US, self._reported_at + interval)

    def loads_due(self, at: Micros) -> tuple[RankLoad, ...]:
        """Return the loads reported to the front ends at `at`."""
        self._reported_at = at
        if self._before is not None:
            loads, self._before = self._before, None
            return loads
        self._has_changed = False
        return tuple(self._loads)


class RankBalancer:
    """The load balancer of one of `num_front_ends` front ends, which decide independently."""

    def __init__(self, num_ranks: int, num_front_ends: int = 1, front_end: int = 0) -> None:
        self._num_front_ends = num_front_ends
        self._loads: Sequence[RankLoad] = [RankLoad()] * num_ranks
        self._num_sent = [0] * num_ranks
        """Requests sent to each rank since its load was reported, as if all front ends had sent as many."""
        self._num_unfinished = [0] * num_ranks
        self._start = num_ranks * front_end // num_front_ends

    def update_loads(self, loads: Sequence[RankLoad]) -> None:
        """Take the loads of a coordinator's report, which replace all assumptions made since the last report."""
        self._loads = loads
        self._num_sent = [0] * len(loads)

    def choose(self) -> int:
        """Return the rank with the lowest score for the next request. Each scan starts one rank further."""
        num_ranks = len(self._loads)
        order = [(self._start + offset) % num_ranks for offset in range(num_ranks)]
        rank = min(order, key=self.score)
        self._num_sent[rank] += self._num_front_ends
        self._start = (self._start + 1) % num_ranks
        self._num_unfinished[rank] += 1
        return rank

    def send_to(self, rank: int) -> None:
        """Count a request whose client chose the rank as unfinished there; nothing else changes."""
        self._num_unfinished[rank] += 1

    def finished(self, rank: int) -> None:
        """Count a request sent to `rank` as ended, with any outcome."""
        self._num_unfinished[rank] -= 1

    def score(self, rank: int) -> float:
        """Return the estimated requests of a rank, with a surcharge for a queue before a KV cache over half full."""
        load = self._loads[rank]
        num_waiting = load.num_waiting + self._num_sent[rank]
        score: float = max(self._num_front_ends * self._num_unfinished[rank], num_waiting + load.num_running)
        if num_waiting:
            score += num_waiting * PRESSURE_WEIGHT * max(0.0, load.kv_usage_fraction - PRESSURE_FROM)
        return score
