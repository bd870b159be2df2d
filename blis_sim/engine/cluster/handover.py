"""Prefill/decode disaggregation: prefill instances compute prompts, decode instances continue after a transfer.

With BLIS's scheduling the rules are BLIS's (sim/cluster/pd_events.go): a transfer starts together with the last step
of a prompt and reserves KV blocks for the whole prompt at once. With vLLM's scheduling a transfer starts when the last
step of the prompt has ended, and the decode instance allocates blocks when it schedules the request.
"""

from array import array
from collections import Counter
from dataclasses import dataclass

from blis_sim.engine.cluster.cluster import Cluster
from blis_sim.engine.cluster.disaggregation import DECIDERS, DisaggregationSettings, Prompt, Role, TransferNetwork
from blis_sim.engine.cluster.event_queue import ClusterEventKind
from blis_sim.engine.cluster.instance import InstanceState
from blis_sim.engine.cluster.reporting import NO_INSTANCE_PREFILLS
from blis_sim.engine.cluster.routing import Router
from blis_sim.engine.request import ExternalPrompt, Request, SharedPromptBlocks
from blis_sim.engine.sequence import Outcome, Sequence
from blis_sim.engine.units import Micros

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
    prefill instance; events of sub-requests are not reported outside of the cluster.
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
        self._pools = settings.pools
        self._prefill_router = prefill_router or cluster.router
        self._handovers: dict[str, Handover] = {}
        """Unfinished handovers by request id."""
        self._prefilling: dict[int, list[Handover]] = {number: [] for number in settings.pools.prefill}
        self._num_ended = dict.fromkeys(settings.pools.prefill, 0)
        """Instant of the latest look at each prefill instance."""
        self._reserves = all(engine.config.engine == "blis" for engine in cluster.instances)
        cluster.disaggregation = self
        cluster.place = self._place
        cluster.hides_prefill_sub_requests = True
        cluster.departed.append(self._leave)
        cluster.state.restrict(settings.pools.decode)
        prompts = self._prefill_router
        cluster.require_reports(prompts.reads_snapshots or prompts.reads_in_flight, self._decider.reads_caches)
        for number in settings.pools.prefill:
            cluster.watchers.add(number, self._on_step)

    @property
    def roles(self) -> tuple[Role | None, ...]:
        """The role of each instance by number; None for one that computes prompts and answers as without pools."""
        return self._pools.roles

    def has_handover(self, number: int) -> bool:
        """Whether an instance is the decode instance of an unfinished handover. Cost: O(handovers)."""
        return any(handover.decode == number for handover in self._handovers.values())

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
        with cluster.state.only(self._pools.prefill) as candidates:
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
        num_ended = sum(self._cluster.members[number].engine.counters.ended.values())
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
        engine = self._cluster.members[handover.decode].engine
        if self._reserves and not engine.reserve(sequence):
            sequence.instance = handover.decode
            self._end_in_transfer(
                handover, Outcome.DROPPED, at, "too few free KV blocks for its prompt on the decode instance"
            )
            return
        handover.is_in_transfer = True
        num_blocks = engine.config.num_prompt_blocks(sequence.input_tokens)
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
        del self._handovers[sequence.request.id]
        if self._reserves:
            sequence.instance = number
            member.engine.enqueue_reserved(sequence, at)
            self._cluster.members.update_next_event(number)
        else:
            request = sequence.request
            sequence.replace_request(request._replace(external=ExternalPrompt(request.input_tokens, 0)))
            self._cluster.members.enter(number, sequence, at)

    def _release_reservation(self, handover: Handover, at: Micros) -> None:
        """Free the blocks reserved for a prompt in transfer, after everything the instance does before `at`."""
        if self._reserves:
            self._cluster.members.catch_up(at - 1)
            self._cluster.members[handover.decode].engine.release_reservation(handover.sequence)

    def _end_in_transfer(self, handover: Handover, outcome: Outcome, at: Micros, detail: str) -> None:
        self.ended_in_transfer[outcome] += 1
        self._end(handover, outcome, at, detail)

    def _end(self, handover: Handover, outcome: Outcome, at: Micros, detail: str) -> None:
        del self._handovers[handover.sequence.request.id]
        self._cluster.end(handover.sequence, outcome, at, detail)

    def _leave(self, sequence: Sequence, at: Micros) -> None:
        """End the handover of a request whose client hung up before the request reached its decode instance."""
        handover = self._handovers.pop(sequence.request.id, None)
        if handover is None or handover.prompt is None:
            return
        if handover.is_in_transfer:
            self._release_reservation(handover, at)
        elif handover.prompt.outcome is None:
            self._cluster.abort_at_instance(handover.prompt, at)
