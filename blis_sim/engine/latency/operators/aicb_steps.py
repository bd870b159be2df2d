"""The latency model of AICB's tables, and which of the tables of a folder are those of a deployment."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.model import whole_micros
from blis_sim.engine.latency.operators.aicb import (
    DECODE,
    DISPATCH_SHARE,
    PREFILL,
    AicbFolder,
    AicbTimes,
    Batch,
    Deployment,
    Exchanges,
    LinkExchanges,
    PhaseTables,
)
from blis_sim.engine.latency.operators.table_limits import BatchMaxima
from blis_sim.engine.units import Micros

if TYPE_CHECKING:
    from blis_sim.engine.latency.choice import LatencyChoice
    from blis_sim.engine.latency.collectives.network import Network


@dataclass(slots=True)
class AicbSteps:
    """A latency model of `times`: nothing but layers takes time. `notes` name the tables."""

    extrapolation: ClassVar[str] = "prompts go on with the last slope, decodes with the last time"

    times: AicbTimes
    notes: tuple[str, ...] = ()
    output_token_time: Micros = 0
    output_sequence_time: Micros = 0
    post_decode_time: Micros = 0
    _maxima: BatchMaxima = field(default_factory=BatchMaxima)

    def step_time(self, shape: BatchShape) -> Micros:
        decodes, prompt_tokens = shape.decode_requests, shape.prefill_tokens
        self._note(decodes, shape.decode_context_tokens, prompt_tokens + decodes if prompt_tokens else 0)
        return self._micros(prompt_tokens, decodes, shape.decode_context_tokens)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        decodes, context = shape.decode_requests, shape.decode_context_tokens
        self._note(decodes, context + decodes * (steps - 1), 0)
        return np.array([self._micros(0, decodes, context + step * decodes) for step in range(steps)], np.int64)

    def queueing_time(self, input_tokens: int) -> Micros:
        return 0

    def exceeded(self) -> list[str]:
        """Return a line for each figure that was beyond what the tables hold."""
        most_decodes, most_context = self.times.decode.most
        held = {
            "prompt tokens in a step": self.times.prefill.most[1],
            "decodes in a step": most_decodes,
            "tokens in the KV cache of a decode": most_context,
        }
        return self._maxima.exceeding(held)

    def reset_maxima(self) -> None:
        """Forget how large the batches were, once the model has been probed."""
        self._maxima.most.clear()

    def _note(self, decodes: int, context_tokens: int, prompt_tokens: int) -> None:
        self._maxima.note("prompt tokens in a step", prompt_tokens)
        self._maxima.note("decodes in a step", decodes)
        self._maxima.note("tokens in the KV cache of a decode", context_tokens // max(decodes, 1))

    def _micros(self, prompt_tokens: int, decodes: int, context_tokens: int) -> Micros:
        return whole_micros(self.times.seconds(prompt_tokens, decodes, context_tokens / max(decodes, 1)) * 1e6)


@dataclass(frozen=True, slots=True)
class NetworkExchanges:
    """Exchanges as a network of --collectives times them, among the GPUs of tensor parallelism and of experts."""

    network: "Network"
    tp: int
    ep: Mapping[str, int]
    """GPUs that share the experts, by phase."""

    def all_to_all_s(self, phase: str, size_bytes: float) -> float:
        from blis_sim.engine.latency.collectives.network import Collective, Group

        combine_bytes = int(size_bytes / (1 + DISPATCH_SHARE))
        sizes = int(size_bytes) - combine_bytes, combine_bytes
        time_ns = self.network.time_ns
        return sum(time_ns(Collective.ALL_TO_ALL, Group.EP, self.ep[phase], size) for size in sizes) * 1e-9

    def all_reduce_s(self, size_bytes: float) -> float:
        from blis_sim.engine.latency.collectives.network import Collective, Group

        return self.network.time_ns(Collective.ALL_REDUCE, Group.TP, self.tp, int(size_bytes)) * 1e-9


def build_aicb(place: str, choice: "LatencyChoice", network: "Network | None" = None) -> AicbSteps:
    """Return the latency model of a folder of tables for a deployment. Raises EngineError.

    Without tables of as many GPUs as the instance has, it is taken for a part of a larger group that shares experts.
    """
    model, gpu, tp, pp = choice.model, choice.gpu, choice.tp, choice.pp
    folder = AicbFolder(place)
    own = Deployment(named_in(folder, model.name, model.num_layers), tp * pp, tp, pp, tp * pp)
    found = closest_tables(folder, {PREFILL: own, DECODE: own})
    exchanges: Exchanges
    if network is None:
        exchanges = LinkExchanges(gpu.network_gb_s * 1e9, (gpu.nvlink_gb_s or gpu.pcie_gb_s) * 1e9)
    else:
        exchanges = NetworkExchanges(network, tp, {phase: where.ep for phase, (where, _) in found.items()})
    notes = [
        f"{phase} times are those of AICB's tables of {where}" for phase, (where, _) in found.items() if where != own
    ]
    return AicbSteps(AicbTimes(found[PREFILL][1], found[DECODE][1], exchanges), tuple(notes))


def closest_tables(folder: AicbFolder, own: Mapping[str, Deployment]) -> dict[str, tuple[Deployment, PhaseTables]]:
    """Return the tables of both phases: of their deployments, else of the closest ones. Raises EngineError."""
    of_phases = {phase: batches_of(folder, phase) for phase in own}
    in_both = sorted(of_phases[PREFILL].keys() & of_phases[DECODE].keys())
    found: dict[str, tuple[Deployment, PhaseTables]] = {}
    for phase, batches in of_phases.items():
        where = _closest(folder, phase, batches, own[phase], in_both)
        tables = {(each.size, each.sequence_tokens): folder.layers(where, each) for each in batches[where]}
        found[phase] = where, PhaseTables(phase, tables)
    return found


def batches_of(folder: AicbFolder, phase: str) -> dict[Deployment, list[Batch]]:
    """Return the batches of a phase that each deployment has tables of."""
    found: dict[Deployment, list[Batch]] = {}
    for deployment, batch in folder.keys:
        # SimAI keeps tables of no tokens, which it falls back to for prompts that it takes for decodes.
        if batch.phase == phase and batch.size and batch.sequence_tokens:
            found.setdefault(deployment, []).append(batch)
    return found


def _closest(
    folder: AicbFolder, phase: str, known: Iterable[Deployment], own: Deployment, in_both: Iterable[Deployment]
) -> Deployment:
    """Return the deployment itself, or the smallest one with its tensor and pipeline parallelism."""
    of_model = sorted(each for each in known if each.model == own.model)
    for each in (own, *in_both, *of_model):
        if each in of_model and (each.tp, each.pp) == (own.tp, own.pp):
            return each
    raise EngineError(
        f"--operators aicb:{folder.folder}: expected {phase} tables of {own.model} with tp {own.tp} and pp {own.pp}, "
        f"found {', '.join(map(str, of_model)) or 'none'}"
    )


def named_in(folder: AicbFolder, name: str, num_layers: int) -> str:
    """Return what AICB calls a model of a catalogue: of its family, its size and its layers. Raises EngineError."""
    tables = {deployment.model: (deployment, batch) for deployment, batch in folder.keys}
    own, own_sizes = _family(name), _sizes(name)
    alike = [each for each in sorted(tables) if _family(each) == own and (not own_sizes or _sizes(each) <= own_sizes)]
    for each in alike:
        if len(folder.layers(*tables[each])) == num_layers:
            return each
    raise EngineError(
        f"--operators aicb:{folder.folder}: expected tables of {name} with {num_layers} layers, found those of "
        f"{', '.join(sorted(tables))}"
    )


def _family(name: str) -> str:
    return re.split(r"[-_]", name.lower().split("/")[-1])[0]


def _sizes(name: str) -> set[str]:
    return set(re.findall(r"(?<![a-z0-9])\d+b(?![a-z0-9])", name.lower()))
