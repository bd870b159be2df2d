"""AICB's tables of layers with experts: its files, bytes that experts exchange, and the latency model of them."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.model import LatencyModel, whole_micros
from blis_sim.engine.latency.operators import BatchMaxima, Line, monotone
from blis_sim.engine.memory.families import read_model
from blis_sim.engine.memory.weights import MoE
from blis_sim.engine.specs import ModelSpec
from blis_sim.engine.units import Micros
from blis_sim.options.files import read_text

if TYPE_CHECKING:
    from blis_sim.engine.latency.choice import LatencyChoice
    from blis_sim.engine.latency.collectives import Network

# Step times from AICB's tables of layers with experts: its files, computation by tokens, and what experts exchange.
#
# SimAI looks a batch up by one sequence length; here prompts count by their tokens, decodes by their number and their
# mean context. Between tables lie straight lines that never fall. Beyond the longest prompt the last slope goes on,
# or the share for each token where there is one table; beyond decodes and their contexts the last table stands. Bytes
# are those of the closest table for each token, as AICB counts them. A file is TAB separated, with a first line of
# names or without, or the JSON in which SimAI keeps what it read. Facts: SimAI, vidur-
# alibabacloud/vidur/execution_time_predictor.

PREFILL, DECODE = "prefill", "decode"
ATTENTION, MLP, MOE = "attention", "mlp", "moe"
PARTS = (ATTENTION, MLP, MOE)
COLUMNS = ("layer_id", "layer_name", "comp_time", "comm_size")
_NUMBERS = r"tp(\d+)-pp(\d+)-ep(\d+)-bs(\d+)-seq(\d+)-(prefill|decode)"
_NAMES = (
    re.compile(rf"aicb-(.+)-ws(\d+)-{_NUMBERS}\.json"),
    re.compile(rf"vidur-(.+)-world_size(\d+)-{_NUMBERS}\.csv"),
)
_MAX_NUMBER = 1e18


class Deployment(NamedTuple):
    """The model and the GPUs that a table was measured on."""

    model: str
    world_size: int
    tp: int
    pp: int
    ep: int

    def __str__(self) -> str:
        return f"{self.model} world_size {self.world_size} tp {self.tp} pp {self.pp} ep {self.ep}"


class Batch(NamedTuple):
    """The batch of a table: `size` decodes with `sequence_tokens` in the KV cache each, or prompts of that length."""

    phase: str
    size: int
    sequence_tokens: int


class Part(NamedTuple):
    """One part of a layer: its computation, and what the GPUs exchange for it."""

    compute_ns: float
    exchange_bytes: float


Layers = list[dict[str, Part]]
"""The parts of each layer by name."""


class AicbFolder:
    """The tables in a folder and the folders in it, each read on first use."""

    def __init__(self, folder: str) -> None:
        root = Path(folder)
        if not root.is_dir():
            raise EngineError(f"--operators aicb:{folder}: expected a folder of AICB's tables")
        self.folder = folder
        self._paths: dict[tuple[Deployment, Batch], Path] = {}
        for name in _NAMES:
            for path in sorted(root.rglob(f"*{'.json' if 'json' in name.pattern else '.csv'}")):
                if match := name.fullmatch(path.name):
                    model, *numbers, phase = match.groups()
                    world, tp, pp, ep, size, tokens = map(int, numbers)
                    self._paths.setdefault((Deployment(model, world, tp, pp, ep), Batch(phase, size, tokens)), path)
        if not self._paths:
            raise EngineError(
                f"--operators aicb:{folder}: expected files such as vidur-MODEL-world_size8-tp1-pp1-ep8-bs1-seq100-"
                "prefill.csv or aicb-MODEL-ws8-tp1-pp1-ep8-bs1-seq100-prefill.json, found none"
            )
        self._read: dict[Path, Layers] = {}

    @property
    def keys(self) -> Iterable[tuple[Deployment, Batch]]:
        """The deployment and the batch of each table, those of JSON files first, in the order of their names."""
        return self._paths

    def is_cached(self, deployment: Deployment, batch: Batch) -> bool:
        """Return whether a table comes from SimAI's cache."""
        return self._paths[deployment, batch].suffix == ".json"

    def layers(self, deployment: Deployment, batch: Batch) -> Layers:
        """Return a table. Raises EngineError that names the file and the row."""
        path = self._paths[deployment, batch]
        found = self._read.get(path)
        if found is None:
            found = self._read[path] = read_layers(path)
        return found


def read_layers(path: Path) -> Layers:
    """Read one file. Raises EngineError that names the file and the row."""
    try:
        text = read_text(path, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{path}: expected a table of AICB, {error}") from None
    layers = _of_json(text, path) if path.suffix == ".json" else _of_lines(text, path)
    if not layers:
        raise EngineError(f"{path}: expected rows of {', '.join(COLUMNS)}, found none")
    return [layers[number] for number in sorted(layers)]


def _of_lines(text: str, path: Path) -> dict[int, dict[str, Part]]:
    layers: dict[int, dict[str, Part]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.split("\t")]
        if cells == [""] or (number == 1 and tuple(cells) == COLUMNS):
            continue
        where = f"{path} line {number}"
        if len(cells) != len(COLUMNS) or not cells[0].isdecimal():
            raise EngineError(f"{where}: expected {', '.join(COLUMNS)} separated by tabs, got {line[:60]!r}")
        _add(layers, cells[0], cells[1], cells[2], cells[3], where)
    return layers


def _of_json(text: str, path: Path) -> dict[int, dict[str, Part]]:
    layers: dict[int, dict[str, Part]] = {}
    try:
        content = json.loads(text)
    except ValueError as error:
        raise EngineError(f"{path}: expected JSON, {error}") from None
    for layer, parts in _items(content, str(path)):
        for name, figures in _items(parts, f"{path} layer {layer}"):
            where = f"{path} layer {layer}"
            given = dict(_items(figures, f"{where} {name}"))
            _add(layers, layer, name, given.get("comp_time"), given.get("comm_size"), where)
    return layers


def _items(content: Any, where: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(content, dict):
        raise EngineError(f"{where}: expected an object, got {str(content)[:40]!r}")
    return content.items()


def _add(layers: dict[int, dict[str, Part]], layer: str, name: str, time: Any, size: Any, where: str) -> None:
    if not (layer.isdecimal() and layer.isascii() and len(layer) < 6):
        raise EngineError(f"{where}: expected the number of a layer, got {layer[:40]!r}")
    if name not in PARTS:
        raise EngineError(f"{where} column layer_name: expected one of {', '.join(PARTS)}, got {name[:40]!r}")
    parts = layers.setdefault(int(layer), {})
    if name in parts:
        raise EngineError(f"{where}: layer {layer} has {name} twice")
    parts[name] = Part(_number(time, f"{where} column comp_time"), _number(size, f"{where} column comm_size"))


def _number(given: Any, where: str) -> float:
    try:
        value = -1.0 if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value < _MAX_NUMBER:
        raise EngineError(f"{where}: expected a number of at least 0, got {str(given)[:40]!r}")
    return value


DISPATCH_SHARE = 0.515625
"""Bytes that AICB counts for the dispatch of a token, in FP8 with scales, over those of the combine in 16 bits."""


class Exchanges(Protocol):
    """A source of times of what GPUs exchange in a layer, in seconds."""

    def all_to_all_s(self, phase: str, size_bytes: float) -> float:
        """Return the time of dispatch and combine, which are `size_bytes` together."""
        ...

    def all_reduce_s(self, size_bytes: float) -> float:
        """Return the time of an all-reduce of tensor parallelism."""
        ...


@dataclass(frozen=True, slots=True)
class LinkExchanges:
    """Bytes over the rate of a link: between nodes for prompts, NVLink for decodes. The tables have no all-reduces."""

    network_bytes_per_s: float
    nvlink_bytes_per_s: float

    def all_to_all_s(self, phase: str, size_bytes: float) -> float:
        return size_bytes / (self.network_bytes_per_s if phase == PREFILL else self.nvlink_bytes_per_s)

    def all_reduce_s(self, size_bytes: float) -> float:
        return 0.0


class _Curve:
    """Nanoseconds over tokens, or over decodes and their context."""

    __slots__ = ("_lines", "_sizes", "phase")

    def __init__(self, phase: str, points: Mapping[tuple[int, int], float]) -> None:
        self.phase = phase
        by_size: dict[int, dict[int, float]] = {}
        for (size, tokens), value in sorted(points.items()):
            # The computation of prompts depends on all of their tokens, however many prompts they are.
            by_size.setdefault(size if phase == DECODE else 1, {}).setdefault(tokens, value)
        self._lines = {
            size: Line(list(found), monotone(np.array(list(found.values())), np.ones(len(found))).tolist())
            for size, found in by_size.items()
        }
        self._sizes = sorted(by_size)

    def at(self, size: int, tokens: float) -> float:
        """Return the nanoseconds of a batch."""
        if self.phase == PREFILL:
            return _beyond(self._lines[1], tokens)
        places = [min(max(size, self._sizes[0]), self._sizes[-1])]
        if places[0] in self._lines:
            return _within(self._lines[places[0]], tokens)
        values = [_within(self._lines[each], tokens) for each in self._sizes]
        return Line(self._sizes, values).at(places[0])


def _within(line: Line, place: float) -> float:
    return line.at(min(max(place, line.places[0]), line.places[-1]))


def _beyond(line: Line, place: float) -> float:
    if len(line.places) == 1 and place > line.places[0]:
        return line.values[0] * place / line.places[0]
    return line.at(max(place, line.places[0]))


@dataclass(frozen=True, slots=True)
class PhaseTables:
    """The tables of one phase by batch size and tokens, as curves."""

    phase: str
    tables: Mapping[tuple[int, int], Layers]
    _curves: dict[str, _Curve] = field(default_factory=dict)
    _bytes_per_token: dict[str, float] = field(default_factory=dict)
    """Bytes per token of one exchange of a part."""
    num_layers: dict[str, int] = field(default_factory=dict)
    """Layers with a part."""
    most: tuple[int, int] = (0, 0)
    """Most decodes, and most tokens of prompts or of a context."""

    def __post_init__(self) -> None:
        first = self.tables[min(self.tables)]
        for part in (ATTENTION, MLP, MOE):
            points = {
                key: sum(layer[part].compute_ns for layer in layers if part in layer)
                for key, layers in self.tables.items()
            }
            self._curves[part] = _Curve(self.phase, points)
            sizes = [layer[part].exchange_bytes for layer in first if part in layer]
            size, tokens = min(self.tables)
            count = tokens if self.phase == PREFILL else size
            self.num_layers[part] = len(sizes)
            self._bytes_per_token[part] = sum(sizes) / len(sizes) / count if sizes else 0.0
        most = max(size for size, _ in self.tables), max(tokens for _, tokens in self.tables)
        object.__setattr__(self, "most", most)

    def compute_ns(self, part: str, size: int, tokens: float) -> float:
        """Return the computation of all layers with a part."""
        return self._curves[part].at(size, tokens)

    def exchange_bytes(self, part: str, num_tokens: float) -> float:
        """Return the bytes that one layer with a part exchanges for `num_tokens` computed tokens."""
        return self._bytes_per_token[part] * num_tokens


@dataclass(frozen=True, slots=True)
class AicbTimes:
    """Times of whole batches through all layers, in seconds."""

    prefill: PhaseTables
    decode: PhaseTables
    exchanges: Exchanges

    def seconds(self, prefill_tokens: int, decodes: int, context_tokens: float) -> float:
        """Return the time of a batch; `context_tokens` are those in the KV cache of each decode.

        In a batch of both phases attention is computed apart, and MLP and experts take all tokens together.
        """
        if not prefill_tokens:
            return self._of_phase(self.decode, decodes, context_tokens, decodes)
        num_tokens = prefill_tokens + decodes
        seconds = self._of_phase(self.prefill, 1, num_tokens, num_tokens)
        if decodes:
            of_all = self.prefill.compute_ns(ATTENTION, 1, num_tokens)
            apart = self.prefill.compute_ns(ATTENTION, 1, prefill_tokens)
            seconds += (apart - of_all + self.decode.compute_ns(ATTENTION, decodes, context_tokens)) * 1e-9
        return seconds

    def _of_phase(self, tables: PhaseTables, size: int, tokens: float, num_tokens: int) -> float:
        if not num_tokens:
            return 0.0
        seconds = sum(tables.compute_ns(part, size, tokens) for part in (ATTENTION, MLP, MOE)) * 1e-9
        exchanges, layers = self.exchanges, tables.num_layers
        seconds += exchanges.all_to_all_s(tables.phase, tables.exchange_bytes(MOE, num_tokens)) * layers[MOE]
        for part in (ATTENTION, MLP):
            if size_bytes := tables.exchange_bytes(part, num_tokens):
                seconds += exchanges.all_reduce_s(size_bytes) * layers[part]
        return seconds


# The bytes that the GPUs of a model with experts exchange in each layer, as AICB counts them.
#
# Facts: aicb, workload_generator/Vidur_workload_generator.py.

_BYTES_PER_VALUE = 2


class LayerPart(NamedTuple):
    """A part of a layer that ends with an exchange: values of a token, and experts that it passes through."""

    layer: int
    name: str
    width: int
    experts_per_token: int = 0


def exchange_rows(model: ModelSpec, tp: int, phase: str, size: int, tokens: int) -> list[dict[str, int | str]]:
    """Return the rows of a table of AICB without its computation, one for each part of each layer.

    A batch of prompts computes `tokens`, one of decodes `size`. Raises EngineError for a model without experts.
    """
    parts = list(layer_parts(model))
    if not any(part.name == MOE for part in parts):
        raise EngineError(f"{model.name} has no experts, so its GPUs exchange nothing for them")
    num_tokens = tokens if phase == PREFILL else size
    rows = ((part.layer, part.name, 0, exchanged_bytes(part, tp, num_tokens)) for part in parts)
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def exchange_table(rows: Iterable[Mapping[str, int | str]]) -> str:
    """Return rows in the form of AICB's tables, whose columns tabs separate."""
    return "".join("\t".join(map(str, cells)) + "\n" for cells in (COLUMNS, *(row.values() for row in rows)))


def exchanged_bytes(part: LayerPart, tp: int, num_tokens: int) -> int:
    """Return the bytes of the exchange after a part, for `num_tokens` computed tokens.

    Attention and MLP sum up what the GPUs of tensor parallelism have. Experts get tokens (dispatch) and return them
    (combine), of which each of these GPUs has a share.
    """
    values_bytes = _BYTES_PER_VALUE * num_tokens * part.width
    if part.name != MOE:
        return values_bytes if tp > 1 else 0
    combined = values_bytes * part.experts_per_token // tp
    return int(combined * DISPATCH_SHARE) + combined


def layer_parts(model: ModelSpec) -> Iterator[LayerPart]:
    """Yield the parts of all layers, of a kind of attention that is not modelled too. Raises EngineError."""
    if model.checkpoint is None:
        raise EngineError(f"{model.name} has no config.json to read its layers from")
    try:
        layers = read_model(model.checkpoint.config, model.name).layers
    except EngineError:
        if not model.is_moe:
            raise
        yield from _parts_by_sizes(model)
        return
    hidden = model.hidden_size
    for index, layer in enumerate(layers):
        if layer.mixer is not None:
            yield LayerPart(index, ATTENTION, hidden)
        for part in layer.feed_forward:
            if isinstance(part, MoE):
                yield LayerPart(index, MOE, part.latent_size or hidden, part.experts_per_token)
            else:
                yield LayerPart(index, MLP, hidden)


def _parts_by_sizes(model: ModelSpec) -> Iterator[LayerPart]:
    for index in range(model.num_layers):
        yield LayerPart(index, ATTENTION, model.hidden_size)
        if index < model.first_k_dense_replace:
            yield LayerPart(index, MLP, model.hidden_size)
        else:
            yield LayerPart(index, MOE, model.hidden_size, max(model.num_experts_per_tok, 1))


# The latency model of AICB's tables, and which of the tables of a folder are those of a deployment.


@dataclass(slots=True)
class AicbSteps(LatencyModel):
    """A latency model of `times`: nothing but layers takes time. `notes` name the tables."""

    extrapolation: ClassVar[str] = "prompts go on with the last slope, decodes with the last time"

    times: AicbTimes
    notes: tuple[str, ...] = ()
    _maxima: BatchMaxima = field(default_factory=BatchMaxima)

    def step_time(self, shape: BatchShape) -> Micros:
        decodes, prompt_tokens = shape.decode_requests, shape.prefill_tokens
        self._note(decodes, shape.decode_context_tokens, prompt_tokens + decodes if prompt_tokens else 0)
        return self._micros(prompt_tokens, decodes, shape.decode_context_tokens)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        decodes, context = shape.decode_requests, shape.decode_context_tokens
        self._note(decodes, context + decodes * (steps - 1), 0)
        return np.array([self._micros(0, decodes, context + step * decodes) for step in range(steps)], np.int64)

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
        from blis_sim.engine.latency.collectives import Collective, Group

        combine_bytes = int(size_bytes / (1 + DISPATCH_SHARE))
        sizes = int(size_bytes) - combine_bytes, combine_bytes
        time_ns = self.network.time_ns
        return sum(time_ns(Collective.ALL_TO_ALL, Group.EP, self.ep[phase], size) for size in sizes) * 1e-9

    def all_reduce_s(self, size_bytes: float) -> float:
        from blis_sim.engine.latency.collectives import Collective, Group

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
