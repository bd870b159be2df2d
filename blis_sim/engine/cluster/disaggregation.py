"""Prefill/decode disaggregation: pools of instances, the decider, and transfers of KV blocks between instances."""

import math
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

from blis_sim.engine.cluster.cluster import NO_INSTANCE_PREFILLS, Cluster
from blis_sim.engine.cluster.event_queue import ClusterEventKind
from blis_sim.engine.cluster.instance import InstanceState
from blis_sim.engine.cluster.routing import Router
from blis_sim.engine.core import Engine
from blis_sim.engine.errors import EngineError
from blis_sim.engine.request import ExternalPrompt, Request, SharedPromptBlocks
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros
from blis_sim.options.option import LONGEST_BASE_LATENCY_MS, SLOWEST_GB_PER_S

# Settings of prefill/decode disaggregation: pools of instances, the decider, and the network between instances.
#
# A new decider is one function and one row of `DECIDERS`.


class Role(StrEnum):
    """The part of a request that an instance computes under prefill/decode disaggregation."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "prefill-decode"
    ENCODE = "encode"


@dataclass(frozen=True, slots=True)
class Pools:
    """Number of instances of each role; roles follow each other in instance order. Raises EngineError."""

    num_instances: int
    num_prefill: int = 0
    num_decode: int = 0
    num_both: int = 0
    num_encode: int = 0

    def __post_init__(self) -> None:
        if self.num_assigned > self.num_instances:
            raise EngineError(
                f"--prefill-instances, --decode-instances, --prefill-decode-instances and --encode-instances must add "
                f"up to at most --num-instances ({self.num_instances}), got {self.num_assigned}"
            )
        if self.is_disaggregated and not (self.prefill and self.decode):
            raise EngineError(
                "separate pools need at least one instance for prefill and one for decode: "
                "give --prefill-instances and --decode-instances, or --prefill-decode-instances"
            )

    @property
    def num_assigned(self) -> int:
        return self.num_prefill + self.num_decode + self.num_both + self.num_encode

    @property
    def is_disaggregated(self) -> bool:
        """Whether any instance has a role."""
        return bool(self.num_assigned)

    @property
    def prefill(self) -> tuple[int, ...]:
        """Numbers of the instances that may compute prompts for others."""
        return tuple(index for index, role in enumerate(self.roles) if role in (Role.PREFILL, Role.BOTH))

    @property
    def decode(self) -> tuple[int, ...]:
        """Numbers of the instances that may decode."""
        return tuple(index for index, role in enumerate(self.roles) if role in (Role.DECODE, Role.BOTH))

    @property
    def roles(self) -> tuple[Role | None, ...]:
        """Role of each instance by number; None for an instance in no pool, which gets no requests."""
        sizes = (self.num_prefill, self.num_decode, self.num_both, self.num_encode)
        roles: list[Role | None] = [None] * self.num_instances
        for role, (first, end) in zip(Role, pairwise((0, *accumulate(sizes))), strict=True):
            roles[first:end] = [role] * (end - first)
        return tuple(roles)


class Prompt(NamedTuple):
    """Input of a decider. `num_cached_tokens` are those that the router expects in the decode instance's cache."""

    num_tokens: int
    num_cached_tokens: int
    threshold_tokens: int


Separates: TypeAlias = Callable[[Prompt], bool]
"""Whether a prefill instance computes the prompt."""


@dataclass(frozen=True, slots=True)
class Decider:
    """A decision per prompt, and whether it depends on cached tokens."""

    separates: Separates
    reads_caches: bool = False


def never(_prompt: Prompt) -> bool:
    """Let the decode instance compute every prompt."""
    return False


def always(_prompt: Prompt) -> bool:
    """Let a prefill instance compute every prompt, even one that the decode instance has in its cache."""
    return True


def prefix_threshold(prompt: Prompt) -> bool:
    """Let a prefill instance compute a prompt if the decode instance misses more tokens than the threshold."""
    return prompt.num_tokens - prompt.num_cached_tokens > prompt.threshold_tokens


DECIDERS: dict[str, Decider] = {
    "never": Decider(never),
    "always": Decider(always),
    "prefix-threshold": Decider(prefix_threshold, reads_caches=True),
}
"""Deciders by name."""


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """The network between instances. Raises EngineError for bandwidth or latency out of bounds."""

    gb_per_s: float = 25.0
    base_latency_ms: float = 0.05
    is_shared: bool = False
    """Whether transfers under way at the same time share the bandwidth."""

    def __post_init__(self) -> None:
        if not SLOWEST_GB_PER_S <= self.gb_per_s < math.inf:
            raise EngineError(f"the transfer bandwidth must be at least {SLOWEST_GB_PER_S:g} GB/s, got {self.gb_per_s}")
        if not 0 <= self.base_latency_ms <= LONGEST_BASE_LATENCY_MS:
            raise EngineError(
                f"the transfer latency must be from 0 to {LONGEST_BASE_LATENCY_MS:g} ms, got {self.base_latency_ms}"
            )


class TransferNetwork:
    """Transfers under way. A transfer's share of the bandwidth is fixed when it starts, as in BLIS."""

    __slots__ = ("_settings", "bytes_per_block", "most_active", "num_active", "num_ended", "num_started")

    def __init__(self, settings: TransferSettings, bytes_per_block: float) -> None:
        self._settings = settings
        self.bytes_per_block = bytes_per_block
        self.num_active = 0
        self.most_active = 0
        self.num_started = 0
        self.num_ended = 0

    def start(self, num_blocks: int) -> Micros:
        """Start a transfer of `num_blocks`. Returns its duration, at least one microsecond."""
        self.num_started += 1
        self.num_active += 1
        self.most_active = max(self.most_active, self.num_active)
        gb_per_s = self._settings.gb_per_s
        if self._settings.is_shared:
            gb_per_s /= self.num_active
        base_us = self._settings.base_latency_ms * 1000
        return max(1, math.ceil(base_us + num_blocks * self.bytes_per_block / (gb_per_s * 1000)))

    def end(self) -> None:
        """Count the end of one transfer."""
        self.num_active -= 1
        self.num_ended += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggregationSettings:
    """Pools, decider and network of a cluster. Raises EngineError for an unknown decider."""

    pools: Pools
    decider: str = "never"
    threshold_tokens: int = 0
    transfer: TransferSettings = field(default_factory=TransferSettings)

    def __post_init__(self) -> None:
        if self.decider not in DECIDERS:
            raise EngineError(f"the P/D decider must be one of {', '.join(DECIDERS)}, got {self.decider!r}")


# Prefill/decode disaggregation: prefill instances compute prompts, decode instances continue after a transfer.
#
# With BLIS's scheduling the rules are BLIS's (sim/cluster/pd_events.go): a transfer starts together with the last
# step of a prompt and reserves KV blocks for the whole prompt at once. With vLLM's scheduling a transfer starts when
# the last step of the prompt has ended, and the decode instance allocates blocks when it schedules the request.

PROMPT_SUFFIX = "_prefill"
_COMPUTED = frozenset({Outcome.COMPLETED, Outcome.LENGTH_CAPPED})


@dataclass(slots=True, eq=False)
class Handover:
    """A request whose prompt a prefill instance computes."""

    sequence: Sequence
    decode: int
    """Number of the decode instance."""
    prompt: Sequence | None = None
    """The prefill sub-request, once it has been routed."""
    is_in_transfer: bool = False


class Disaggregation:
    """Splits requests of `cluster` into a prefill sub-request and the rest.

    Routing picks the decode instance first. If the decider separates the prompt, a sub-request of its own goes to a
    prefill instance. Events of sub-requests are not reported outside of the cluster.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: DisaggregationSettings,
        bytes_per_block: float,
        prefill_router: Router | None = None,
        keeps_history: bool = True,
    ) -> None:
        """`keeps_history` is for reports: a server, which runs for good, keeps no requests that have ended."""
        self.network = TransferNetwork(settings.transfer, bytes_per_block)
        self.transfer_us = array("q")
        """Duration of each transfer."""
        self.ended_in_transfer: Counter[Outcome] = Counter()
        """Requests that ended between two instances, except those whose clients hung up."""
        self.separated: list[Sequence] = []
        """Requests whose prompt was routed to a prefill instance; `prompt_part` is the prefill sub-request."""
        self._keeps_history = keeps_history
        self._cluster = cluster
        self._decider = DECIDERS[settings.decider]
        self._threshold_tokens = settings.threshold_tokens
        self.roles = settings.pools.roles
        """Role of each instance by number; None for one that computes prompts and answers as without pools."""
        self._prefill = settings.pools.prefill
        self._prefill_router = prefill_router or cluster.router
        self._handovers: dict[str, Handover] = {}
        """Unfinished handovers by request id."""
        self._prefilling: dict[int, list[Handover]] = {number: [] for number in settings.pools.prefill}
        self._num_ended = dict.fromkeys(settings.pools.prefill, 0)
        """Instant of the latest look at each prefill instance."""
        self._reserves = all(engine.config.engine == "blis" for engine in cluster.instances)
        cluster.add_part(self)
        cluster.awaits_requests.append(self.has_handover)
        cluster.place = self._place
        cluster.hides_prefill_sub_requests = True
        cluster.departed.append(self._leave)
        cluster.state.restrict(settings.pools.decode)
        cluster.state.counts_awaited = not self._reserves  # BLIS counts a request when its transfer has ended
        prompts = self._prefill_router
        cluster.require_reports(
            snapshots=prompts.reads_snapshots or prompts.reads_in_flight,
            caches=prompts.reads_caches or self._decider.reads_caches,
            adapters=prompts.reads_adapters,
        )
        for number in settings.pools.prefill:
            cluster.watchers.add(number, self._on_step)

    @property
    def engine_roles(self) -> list[Role | None]:
        """The role of each engine by number; None for one that computes prompts and answers as without pools."""
        roles, members = self.roles, self._cluster.members
        numbers = [members.number_of(number) for number in range(len(self._cluster.instances))]
        return [roles[number] if number < len(roles) else None for number in numbers]

    def has_handover(self, number: int) -> bool:
        """Whether an instance is the decode instance of an unfinished handover."""
        return self._cluster.members[number].num_awaited > 0

    @property
    def num_in_transfer(self) -> int:
        return sum(handover.is_in_transfer for handover in self._handovers.values())

    @property
    def num_dropped(self) -> int:
        """Number of requests whose decode instance had too few free KV blocks for the prompt."""
        return self.ended_in_transfer[Outcome.DROPPED]

    def _place(self, sequence: Sequence, number: int, at: Micros) -> None:
        """Send a routed request to its decode instance, or its prompt to a prefill instance first."""
        if not self._separates(sequence.request, number):
            self._cluster.enter(sequence, number, at)
            return
        handover = Handover(sequence, number)
        self._handovers[sequence.request.id] = handover
        self._cluster.members[number].num_awaited += 1
        if self._cluster.admission.routed is not None:
            self._cluster.admission.routed(sequence)
        self._cluster.event_queue.add(at, ClusterEventKind.PREFILL_ROUTING, self._route_prompt, handover)

    def _separates(self, request: Request, number: int) -> bool:
        state, num_cached_tokens = self._cluster.state, 0
        if self._decider.reads_caches:
            place = next(place for place, each in enumerate(state.candidates) if each.instance == number)
            block_size = self._cluster.members[number].engine.config.block_size_tokens
            num_cached_tokens = state.cached_blocks(request)[place] * block_size
        return self._decider.separates(Prompt(request.input_tokens, num_cached_tokens, self._threshold_tokens))

    def _route_prompt(self, handover: object, at: Micros) -> None:
        assert isinstance(handover, Handover)
        sequence, cluster = handover.sequence, self._cluster
        if sequence.outcome is not None:
            return
        cluster.refresh_snapshots_if_needed(at)
        with cluster.state.only(self._prefill) as candidates:
            if not candidates:
                self._end(handover, Outcome.REJECTED, at, NO_INSTANCE_PREFILLS)
                cluster.counters.num_rejected_at_routing += 1
                return
            number = candidates[self._prefill_router.choose(sequence.request, cluster.state).place].instance
        if number == handover.decode:
            sequence.replace_request(self._with_shareable_blocks(sequence.request, number))
        handover.prompt = prompt = Sequence(self._prompt_of(sequence.request), sequence.arrived_at)
        prompt.is_prefill_subrequest = True
        sequence.prompt_part = prompt
        if self._keeps_history:
            self.separated.append(sequence)
        self._prefilling[number].append(handover)
        cluster.members.enter(number, prompt, at)

    def _prompt_of(self, request: Request) -> Request:
        """Return the prefill sub-request: the prompt alone, or with one token, which vLLM always computes."""
        num_tokens = 0 if self._reserves else min(1, request.output_tokens)
        return request._replace(
            id=request.id + PROMPT_SUFFIX, output_tokens=num_tokens, max_output_tokens=num_tokens, external=None
        )

    def _with_shareable_blocks(self, request: Request, number: int) -> Request:
        """Return the request with blocks that its prefill sub-request on the same instance can share."""
        num_blocks = request.input_tokens // self._cluster.members[number].engine.config.block_size_tokens
        return request._replace(blocks=SharedPromptBlocks(request.blocks, num_blocks))

    def _on_step(self, number: int, at: Micros) -> None:
        """Start transfers of the prompts that a prefill instance has finished since the last look."""
        num_ended = self._cluster.members[number].engine.num_ended
        if num_ended == self._num_ended[number]:
            return
        self._num_ended[number] = num_ended
        still_under_way: list[Handover] = []
        for handover in self._prefilling[number]:
            if handover.prompt is None or handover.prompt.outcome is None:
                still_under_way.append(handover)
            else:
                self._cluster.event_queue.add(at, ClusterEventKind.TRANSFER_STARTED, self._start_transfer, handover)
        self._prefilling[number] = still_under_way

    def _start_transfer(self, handover: object, at: Micros) -> None:
        assert isinstance(handover, Handover)
        sequence, prompt = handover.sequence, handover.prompt
        if sequence.outcome is not None:
            return
        assert prompt is not None
        assert prompt.outcome is not None
        if prompt.outcome not in _COMPUTED:
            self._end(handover, prompt.outcome, at, "while its prompt was computed")
            return
        self._cluster.members.catch_up(at - 1)
        if self._reserves and not self._engine_of(handover.decode).reserve(sequence):
            sequence.instance = handover.decode
            self._end_in_transfer(
                handover, Outcome.DROPPED, at, "too few free KV blocks for its prompt on the decode instance"
            )
            return
        handover.is_in_transfer = True
        config = self._cluster.members[handover.decode].engine.config
        num_blocks = config.num_prompt_blocks(sequence.input_tokens)
        transfer_us = self.network.start(num_blocks)
        if self._keeps_history:
            self.transfer_us.append(transfer_us)
        self._cluster.event_queue.add(
            at + transfer_us, ClusterEventKind.TRANSFER_COMPLETED, self._complete_transfer, handover
        )

    def _complete_transfer(self, handover: object, at: Micros) -> None:
        assert isinstance(handover, Handover)
        self.network.end()
        sequence, number = handover.sequence, handover.decode
        if sequence.outcome is not None:
            return
        member = self._cluster.members[number]
        if member.state is InstanceState.KILLED:
            self._release_reservation(handover, at)
            self._end_in_transfer(handover, Outcome.FAILED, at, "its decode instance is gone")
            return
        self._remove(sequence)
        if self._reserves:
            sequence.instance = number
            self._engine_of(number).enqueue_reserved(sequence, at)
            self._cluster.members.update_next_event(number)
        else:
            request = sequence.request
            sequence.replace_request(request._replace(external=ExternalPrompt(request.input_tokens, 0)))
            self._cluster.members.enter(number, sequence, at)

    def _release_reservation(self, handover: Handover, at: Micros) -> None:
        """Free the blocks reserved for a prompt in transfer, after everything the instance does before `at`."""
        if self._reserves:
            self._cluster.members.catch_up(at - 1)
            self._engine_of(handover.decode).release_reservation(handover.sequence)

    def _engine_of(self, number: int) -> Engine:
        """Return the engine of an instance with BLIS's scheduling, which has no ranks of its own."""
        engine = self._cluster.members[number].engine
        assert isinstance(engine, Engine)
        return engine

    def _end_in_transfer(self, handover: Handover, outcome: Outcome, at: Micros, detail: str) -> None:
        self.ended_in_transfer[outcome] += 1
        self._end(handover, outcome, at, detail)

    def _end(self, handover: Handover, outcome: Outcome, at: Micros, detail: str) -> None:
        self._remove(handover.sequence)
        self._cluster.end(handover.sequence, outcome, at, detail)

    def _remove(self, sequence: Sequence) -> Handover | None:
        """Remove the handover of a request, if it has one, for its decode instance awaits the request no longer."""
        handover = self._handovers.pop(sequence.request.id, None)
        if handover is not None:
            self._cluster.members[handover.decode].num_awaited -= 1
        return handover

    def _leave(self, sequence: Sequence, at: Micros) -> None:
        """End the handover of a request whose client hung up before the request reached its decode instance."""
        handover = self._remove(sequence)
        if handover is None or handover.prompt is None:
            return
        if handover.is_in_transfer:
            self._release_reservation(handover, at)
        elif handover.prompt.outcome is None:
            self._cluster.abort_at_instance(handover.prompt, at)
