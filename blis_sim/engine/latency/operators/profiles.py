"""Vidur's profiling tables: what operators took on a GPU, read for one model and its tensor parallelism.

Facts: vidur/execution_time_predictor/sklearn_execution_time_predictor.py.
"""

import csv
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.options.files import read_given

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
