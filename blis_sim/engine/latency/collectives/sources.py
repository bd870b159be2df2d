"""From --collectives to times of exchanges, and from these to the all-reduces of a latency model."""

import dataclasses
import shlex
import shutil
from functools import partial
from pathlib import Path

import numpy as np

from blis_sim.engine.errors import EngineError
from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.collectives.analytical import Analytical, fabric_of
from blis_sim.engine.latency.collectives.busbw_file import read_busbw
from blis_sim.engine.latency.collectives.network import Collective, Group, Network
from blis_sim.engine.latency.collectives.packet_simulation import PacketSimulation
from blis_sim.engine.latency.collectives.ratios import read_ratios
from blis_sim.engine.latency.collectives.topology import TEMPLATES, check_topology, topology
from blis_sim.engine.latency.kernels.grids import TOKEN_CLASSES, KernelGrids
from blis_sim.engine.latency.operators.tables import Line
from blis_sim.engine.model_spec import ModelSpec
from blis_sim.engine.network_options import TABLES, NetworkOptions

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
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{flag} {path}: {error}") from None
