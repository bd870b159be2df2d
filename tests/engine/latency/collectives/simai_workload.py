"""Workload files of SimAI, read and timed: what its published run is compared with."""

import gzip
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from blis_sim.engine.latency.collectives import Collective, Group, Network


class Exchange(NamedTuple):
    """A collective of a layer."""

    collective: Collective
    group: Group
    size_bytes: int


class Layer(NamedTuple):
    """The forward pass, the gradients of inputs and those of weights, each with its collective."""

    name: str
    compute_ns: int
    exchanges: tuple[Exchange | None, ...]


class Workload(NamedTuple):
    """All layers, and how they are spread over GPUs; `ga` are the micro-batches of a step."""

    tp: int
    ep: int
    pp: int
    vpp: int
    ga: int
    num_gpus: int
    layers: tuple[Layer, ...]

    def time_us(self, network: Network) -> float:
        """How long a step takes when nothing overlaps, with the time in which pipeline stages wait."""
        dp = max(1, self.num_gpus // (self.tp * self.pp))
        sizes = {Group.TP: self.tp, Group.EP: self.ep, Group.DP: dp, Group.DP_EP: max(1, dp // self.ep)}
        in_all_ns = waited_ns = 0.0
        for layer in self.layers:
            times = [
                network.time_ns(each.collective, each.group, sizes[each.group], each.size_bytes) if each else 0.0
                for each in layer.exchanges
            ]
            in_all_ns += layer.compute_ns + sum(times)
            if layer.name != "embedding_layer":
                waited_ns += layer.compute_ns + times[0] + times[1]
        return (in_all_ns + waited_ns * (self.pp - 1) / (self.ga * self.vpp)) / 1e3


def read_workload(path: Path) -> Workload:
    """The workload of a file, gzipped or not."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    first, num_layers, *lines = text.splitlines()
    settings = {name[:-1]: int(value) for name, value in pairwise(first.split()) if value.isdecimal()}
    layers = tuple(_layer(line.split()) for line in lines if line.strip())
    assert len(layers) == int(num_layers)
    tp, ep, pp = (max(1, settings.get(name, 1)) for name in ("model_parallel_NPU_group", "ep", "pp"))
    vpp, ga, num_gpus = (max(1, settings.get(name, 1)) for name in ("vpp", "ga", "all_gpus"))
    return Workload(tp, ep, pp, vpp, ga, num_gpus, layers)


def _layer(fields: list[str]) -> Layer:
    assert len(fields) == 12
    kinds = zip(fields[3:12:3], fields[4:12:3], (Group.TP, Group.TP, Group.DP), strict=True)
    return Layer(fields[0], sum(map(int, fields[2:9:3])), tuple(_exchanges(kinds)))


def _exchanges(kinds: Iterator[tuple[str, str, Group]]) -> Iterator[Exchange | None]:
    for kind, size_bytes, usual in kinds:
        name, _, group = kind.partition("_")
        known = None if kind == "NONE" else Collective(name.lower())
        yield None if known is None else Exchange(known, Group(group) if group else usual, int(size_bytes))
