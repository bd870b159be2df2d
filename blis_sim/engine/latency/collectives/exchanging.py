"""Steps with the exchanges of a network: all-reduces of tensor parallelism, and the ways of tokens to experts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.collectives.network import Collective, Group, Network
from blis_sim.engine.latency.decode_sums import DecodeSums
from blis_sim.engine.latency.joint_steps import RanksLatencyModel
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.step_work import ALL_TO_ALL_BACKENDS
from blis_sim.engine.model_spec import ModelSpec
from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True)
class StepExchanges:
    """The exchanges of all layers of a deployment.

    With data parallelism the GPUs of all ranks share the experts: tokens go to those that they are routed to, or to
    all of them, as `moe_comm_backend` says, and the results come back. Without it they are summed up as after an MLP.
    """

    network: Network
    model: ModelSpec
    tp: int
    dp: int
    moe_comm_backend: str
    _known_us: dict[int, Micros] = field(default_factory=dict)

    def micros(self, num_tokens: int) -> Micros:
        """Return the time of the exchanges for the tokens of all ranks. Raises EngineError."""
        found = self._known_us.get(num_tokens)
        if found is None:
            found = self._known_us[num_tokens] = int(self._time_ns(num_tokens) / 1e3)
        return found

    def _time_ns(self, num_tokens: int) -> float:
        model = self.model
        rank_bytes = -(-num_tokens // self.dp) * model.hidden_size * model.bytes_per_activation
        num_reduced = model.num_layers + model.num_dense_layers
        if self.dp == 1:
            num_reduced += model.num_moe_layers
            experts_ns = 0.0
        else:
            experts_ns = model.num_moe_layers * self._experts_ns(rank_bytes)
        return num_reduced * self._of(Collective.ALL_REDUCE, Group.TP, self.tp, rank_bytes) + experts_ns

    def _experts_ns(self, rank_bytes: float) -> float:
        """Return the time of both ways to the experts of one layer and back."""
        num_gpus = self.tp * self.dp
        if self.moe_comm_backend in ALL_TO_ALL_BACKENDS:
            sent_bytes = rank_bytes * max(1, self.model.num_experts_per_tok) / self.tp
            return 2 * self._of(Collective.ALL_TO_ALL, Group.EP, num_gpus, sent_bytes)
        ways = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
        return sum(self._of(each, Group.EP, num_gpus, rank_bytes * self.dp) for each in ways)

    def _of(self, collective: Collective, group: Group, num_gpus: int, size_bytes: float) -> float:
        return self.network.time_ns(collective, group, num_gpus, int(size_bytes)) if num_gpus > 1 else 0.0


@dataclass(slots=True)
class ExchangingSteps:
    """`model`, which has no exchanges of its own, with those of a network.

    No wrapper like others: ranks that share experts are timed together, their exchanges included.
    """

    model: LatencyModel
    exchanges: StepExchanges
    decode_sums: DecodeSums = field(default_factory=DecodeSums)

    def step_time(self, shape: BatchShape) -> Micros:
        return self.model.step_time(shape) + self.exchanges.micros(shape.num_tokens)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        times: npt.NDArray[np.int64] = self.model.decode_times(shape, steps)
        return times + self.exchanges.micros(shape.decode_requests)

    def ranks_time(self, shapes: Sequence[BatchShape]) -> Micros:
        """Return the duration of a forward pass in which each rank computes the batch of its shape."""
        largest = max(shape.num_tokens for shape in shapes)
        if isinstance(self.model, RanksLatencyModel):
            computed_us = self.model.ranks_time(shapes)
        else:
            computed_us = max(map(self.model.step_time, shapes))
        return computed_us + self.exchanges.micros(largest * self.exchanges.dp)

    def queueing_time(self, input_tokens: int) -> Micros:
        return self.model.queueing_time(input_tokens)

    @property
    def output_token_time(self) -> Micros:
        return self.model.output_token_time

    @property
    def output_sequence_time(self) -> Micros:
        return self.model.output_sequence_time

    @property
    def post_decode_time(self) -> Micros:
        return self.model.post_decode_time
