"""From --collectives to times of exchanges, to the all-reduces of a latency model, and to steps with exchanges."""

import dataclasses
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.choice import TABLES, NetworkOptions
from blis_sim.engine.latency.collectives.analytical import Analytical, fabric_of, read_busbw, read_ratios
from blis_sim.engine.latency.collectives.network import Collective, Group, Network
from blis_sim.engine.latency.collectives.packet_simulation import PacketSimulation
from blis_sim.engine.latency.collectives.topology import TEMPLATES, check_topology, topology
from blis_sim.engine.latency.decode_sums import DecodeSums
from blis_sim.engine.latency.kernels.grids import TOKEN_CLASSES, KernelGrids
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.operators.tables import Line
from blis_sim.engine.latency.step_work import ALL_TO_ALL_BACKENDS
from blis_sim.engine.latency.wrapped import RanksLatencyModel
from blis_sim.engine.specs import GpuSpec, ModelSpec
from blis_sim.engine.units import Micros
from blis_sim.options.files import read_text


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


EXCHANGES_PER_LAYER = 2
"""All-reduces of a layer: after attention and after the MLP."""


def network_of(options: NetworkOptions, gpu: GpuSpec, tp: int, pp: int = 1) -> Network | None:
    """Return the network of the options; None where tables have the times. Raises EngineError.

    Experts are shared by GPUs side by side, those of tensor parallelism included.
    """
    name, _, place = options.collectives.partition(":")
    if name == TABLES:
        return None
    if name == "busbw":
        return read_busbw(place)
    if name == "analytical":
        return Analytical(fabric_of(gpu, 1), read_ratios(place) if place else None)
    return _packet_simulation(options, place, gpu, tp, pp)


class ExchangeLine(Line):
    """The time of an all-reduce over the tokens of a step, in milliseconds."""

    __slots__ = ("_bytes_per_token", "_network", "_tp")

    def __init__(self, network: Network, tp: int, bytes_per_token: float) -> None:
        super().__init__([1], [0.0])
        self._network = network
        self._tp = tp
        self._bytes_per_token = bytes_per_token

    def at(self, place: float) -> float:
        size_bytes = int(place * self._bytes_per_token)
        return self._network.time_ns(Collective.ALL_REDUCE, Group.TP, self._tp, size_bytes) / 1e6


def exchange_line(network: Network, model: ModelSpec, tp: int) -> ExchangeLine:
    """Return the line of a model's all-reduces."""
    return ExchangeLine(network, tp, model.hidden_size * model.bytes_per_activation)


def with_exchanges(grids: KernelGrids, network: Network, model: ModelSpec, tp: int) -> KernelGrids:
    """Return measured kernels with the all-reduces of a network in place of the measured ones."""
    line = exchange_line(network, model, tp)
    token_us = np.array(grids.token_us)
    exchanges_us = [line.at(tokens) * 1e3 * EXCHANGES_PER_LAYER * grids.num_layers for tokens in grids.tokens]
    token_us[TOKEN_CLASSES.index("all_reduce")] = exchanges_us
    return dataclasses.replace(grids, token_us=token_us)


def _packet_simulation(options: NetworkOptions, command: str, gpu: GpuSpec, tp: int, pp: int) -> PacketSimulation:
    words = shlex.split(command)
    found = shutil.which(words[0]) if words else None
    if found is None:
        raise EngineError(
            f"--collectives ns3: {command} is not installed; build SimAI_simulator of SimAI and give its path"
        )
    # The program runs in a folder of its own.
    rest = [str(Path(word).resolve()) if Path(word).is_file() else word for word in words[1:]]
    topology_of = partial(_topology, options.topology, gpu)
    topology_of(tp * pp)  # a wrong file is reported before the run
    return PacketSimulation(
        command=shlex.join([str(Path(found).absolute()), *rest]),
        topology_of=topology_of,
        config=_text(str(options.network_config), "--network-config"),
        pp=pp,
        cache=Path.home() / ".cache" / "blis" / "packet-simulations",
    )


def _topology(name: str, gpu: GpuSpec, num_gpus: int) -> str:
    template = TEMPLATES.get(name)
    if template is None:
        if not Path(name).is_file():
            raise EngineError(f"--topology must be a file or one of {', '.join(TEMPLATES)}, got {name}")
        text = _text(name, "--topology")
        check_topology(text, name)
        return text
    servers = -(-num_gpus // gpu.gpus_per_node)
    text = topology(template, servers * gpu.gpus_per_node, gpu.name.split("-")[0], gpu.gpus_per_node)
    check_topology(text, f"--topology {name}")
    return text


def _text(path: str, flag: str) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{flag} {path}: {error}") from None
