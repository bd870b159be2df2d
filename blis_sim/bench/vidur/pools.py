"""Replicas that compute prompts and replicas that decode, with the transfer of KV caches between them."""

from collections.abc import Callable, Sequence
from itertools import count

from blis_sim.bench.vidur.replica import BatchTime, TimedJob
from blis_sim.bench.vidur.staged import Clockwork, Entry, StagedReplica
from blis_sim.bench.vidur.transfers import Transfers
from blis_sim.engine.scheduler.batch_rules import BatchRules

HandOver = Callable[[TimedJob, float], None]


class PrefillReplica(StagedReplica):
    """Is done with a request when its prompt is computed."""

    def __init__(
        self,
        rules: BatchRules,
        time: BatchTime,
        clockwork: Clockwork,
        num_stages: int,
        hand_over: HandOver,
        *,
        keeps_members: bool = False,
    ) -> None:
        super().__init__(rules, time, clockwork, num_stages, keeps_members=keeps_members)
        self._hand_over = hand_over

    def _end(self, at: float, entry: Entry) -> None:
        super()._end(at, entry)
        for job in self.rules.take_ready():
            assert isinstance(job, TimedJob)
            self.rules.free(job)
            self._hand_over(job, at)
        self.log.hold_instead(self.rules.blocks.num_used_blocks)


class KVLinks:
    """Takes KV caches to the replicas that decode, over one link of each replica that computes prompts."""

    def __init__(self, decode: Sequence[StagedReplica], clockwork: Clockwork, transfers: Transfers) -> None:
        self._decode = decode
        self._clockwork = clockwork
        self._transfers = transfers
        self._free_at: dict[int, float] = {}
        """When the link of a replica has taken what was given to it."""

    def hand_over(self, job: TimedJob, at: float) -> None:
        """Send the KV cache of a prompt, which is complete at `at`."""
        assert job.decode_replica is not None
        transfer = job.transfer = self._transfers.of(job.prompt_tokens)
        replica = self._decode[job.decode_replica]
        if self._transfers.is_original:
            # The request waits there at once: a batch that begins before its KV cache arrives may take it along.
            replica.arrive(job)
            job.decode_arrived_at = at + transfer.duration_s
            self._clockwork.plan(job.decode_arrived_at, replica.schedule)
            return
        arrives_at = max(at, self._free_at.get(job.replica, 0.0)) + transfer.duration_s
        self._free_at[job.replica] = job.decode_arrived_at = arrives_at

        def arrive(then: float) -> None:
            replica.arrive(job)
            self._clockwork.plan(then, replica.schedule)

        self._clockwork.plan(arrives_at, arrive)


def pair_chooser(num_prefill: int, num_decode: int) -> Callable[[TimedJob], int]:
    """Return what gives each request a replica of both kinds in turn, as it arrives."""
    turns = count()

    def choose(job: TimedJob) -> int:
        turn = next(turns)
        job.decode_replica = turn % num_decode
        return turn % num_prefill

    return choose
