"""Step times from Vidur's profiling tables of operators: read, learned as lookup tables, and added up."""

import csv
import hashlib
import json
import math
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.model import LatencyModel, whole_micros
from blis_sim.engine.latency.wrapped import WrappedLatency
from blis_sim.engine.units import Micros
from blis_sim.installation import install_command
from blis_sim.options.files import read_given
from blis_sim.options.progress import progress_bar

# Lookup tables of a layer's operators: milliseconds by tokens, by decodes and context, by prompt chunk and context.

COMPUTE_OPERATORS = (
    "attn_pre_proj",
    "attn_post_proj",
    "mlp_up_proj",
    "mlp_down_proj",
    "mlp_act",
    "attn_rope",
    "attn_kv_cache_save",
    "input_layernorm",
    "post_attention_layernorm",
    "add",
    "all_reduce",
    "send_recv",
)
"""Operators whose time depends on the tokens of a step alone. A table without a column of one takes it as 0."""


class Line:
    """Values at ascending whole numbers, with straight lines between them that go on beyond both ends."""

    __slots__ = ("places", "values")

    def __init__(self, places: Sequence[int], values: Sequence[float]) -> None:
        self.places = list(places)
        self.values = list(values)

    def at(self, place: float) -> float:
        """Return the value at `place`, at least 0."""
        low, share = interval(self.places, place)
        values = self.values
        if not share:
            return values[low]
        return max(0.0, values[low] + (values[low + 1] - values[low]) * share)


class Grid:
    """Values at the crossings of two ascending axes; between and beyond them bilinear."""

    __slots__ = ("columns", "rows", "values")

    def __init__(self, rows: Sequence[int], columns: Sequence[int], values: Sequence[Sequence[float]]) -> None:
        self.rows = list(rows)
        self.columns = list(columns)
        self.values = [list(line) for line in values]

    def at(self, row: float, column: float) -> float:
        """Return the value at `row` and `column`, at least 0."""
        upper, row_share = interval(self.rows, row)
        left, share = interval(self.columns, column)
        line = self.values[upper]
        value = line[left] + (line[left + 1] - line[left]) * share if share else line[left]
        if row_share:
            line = self.values[upper + 1]
            below = line[left] + (line[left + 1] - line[left]) * share if share else line[left]
            value += (below - value) * row_share
        return max(0.0, value)


@dataclass(frozen=True, slots=True)
class OperatorTables:
    """Times of the operators of one layer, in milliseconds."""

    compute: dict[str, Line]
    """By the name of an operator, over the tokens of a step."""
    decode: Grid
    """Attention of decodes: over their number, and over the tokens in the KV cache of each."""
    prefill: Grid
    """Attention of prompts: over the tokens computed, and over those in the KV cache before."""
    cpu: Line | None = None
    """The time of the CPU for a step, over its requests; None where that was not measured."""


def interval(places: list[int], place: float) -> tuple[int, float]:
    """Return the index of the last of `places` up to `place`, and the share of the way from there to the next one.

    Beyond the ends the first and the last two places are what counts; the share is 0 where there is one place.
    """
    most = len(places) - 2
    if most < 0:
        return 0, 0.0
    low = min(max(bisect_right(places, place) - 1, 0), most)
    share = (place - places[low]) / (places[low + 1] - places[low])
    return (low + 1, 0.0) if share == 1 else (low, share)


def read_lookup_tables(prefix: str) -> OperatorTables:
    """Read PREFIX_compute.csv, PREFIX_attn_decode.csv and PREFIX_attn_prefill.csv, gzipped or not.

    Raises EngineError that names the file, the row and the column.
    """
    compute = _rows(prefix, "compute")
    columns = {name: place for place, name in enumerate(compute.header)}
    tokens = compute.whole_numbers("num_tokens")
    lines = {
        name: Line(tokens, compute.numbers(name)) if name in columns else Line([1], [0.0]) for name in COMPUTE_OPERATORS
    }
    return OperatorTables(
        lines, _decode_grid(_rows(prefix, "attn_decode")), _prefill_grid(_rows(prefix, "attn_prefill"))
    )


def _decode_grid(table: "_Rows") -> Grid:
    sizes, contexts = (
        table.whole_numbers("batch_size", ascends=False),
        table.whole_numbers("kv_cache_size", ascends=False),
    )
    values = dict(zip(zip(sizes, contexts, strict=True), table.numbers("prediction"), strict=True))
    rows, columns = sorted(set(sizes)), sorted(set(contexts))
    missing = next(((row, column) for row in rows for column in columns if (row, column) not in values), None)
    if missing is not None:
        raise EngineError(
            f"{table.path}: expected a row for batch_size {missing[0]}, kv_cache_size {missing[1]}, got none"
        )
    return Grid(rows, columns, [[values[row, column] for column in columns] for row in rows])


def _prefill_grid(table: "_Rows") -> Grid:
    names = [name for name in table.header if name.startswith("kv")]
    if not names or not all(name[2:].isdecimal() for name in names):
        raise EngineError(
            f"{table.path} line 1: expected columns kv0, kv64 and so on, got {','.join(table.header)[:80]}"
        )
    contexts = [int(name[2:]) for name in names]
    if contexts != sorted(set(contexts)):
        raise EngineError(
            f"{table.path} line 1: expected columns kv0, kv64 and so on, each once and in ascending order"
        )
    by_column = [table.numbers(name) for name in names]
    return Grid(table.whole_numbers("prefill_chunk_size"), contexts, list(zip(*by_column, strict=True)))


@dataclass(frozen=True, slots=True)
class _Rows:
    """A CSV file of numbers."""

    path: Path
    header: list[str]
    lines: list[str]
    values: npt.NDArray[np.float64] | None
    """None where a cell is no number."""

    def numbers(self, name: str) -> list[float]:
        """Return a column of numbers of at least 0."""
        if name not in self.header:
            raise EngineError(f"{self.path} line 1: the column {name} is missing, found {', '.join(self.header)[:120]}")
        place = self.header.index(name)
        if self.values is not None and self.values.shape[1] > place:
            column = self.values[:, place]
            if column.min() >= 0 and column.max() < math.inf:
                found: list[float] = column.tolist()
                return found
        return [self._number(number, line, name, place) for number, line in enumerate(self.lines, 2)]

    def _number(self, number: int, line: str, name: str, place: int) -> float:
        cells = line.split(",")
        text = cells[place].strip() if place < len(cells) else ""
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < math.inf:
            raise EngineError(
                f"{self.path} line {number} column {name}: expected a number of at least 0, got {text[:40]!r}"
            )
        return value

    def whole_numbers(self, name: str, *, ascends: bool = True) -> list[int]:
        """Return a column of whole numbers, in ascending order unless it need not be."""
        found = self.numbers(name)
        for line, value in enumerate(found, 2):
            if value != int(value) or (ascends and line > 2 and value <= found[line - 3]):
                raise EngineError(
                    f"{self.path} line {line} column {name}: expected a whole number"
                    f"{' above the one before' if ascends else ''}, got {value:g}"
                )
        return [int(value) for value in found]


def _rows(prefix: str, kind: str) -> _Rows:
    """Read one of the tables of `prefix`."""
    paths = [Path(f"{prefix}_{kind}.csv{ending}") for ending in (".gz", "")]
    path = next((each for each in paths if each.exists()), None)
    if path is None:
        raise EngineError(f"{paths[0]}: no such file, nor one without .gz")
    try:
        lines = read_given(path).decode("utf-8-sig").splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise EngineError(f"{path}: expected a CSV file, {error}") from None
    lines = [line for line in lines if line.strip()]
    if len(lines) < 2:
        raise EngineError(f"{path}: expected a first line with the names of columns, and rows, got {len(lines)} lines")
    try:
        values = np.loadtxt(lines[1:], delimiter=",", ndmin=2, comments=None)
    except ValueError:
        values = None  # the cell is named where its column is read
    return _Rows(path, [name.strip() for name in lines[0].split(",")], lines[1:], values)


# The figures of batches beyond what tables hold.


@dataclass(slots=True)
class BatchMaxima:
    """The largest figures of batches, by what they count."""

    most: dict[str, int] = field(default_factory=dict)

    def note(self, name: str, figure: int) -> None:
        """Count one batch."""
        if figure > self.most.get(name, 0):
            self.most[name] = figure

    def exceeding(self, held: Mapping[str, float]) -> list[str]:
        """Return a line for each figure above what is held."""
        return [
            f"up to {self.most[name]:,} {name}, the tables have up to {most:,}"
            for name, most in held.items()
            if self.most.get(name, 0) > most
        ]


# Vidur's profiling tables: what operators took on a GPU, read for one model and its tensor parallelism.
#
# Facts: vidur/execution_time_predictor/sklearn_execution_time_predictor.py.

MLP_OPERATORS = (
    "attn_pre_proj",
    "attn_post_proj",
    "mlp_up_proj",
    "mlp_down_proj",
    "mlp_act",
    "attn_rope",
    "input_layernorm",
    "post_attention_layernorm",
    "add",
)
_OPTIONAL = ("input_layernorm", "post_attention_layernorm", "add")
CPU_OPERATORS = ("schedule", "sampler_e2e", "prepare_inputs_e2e", "process_model_outputs", "ray_comm_time")
_BYTES_PER_VALUE = 2
_ENDINGS = ("", ".gz")


@dataclass(slots=True)
class Samples:
    """Measurements of one operator: one or two features each, and milliseconds."""

    features: list[tuple[float, ...]] = field(default_factory=list)
    times_ms: list[float] = field(default_factory=list)

    def add(self, features: tuple[float, ...], time_ms: float) -> None:
        """Note one measurement."""
        self.features.append(features)
        self.times_ms.append(time_ms)


@dataclass(frozen=True, slots=True)
class Profiles:
    """The measurements of one deployment."""

    compute: Mapping[str, Samples]
    """By operator, over tokens."""
    decode: Samples
    """Over requests and the tokens in the KV cache of each."""
    prefill: Samples
    """Over tokens computed and tokens in the KV cache before."""
    cpu: Mapping[str, Samples]
    """By operator of the CPU, over requests; empty without cpu_overheads.csv."""


def read_profiles(folder: str, choice: LatencyChoice) -> Profiles:
    """Read the tables of a folder for a deployment. Raises EngineError that names the file."""
    tables = _Tables(Path(folder), choice)
    model, tp = choice.model, choice.tp
    mlp = tables.rows("mlp.csv")
    sizes = {
        "n_head": model.num_heads,
        "n_kv_head": model.num_kv_heads,
        "n_embd": model.hidden_size,
        "n_expanded_embd": model.intermediate_size,
        "num_tensor_parallel_workers": tp,
    }
    mlp = tables.matching("mlp.csv", mlp, sizes)
    compute = {
        name: tables.samples("mlp.csv", mlp, f"time_stats.{name}.median", ("num_tokens",), name in _OPTIONAL)
        for name in MLP_OPERATORS
    }
    attention = tables.rows("attention.csv")
    sizes = {
        "n_q_head": model.num_heads,
        "n_kv_head": model.num_kv_heads,
        "n_embd": model.hidden_size,
        "num_tensor_parallel_workers": tp,
    }
    attention = tables.matching("attention.csv", attention, sizes)
    prompts = [row for row in attention if _number(row, "prefill_chunk_size") > 0]
    decodes = [row for row in attention if _number(row, "prefill_chunk_size") == 0]
    compute["attn_kv_cache_save"] = _saves(attention)
    decode_of, prefill_of = ("batch_size", "kv_cache_size"), ("prefill_chunk_size", "kv_cache_size")
    hidden_bytes = _BYTES_PER_VALUE * model.hidden_size
    if tp > 1:
        compute["all_reduce"] = tables.exchanges(
            "all_reduce", hidden_bytes, {"num_workers": tp, "devices_per_node": tp}
        )
    if choice.pp > 1:
        across = 1 if choice.pp * tp > choice.gpu.gpus_per_node else 2
        compute["send_recv"] = tables.exchanges("send_recv", hidden_bytes, {"devices_per_node": across})
    return Profiles(
        compute,
        tables.samples("attention.csv", decodes, "time_stats.attn_decode.median", decode_of),
        tables.samples("attention.csv", prompts, "time_stats.attn_prefill.median", prefill_of),
        _cpu_samples(tables, tp),
    )


class _Tables:
    """The files of a folder, flat or laid out as Vidur's own `data/profiling`."""

    def __init__(self, folder: Path, choice: LatencyChoice) -> None:
        if not folder.is_dir():
            raise EngineError(f"--operators must be a folder of profiling tables or SOURCE:PATH, got {folder}")
        self._folder = folder
        self._choice = choice

    def find(self, name: str) -> Path | None:
        """Return the path of a table; None where there is none."""
        for path in self._candidates(name):
            for ending in _ENDINGS:
                found = path.with_name(path.name + ending)
                if found.is_file():
                    return found
        return None

    def _candidates(self, name: str) -> Iterable[Path]:
        folder, choice = self._folder, self._choice
        yield folder / name
        gpu, model = choice.gpu.name.lower().split("-")[0], choice.model.name.lower().split("/")[-1]
        for kind in ("compute", "cpu_overhead"):
            for each in sorted((folder / kind).glob(f"{gpu}*/**/")):
                if each.name.lower().removesuffix("-hf") == model.removesuffix("-hf"):
                    yield each / name
        networks = sorted((folder / "network").glob(f"{gpu}_*/"), key=lambda each: "dgx" not in each.name)
        yield from (each / name for each in networks)

    def rows(self, name: str) -> list[dict[str, str]]:
        """Read a table that must be there. Raises EngineError."""
        path = self.find(name)
        if path is None:
            raise EngineError(f"--operators {self._folder}: expected {name} or {name}.gz in it, found none")
        try:
            return list(csv.DictReader(read_given(path).decode().splitlines()))
        except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
            raise EngineError(f"{path}: expected a CSV file, {error}") from None

    def matching(self, name: str, rows: list[dict[str, str]], sizes: Mapping[str, int]) -> list[dict[str, str]]:
        """Return the rows of a model of these sizes. Raises EngineError when there is none."""
        found = [row for row in rows if all(_number(row, key) == size for key, size in sizes.items())]
        if not found:
            asked = ", ".join(f"{key} {size}" for key, size in sizes.items())
            raise EngineError(f"{self.find(name)}: expected rows with {asked}, found none")
        return found

    def samples(
        self, name: str, rows: list[dict[str, str]], column: str, features: tuple[str, ...], is_optional: bool = False
    ) -> Samples:
        """Return the measurements of one column; none of a column that may be missing."""
        samples = Samples()
        for row in rows:
            time_ms, place = _number(row, column), tuple(_number(row, each) for each in features)
            if time_ms >= 0 and min(place) >= 0:
                samples.add(place, time_ms)
        if len(samples.times_ms) < 2 and not is_optional:
            raise EngineError(f"{self.find(name)}: expected at least 2 rows with times in {column}")
        return samples

    def exchanges(self, kind: str, hidden_bytes: int, sizes: Mapping[str, int]) -> Samples:
        """Return the measurements of a collective over tokens."""
        rows = self.matching(f"{kind}.csv", self.rows(f"{kind}.csv"), sizes)
        for row in rows:
            row["num_tokens"] = str(_number(row, "size") / hidden_bytes)
        return self.samples(f"{kind}.csv", rows, f"time_stats.{kind}.median", ("num_tokens",))


def _saves(attention: list[dict[str, str]]) -> Samples:
    """Return the times of writing the KV cache, which older tables lack."""
    samples = Samples()
    for row in attention:
        time_ms = _number(row, "time_stats.attn_kv_cache_save.median")
        if time_ms >= 0:
            tokens = max(_number(row, "prefill_chunk_size"), _number(row, "batch_size"))
            samples.add((tokens,), time_ms)
    return samples


def _cpu_samples(tables: _Tables, tp: int) -> dict[str, Samples]:
    if tables.find("cpu_overheads.csv") is None:
        return {}
    name = tables._choice.model.name.lower().split("/")[-1].removesuffix("-hf")
    rows = tables.matching("cpu_overheads.csv", tables.rows("cpu_overheads.csv"), {"tensor_parallel_degree": tp})
    own = [row for row in rows if row.get("model_name", "").lower().split("/")[-1].removesuffix("-hf") == name]
    found: dict[str, Samples] = {}
    for each in CPU_OPERATORS:
        column = f"{each}_mean" if each == "ray_comm_time" else f"{each}_median"
        found[each] = tables.samples("cpu_overheads.csv", own or rows, column, ("batch_size",), is_optional=True)
    return found


def _number(row: Mapping[str, str], column: str) -> float:
    """Return the number in a cell; -1 for an empty cell and for text."""
    try:
        value = float(row.get(column) or "nan")
    except ValueError:
        return -1.0
    return value if math.isfinite(value) else -1.0


# From profiling tables to lookup tables: learned once, and kept by the content of what they were learned from.

Floats: TypeAlias = npt.NDArray[np.float64]
Predict: TypeAlias = Callable[[Floats], Floats]
"""Takes rows of features and returns a time for each."""
Learn: TypeAlias = Callable[[Floats, Floats], Predict]
"""Takes rows of features and their times."""

_DEPTHS, _SPLITS, _TREES_OF_SEARCH, _TREES = (8, 16, 32), (2, 5, 10), 25, 250
"""Vidur's grid; the number of trees changes no choice of the other two."""
_FOLDS = 3
_DEGREES = (1, 2, 3, 4, 5)


def monotone(values: Floats, weights: Floats) -> Floats:
    """Return the closest values that never fall, by least squares: neighbours in the wrong order are averaged."""
    means: list[float] = []
    sums: list[float] = []
    counts: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        means.append(value)
        sums.append(weight)
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            weight_of_both = sums[-2] + sums[-1]
            means[-2] = (means[-2] * sums[-2] + means[-1] * sums[-1]) / weight_of_both
            sums[-2] = weight_of_both
            counts[-2] += counts[-1]
            del means[-1], sums[-1], counts[-1]
    return np.repeat(means, counts)


def line_points(samples: Samples) -> tuple[list[float], list[float]]:
    """Return the distinct places of an operator with one feature, and a time for each that never falls."""
    places = np.array([place for (place,) in samples.features])
    distinct, which, counts = np.unique(places, return_inverse=True, return_counts=True)
    times = np.array(samples.times_ms)
    means = np.bincount(which, times) / counts
    return distinct.tolist(), monotone(means, counts.astype(float)).tolist()


def learn_interpolation(features: Floats, times: Floats) -> Predict:
    """Learn straight lines between the places of one feature, which go on beyond both ends."""
    samples = Samples([(place,) for place in features[:, 0].tolist()], times.tolist())
    places, values = (np.array(each) for each in line_points(samples))

    def predict(rows: Floats) -> Floats:
        at = rows[:, 0]
        low = np.clip(np.searchsorted(places, at, side="right") - 1, 0, max(len(places) - 2, 0))
        if len(places) < 2:
            return np.full(len(at), values[0])
        share = (at - places[low]) / (places[low + 1] - places[low])
        found: Floats = np.maximum(values[low] + (values[low + 1] - values[low]) * share, 0.0)
        return found

    return predict


def learn_forest(features: Floats, times: Floats) -> Predict:
    """Learn Vidur's random forest; its depth and its least split are chosen by cross-validation. Raises EngineError."""
    try:
        from sklearn.ensemble import RandomForestRegressor
    except ImportError:
        raise EngineError(f"--operators forest needs scikit-learn: {install_command('operators')}") from None

    def forest(depth: int, split: int, num_trees: int) -> Any:
        return RandomForestRegressor(
            n_estimators=num_trees, max_depth=depth, min_samples_split=split, random_state=0, n_jobs=1
        )

    def learn(setting: tuple[int, int]) -> Learn:
        depth, split = setting
        return lambda rows, values: forest(depth, split, _TREES_OF_SEARCH).fit(rows, values).predict

    best = _best(list(product(_DEPTHS, _SPLITS)), learn, features, times)
    depth, split = best
    predict: Predict = forest(depth, split, _TREES).fit(features, times).predict
    return predict


def learn_polynomial(features: Floats, times: Floats) -> Predict:
    """Learn a polynomial of all features up to the degree that cross-validation finds best; it is never below 0."""

    def learn(degree: int) -> Learn:
        return lambda rows, values: _polynomial(rows, values, degree)

    return _polynomial(features, times, _best(list(_DEGREES), learn, features, times))


METHODS: Mapping[str, Learn] = {
    "interpolation": learn_interpolation,
    "forest": learn_forest,
    "polynomial": learn_polynomial,
}
"""By name; interpolation is for operators with one feature, those with two lie on a grid."""


def relative_errors(predicted: Floats, times: Floats) -> Floats:
    """Return how far each prediction is off, as a share of the time; 0 for a time of 0 that is predicted."""
    off = np.abs(predicted - times)
    found: Floats = np.where(times > 0, off / np.where(times > 0, times, 1.0), np.where(off > 0, 1.0, 0.0))
    return found


def _best(settings: list[Any], learn: Callable[[Any], Learn], features: Floats, times: Floats) -> Any:
    """Return the setting with the smallest mean relative error on the folds that were left out."""
    fold = np.random.default_rng(0).permutation(len(times)) % _FOLDS
    errors = []
    for setting in settings:
        total = 0.0
        for each in range(_FOLDS):
            inside = fold != each
            if inside.all() or not inside.any():
                continue
            predicted = learn(setting)(features[inside], times[inside])(features[~inside])
            total += float(relative_errors(predicted, times[~inside]).sum())
        errors.append(total)
    return settings[int(np.argmin(errors))]


def _polynomial(features: Floats, times: Floats, degree: int) -> Predict:
    scale = np.maximum(np.abs(features).max(axis=0), 1e-300)
    powers = [each for each in product(range(degree + 1), repeat=features.shape[1]) if sum(each) <= degree]

    def terms(rows: Floats) -> Floats:
        scaled = rows / scale
        return np.stack([np.prod(scaled ** np.array(each), axis=1) for each in powers], axis=1)

    weights, *_ = np.linalg.lstsq(terms(features), times, rcond=None)
    return lambda rows: np.maximum(terms(rows) @ weights, 0.0)


TOKENS = (1, 2, 4, *range(8, 4097, 8))
KV_TOKENS = tuple(range(0, 4097, 64))
DECODES = tuple(range(1, 129))
CHUNKS = (1, *range(64, 4097, 64))
"""Vidur's grid of predictions, of which straight lines lead on."""
_VERSION = 1


def learned_tables(profiles: Profiles, method: str, cache: Path) -> tuple[OperatorTables, Line | None]:
    """Return the lookup tables of a deployment, and what the CPU takes over requests where that was measured.

    Those of a forest or a polynomial are kept in the folder `cache`. Raises EngineError.
    """
    if method == "interpolation":
        return _interpolated(profiles), _cpu_line(profiles)
    path = cache / f"{_digest(profiles, method)}.json"
    if path.is_file():
        return _restored(json.loads(path.read_text())), _cpu_line(profiles)
    tables = _predicted(profiles, method)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(_plain(tables)))
        part.replace(path)
    except OSError as error:
        raise EngineError(f"{path}: cannot be written, {error}") from None
    return tables, _cpu_line(profiles)


def grid_of(samples: Samples) -> Grid:
    """Return the grid through measurements with two features, each row monotone; its gaps follow its neighbours."""
    rows = sorted({int(row) for row, _ in samples.features})
    columns = sorted({int(column) for _, column in samples.features})
    sums, counts = np.zeros((len(rows), len(columns))), np.zeros((len(rows), len(columns)))
    row_of, column_of = ({value: place for place, value in enumerate(each)} for each in (rows, columns))
    for (row, column), time_ms in zip(samples.features, samples.times_ms, strict=True):
        cell = row_of[int(row)], column_of[int(column)]
        sums[cell] += time_ms
        counts[cell] += 1
    slope = 0.0
    at = np.array(columns, float)
    values = np.zeros_like(sums)
    for place, count in enumerate(counts):
        known = count > 0
        means = monotone(sums[place][known] / count[known], count[known])
        filled = np.interp(at, at[known], means)
        if known.sum() > 1:
            slope = max(0.0, (means[-1] - means[0]) / (at[known][-1] - at[known][0])) / rows[place]
        beyond, before = at > at[known][-1], at < at[known][0]
        filled[beyond] += slope * rows[place] * (at[beyond] - at[known][-1])
        filled[before] = np.maximum(filled[before] - slope * rows[place] * (at[known][0] - at[before]), 0.0)
        values[place] = filled
    return Grid(rows, columns, values.tolist())


def _interpolated(profiles: Profiles) -> OperatorTables:
    compute = {name: _line(profiles.compute.get(name)) for name in COMPUTE_OPERATORS}
    return OperatorTables(compute, grid_of(profiles.decode), grid_of(profiles.prefill))


def _line(samples: Samples | None) -> Line:
    if samples is None or not samples.times_ms:
        return Line([1], [0.0])
    places, values = line_points(samples)
    return Line(places, values)  # type: ignore[arg-type]  # tokens of a size in bytes need not be whole


def _predicted(profiles: Profiles, method: str) -> OperatorTables:
    """Learn all operators, with progress on a terminal: the largest tables take a forest seconds."""
    measured = {name: each for name in COMPUTE_OPERATORS if (each := profiles.compute.get(name)) and each.times_ms}
    contexts = np.array(KV_TOKENS, float)
    with progress_bar(f"learning operators ({method})", len(measured) + 2) as learned_one:

        def learn(features: Floats, times: Floats) -> Predict:
            predict = METHODS[method](features, times)
            if learned_one is not None:
                learned_one()
            return predict

        lines = {name: learn(*_arrays(samples)) for name, samples in measured.items()}
        decode = learn(*_arrays(profiles.decode))
        features, times = _arrays(profiles.prefill)
        # Vidur's features of a prompt: the tokens before it, and the square of its own.
        prefill = learn(np.stack([features[:, 1], features[:, 0] ** 2], axis=1), times)
    tokens = np.array(TOKENS, float)[:, None]
    compute = {
        name: Line(TOKENS, lines[name](tokens).tolist()) if name in lines else Line([1], [0.0])
        for name in COMPUTE_OPERATORS
    }
    decodes = [decode(np.stack([np.full_like(contexts, each), contexts], axis=1)).tolist() for each in DECODES]
    prompts = [prefill(np.stack([contexts, np.full_like(contexts, each**2)], axis=1)).tolist() for each in CHUNKS]
    return OperatorTables(compute, Grid(DECODES, KV_TOKENS, decodes), Grid(CHUNKS, KV_TOKENS, prompts))


def _cpu_line(profiles: Profiles) -> Line | None:
    """Return the sum of all operators of the CPU, at the batch sizes of the first one."""
    lines = [_line(samples) for samples in profiles.cpu.values() if samples.times_ms]
    if not lines:
        return None
    places = lines[0].places
    return Line(places, [sum(line.at(place) for line in lines) for place in places])


def _arrays(samples: Samples) -> tuple[Floats, Floats]:
    return np.array(samples.features, float), np.array(samples.times_ms, float)


def _digest(profiles: Profiles, method: str) -> str:
    content = json.dumps([_VERSION, method, astuple(profiles)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _plain(tables: OperatorTables) -> dict[str, Any]:
    grids = {name: getattr(tables, name) for name in ("decode", "prefill")}
    return {
        "compute": {name: [line.places, line.values] for name, line in tables.compute.items()},
        **{name: [grid.rows, grid.columns, grid.values] for name, grid in grids.items()},
    }


def _restored(content: dict[str, Any]) -> OperatorTables:
    compute = {name: Line(*points) for name, points in content["compute"].items()}
    return OperatorTables(compute, Grid(*content["decode"]), Grid(*content["prefill"]))


# From the operators of a layer to the time of a step, as Vidur adds them up, with overheads of the CPU.
#
# Facts: vidur/execution_time_predictor, vidur/entities/execution_time.py.

TOKENS_GRANULE = 8
"""Steps are timed with their tokens rounded up to a multiple of this, as tensor cores compute them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Times added to the operators, as fractions and milliseconds."""

    decode_batching_fraction: float = 0.1
    """Fraction added to the attention of decodes, where several run together."""
    prefill_batching_fraction: float = 0.1
    nccl_launch_ms: float = 0.02
    """Time added to each all-reduce."""
    nccl_skew_ms_per_gpu: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The properties of a model and its deployment that decide how operators add up."""

    num_layers: int
    tp: int
    shares_kv_heads: bool
    """Whether several query heads share a KV head: only then do batches have the overhead of batching."""
    has_post_attention_norm: bool = True


@dataclass(slots=True)
class OperatorTimes:
    """Times of whole batches through all layers, in seconds."""

    tables: OperatorTables
    layers: LayerShape
    overheads: Overheads = field(default_factory=Overheads)
    _by_tokens: dict[int, tuple[float, float, float, float, float]] = field(default_factory=dict)

    def seconds(
        self,
        num_tokens: int,
        decodes: int,
        decode_kv_tokens: float,
        prefills: int = 0,
        prefill_kv_tokens: float = 0,
        prefill_chunk_tokens: float = 0,
        sends: bool = False,
    ) -> float:
        """Return the time of a batch of `num_tokens` tokens.

        `decode_kv_tokens` is the context of a decode, itself included. `prefill_kv_tokens` the sum of those of prompts,
        and `prefill_chunk_tokens` the root of the sum of the squares of their chunks. With `sends` the activations go
        on to the next pipeline stage.
        """
        found = self._by_tokens.get(num_tokens)
        if found is None:
            found = self._by_tokens[num_tokens] = self._of_tokens(num_tokens)
        attention, exchange_ms, norm_ms, mlp_ms, add_ms = found
        decode_ms, prefill_ms = self.attention_ms(
            decodes, decode_kv_tokens, prefills, prefill_kv_tokens, prefill_chunk_tokens
        )
        layer_ms = attention + decode_ms + prefill_ms + exchange_ms + norm_ms + mlp_ms + add_ms
        stage_ms = layer_ms * self.layers.num_layers
        if sends:
            stage_ms += self.tables.compute["send_recv"].at(_rounded(num_tokens))
        return stage_ms * 1e-3

    def attention_ms(
        self,
        decodes: int,
        decode_kv_tokens: float,
        prefills: int,
        prefill_kv_tokens: float,
        prefill_chunk_tokens: float,
    ) -> tuple[float, float]:
        """Return the attention of decodes and that of prompts in a layer, as `seconds` takes them."""
        tables, overheads = self.tables, self.overheads
        decode_ms = prefill_ms = 0.0
        if decodes:
            batching = overheads.decode_batching_fraction if decodes > 1 and self.layers.shares_kv_heads else 0.0
            decode_ms = tables.decode.at(decodes, decode_kv_tokens) * (1 + batching)
        if prefills:
            batching = overheads.prefill_batching_fraction if prefills > 1 and self.layers.shares_kv_heads else 0.0
            prefill_ms = tables.prefill.at(prefill_chunk_tokens, prefill_kv_tokens) * (1 + batching)
        return decode_ms, prefill_ms

    def operators_ms(self, num_tokens: int) -> dict[str, float]:
        """Return the time of each operator of a layer that depends on the tokens alone, and that of an `exchange`."""
        rounded, layers, overheads = _rounded(num_tokens), self.layers, self.overheads
        time = {name: line.at(rounded) for name, line in self.tables.compute.items()}
        # Keys and values are written for the tokens there are, not for the granules that are computed.
        time["attn_kv_cache_save"] = self.tables.compute["attn_kv_cache_save"].at(num_tokens)
        time["exchange"] = 0.0
        if layers.tp > 1:
            skew_ms = overheads.nccl_skew_ms_per_gpu * layers.tp**1.25
            time["exchange"] = time["all_reduce"] + overheads.nccl_launch_ms + skew_ms
        if not layers.has_post_attention_norm:
            time["post_attention_layernorm"] = 0.0
        return time

    def _of_tokens(self, num_tokens: int) -> tuple[float, float, float, float, float]:
        """Return what depends on the tokens alone: attention's part, an exchange, a norm, the MLP and an addition."""
        time = self.operators_ms(num_tokens)
        exchange_ms, norm_ms = time["exchange"], time["post_attention_layernorm"]
        mlp_ms = time["mlp_up_proj"] + time["mlp_down_proj"] + time["mlp_act"] + exchange_ms + norm_ms
        attention_ms = time["attn_pre_proj"] + time["attn_post_proj"] + time["attn_rope"] + time["attn_kv_cache_save"]
        return attention_ms, exchange_ms, time["input_layernorm"], mlp_ms, time["add"]


def _rounded(num_tokens: int) -> int:
    return -(-num_tokens // TOKENS_GRANULE) * TOKENS_GRANULE


@dataclass(slots=True)
class OperatorSteps(LatencyModel):
    """A latency model of `times`: nothing but operators takes time."""

    extrapolation: ClassVar[str] = "whose last slopes go on"

    times: OperatorTimes
    _maxima: BatchMaxima = field(default_factory=BatchMaxima)

    def step_time(self, shape: BatchShape) -> Micros:
        decodes = shape.decode_requests
        kv_tokens = shape.decode_context_tokens / decodes + 1 if decodes else 0
        chunk = math.sqrt(shape.prefill_tokens_squared)
        seconds = self.times.seconds(
            shape.num_tokens, decodes, kv_tokens, shape.prefill_requests, shape.prefill_context_tokens, chunk
        )
        self._maxima.note("tokens in a step", shape.num_tokens)
        self._maxima.note("decodes in a step", decodes)
        self._maxima.note("tokens in the KV cache of a decode", int(kv_tokens))
        self._maxima.note("prompt tokens in a step", int(chunk))
        self._maxima.note("tokens in the KV caches of prompts", shape.prefill_context_tokens)
        return whole_micros(seconds * 1e6)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        decodes, context = shape.decode_requests, shape.decode_context_tokens
        self._maxima.note("decodes in a step", decodes)
        self._maxima.note("tokens in the KV cache of a decode", context // max(decodes, 1) + steps)
        seconds = self.times.seconds
        times = [
            whole_micros(seconds(decodes, decodes, (context + step * decodes) / decodes + 1 if decodes else 0) * 1e6)
            for step in range(steps)
        ]
        return np.array(times, dtype=np.int64)

    @property
    def operation_names(self) -> tuple[str, ...]:
        return (*self.times.tables.compute, "attn_prefill", "attn_decode")

    def operation_times_ms(self, shape: BatchShape) -> tuple[float, ...]:
        """Return the time of each operator in one layer; exchanges and additions count as often as in Vidur."""
        tables, decodes = self.times.tables, shape.decode_requests
        found = [line.at(_rounded(shape.num_tokens)) for line in tables.compute.values()]
        chunk = math.sqrt(shape.prefill_tokens_squared)
        prefill_ms = tables.prefill.at(chunk, shape.prefill_context_tokens) if shape.prefill_requests else 0.0
        decode_ms = tables.decode.at(decodes, shape.decode_context_tokens / decodes + 1) if decodes else 0.0
        return (*found, prefill_ms, decode_ms)

    def exceeded(self) -> list[str]:
        """Return a line for each figure that was beyond what the tables hold."""
        tables = self.times.tables
        held = {
            "tokens in a step": max(line.places[-1] for line in tables.compute.values()),
            "decodes in a step": tables.decode.rows[-1],
            "tokens in the KV cache of a decode": tables.decode.columns[-1],
            "prompt tokens in a step": tables.prefill.rows[-1],
            "tokens in the KV caches of prompts": tables.prefill.columns[-1],
        }
        return self._maxima.exceeding(held)

    def reset_maxima(self) -> None:
        """Forget how large the batches were, once the model has been probed."""
        self._maxima.most.clear()


@dataclass(slots=True)
class WithCpu(WrappedLatency):
    """`model` with steps that last longer by `overhead`, in milliseconds over the requests of a step."""

    overhead: Line

    def step_time(self, shape: BatchShape) -> Micros:
        return self.model.step_time(shape) + self._added_us(shape.num_requests)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        times: npt.NDArray[np.int64] = self.model.decode_times(shape, steps) + self._added_us(shape.decode_requests)
        return times

    def _added_us(self, num_requests: int) -> Micros:
        return round(self.overhead.at(num_requests) * 1e3) if num_requests else 0
