"""Replicas that compute prompts and replicas that decode, with the transfer of KV caches between them.

Facts: vidur-alibabacloud, vidur/events/batch_end_event.py and vidur/entities/replica.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from blis_sim.bench import BenchError
from blis_sim.bench.vidur.catalogue import VidurModel
from blis_sim.bench.vidur.replica import BatchTime, Entry, EventQueue, StagedReplica, TimedJob
from blis_sim.engine.scheduler.batch_rules import BatchRules
from replay.metrics_dir.tables import KVTransfer

WIDTHS = {"fp8": 1, "int8": 1, "float16": 2, "fp16": 2, "bfloat16": 2, "bf16": 2, "float32": 4, "fp32": 4}
WIDTHS |= {"float64": 8, "fp64": 8}
"""Bytes of an element by the name of its type."""
_ORIGINAL_GBIT = 2**30
"""Bits per second that SimAI takes a Gbit/s for."""
_GBIT = 10**9


def bytes_per_s(gbit_s: float, *, is_original: bool) -> float:
    """Return the rate of a link."""
    return gbit_s * (_ORIGINAL_GBIT if is_original else _GBIT) / 8


@dataclass(frozen=True, slots=True)
class Transfers:
    """The links between replicas, and the KV cache that they carry."""

    model: VidurModel
    bytes_per_s: float
    dtype: str
    is_original: bool

    def of(self, prompt_tokens: int) -> KVTransfer:
        """Return the transfer of a prompt on a link of its own."""
        width = WIDTHS[self.dtype]
        size_bytes = width * self._values(prompt_tokens)
        return KVTransfer(
            size_bytes=size_bytes,
            duration_s=size_bytes / self.bytes_per_s,
            bytes_per_s=self.bytes_per_s,
            bytes_per_value=width,
            dtype=self.dtype,
        )

    def _values(self, prompt_tokens: int) -> int:
        """Return the elements of a KV cache.

        The original counts the first output token, and full heads in all layers of all models.
        """
        model = self.model
        per_token = 2 * model.num_kv_heads * model.head_size * model.num_layers
        if self.is_original:
            return (prompt_tokens + 1) * per_token
        return prompt_tokens * per_token if model.experts is None else model.experts.kv_values(prompt_tokens)


def transfers_of(model: VidurModel, replica: dict[str, Any], *, is_original: bool) -> Transfers:
    """Return the transfers of a configuration. Raises BenchError."""
    dtype = replica["pd_p2p_comm_dtype"]
    if dtype not in WIDTHS:
        raise BenchError(f"--replica_config_pd_p2p_comm_dtype must be one of {', '.join(WIDTHS)}, got {dtype!r}")
    rate = bytes_per_s(replica["pd_p2p_comm_bandwidth"], is_original=is_original)
    return Transfers(model, rate, dtype, is_original)


SendPrompt = Callable[[TimedJob, float], None]


class PrefillReplica(StagedReplica):
    """A replica that hands each request over when its prompt is computed."""

    def __init__(
        self,
        rules: BatchRules,
        time: BatchTime,
        event_queue: EventQueue,
        num_stages: int,
        send_prompt: SendPrompt,
        *,
        keeps_members: bool = False,
    ) -> None:
        super().__init__(rules, time, event_queue, num_stages, keeps_members=keeps_members)
        self._send_prompt = send_prompt

    def _end(self, at: float, entry: Entry) -> None:
        super()._end(at, entry)
        for job in self.rules.take_ready():
            assert isinstance(job, TimedJob)
            self.rules.free(job)
            self._send_prompt(job, at)
        self.log.correct_held_blocks(self.rules.blocks.num_used_blocks)


class KVLinks:
    """Transfers of KV caches to decode replicas, over one link of each prefill replica."""

    def __init__(self, decode: Sequence[StagedReplica], event_queue: EventQueue, transfers: Transfers) -> None:
        self._decode = decode
        self._event_queue = event_queue
        self._transfers = transfers
        self._free_at: dict[int, float] = {}
        """When the link of a replica has taken what was given to it."""

    def send_prompt(self, job: TimedJob, at: float) -> None:
        """Send the KV cache of a prompt, which is complete at `at`."""
        assert job.decode_replica is not None
        transfer = job.transfer = self._transfers.of(job.prompt_tokens)
        replica = self._decode[job.decode_replica]
        if self._transfers.is_original:
            # The request waits there at once: a batch that begins before its KV cache arrives may take it along.
            replica.arrive(job)
            job.decode_arrived_at = at + transfer.duration_s
            self._event_queue.plan(job.decode_arrived_at, replica.schedule)
            return
        arrives_at = max(at, self._free_at.get(job.replica, 0.0)) + transfer.duration_s
        self._free_at[job.replica] = job.decode_arrived_at = arrives_at

        def arrive(then: float) -> None:
            replica.arrive(job)
            self._event_queue.plan(then, replica.schedule)

        self._event_queue.plan(arrives_at, arrive)


def pair_chooser(num_prefill: int, num_decode: int) -> Callable[[TimedJob], int]:
    """Return what gives each request a replica of both kinds in turn, as it arrives."""
    turns = count()

    def choose(job: TimedJob) -> int:
        turn = next(turns)
        job.decode_replica = turn % num_decode
        return turn % num_prefill

    return choose
