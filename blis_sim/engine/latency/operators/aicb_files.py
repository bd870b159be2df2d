"""Tables of AICB: nanoseconds and bytes of each part of each layer, one file for each deployment and batch.

A file is TAB separated, with a first line of names or without, or the JSON in which SimAI keeps what it read.
Facts: SimAI, vidur-alibabacloud/vidur/execution_time_predictor.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from blis_sim.engine.errors import EngineError

PREFILL, DECODE = "prefill", "decode"
ATTENTION, MLP, MOE = "attention", "mlp", "moe"
PARTS = (ATTENTION, MLP, MOE)
COLUMNS = ("layer_id", "layer_name", "comp_time", "comm_size")
_NUMBERS = r"tp(\d+)-pp(\d+)-ep(\d+)-bs(\d+)-seq(\d+)-(prefill|decode)"
_NAMES = (
    re.compile(rf"aicb-(.+)-ws(\d+)-{_NUMBERS}\.json"),
    re.compile(rf"vidur-(.+)-world_size(\d+)-{_NUMBERS}\.csv"),
)
_MOST = 1e18


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
    """The batch of a table: decodes with so many tokens in the KV cache each, or so many tokens of prompts."""

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
    """The tables in a folder and the folders in it, each read when it is first asked for."""

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
        text = path.read_text("utf-8-sig")
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
    if not 0 <= value < _MOST:
        raise EngineError(f"{where}: expected a number of at least 0, got {str(given)[:40]!r}")
    return value
