"""Workloads of inference-perf as specs: its configuration in stages, and the lengths and kinds of its data."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from math import log, sqrt
from typing import Any, NamedTuple

import numpy as np

from blis_sim.options.addition import sequential_sum
from blis_sim.options.yaml_text import dump_yaml
from traces.importers.reading import at, expect
from traces.importers.registry import ConvertOptions, Imported
from traces.text_file import TraceError, parse_yaml, read_text
from traces.workload.distributions import Floats
from traces.workload.inference_perf import conversing, has_waiting_requests, users_of
from traces.workload.spec import (
    Arrival,
    Client,
    InferencePerf,
    Lifecycle,
    Stage,
    Window,
    WorkloadSpec,
    parse_spec,
    plain_spec,
    spec_of,
)

# The configuration of inference-perf as a section of a spec: its load in stages, and the lengths of its data.
#
# Names, defaults and meanings are those of its release 0.7.

_NO_LENGTHS = "its lengths are those of a data set that is not in the file"
_DATA_ELSEWHERE = {
    "shareGPT": "its lengths are those of ShareGPT: read that file with blis convert sharegpt",
    "cnn_dailymail": _NO_LENGTHS,
    "infinity_instruct": _NO_LENGTHS,
    "billsum_conversations": _NO_LENGTHS,
    "visionarena": _NO_LENGTHS,
    "otel_trace_replay": "its requests are those of its traces: read these with blis convert otel",
    "weka_trace_replay": "its requests are those of its traces: read these with blis convert weka",
    "synthetic_agentic": "its sessions follow from themes of inference-perf that are not in the file",
}
"""Kinds of data whose lengths are not in the configuration, and where they are."""
_LOADS_ELSEWHERE = {
    "trace_replay": "its times are those of its trace: read that file with blis convert azure",
    "trace_session_replay": "its sessions are those of its data: read their traces with blis convert",
}
"""Kinds of load that are not in the configuration, and where they are."""
_MOST_STAGES = 1000
_MOCK_PROMPT_TOKENS = 6
_MOCK_REPLY_TOKENS = 30


def of_configuration(source: str, loaded: Mapping[str, Any], options: ConvertOptions) -> Imported:
    """The section of a configuration; what is not about the workload is counted. Raises TraceError."""
    reader = _Reader(source, options)
    load, data = (
        _Part(reader, key, expect(f"{source} key {key}", "an object", loaded.get(key) or {})) for key in _PARTS
    )
    api = _Part(reader, "api", expect(f"{source} key api", "an object", loaded.get("api") or {}))
    shared_prefix = reader.data(data)  # first: of a load with its data elsewhere these say more
    section = {**reader.load(load), "shared_prefix": shared_prefix}
    if api.flag("streaming"):
        section["streaming"] = True
    for part in (load, data, api):
        part.leave()
    left_out = {f"key {key}": 1 for key in loaded if key not in (*_PARTS, "api")} | reader.left_out
    text = dump_yaml({"version": "2", "seed": reader.seed, "inference_perf": section})
    return Imported(spec=parse_spec(text, source), left_out=left_out, notes=tuple(dict.fromkeys(reader.notes)))


_PARTS = ("load", "data")


class _Part:
    """An object of the configuration, which knows what of it was read."""

    def __init__(self, reader: "_Reader", name: str, values: Mapping[str, Any]) -> None:
        self.place = f"{reader.source} key {name}"
        self.values = values
        self._reader = reader
        self._name = name
        self._taken: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, which is no longer left out."""
        self._taken.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def number(self, key: str, default: float | None = None) -> float:
        """A number that is not negative."""
        value = self.take(key, default)
        return float(expect(f"{self.place}.{key}", "a number", value))

    def count(self, key: str, default: int | None = None) -> int:
        return int(expect(f"{self.place}.{key}", "a whole number", self.take(key, default)))

    def text(self, key: str, default: str) -> str:
        """A word."""
        return str(expect(f"{self.place}.{key}", "text", self.take(key, default)))

    def flag(self, key: str) -> bool:
        """Whether something is so; not, where the key is missing."""
        value = self.take(key, False)
        if not isinstance(value, bool):
            raise TraceError(f"{self.place}.{key}: expected true or false, got {str(value)[:60]!r}")
        return value

    def part(self, key: str) -> "_Part":
        """An object inside, which must be there."""
        self._taken.add(key)
        return _Part(self._reader, f"{self._name}.{key}", at(self.place, self.values, key, "an object"))

    def leave(self) -> None:
        """Count the keys that were not read."""
        for key, value in self.values.items():
            if key not in self._taken and value is not None:
                self._reader.left_out[f"key {self._name}.{key}"] = 1


class _Reader:
    """Reads a configuration into a section, and gathers what has no place there."""

    def __init__(self, source: str, options: ConvertOptions) -> None:
        self.source = source
        self.seed = 42
        self.left_out: dict[str, int] = {}
        self.notes: list[str] = []
        self._options = options

    def load(self, load: _Part) -> dict[str, Any]:
        """The stages. Raises TraceError for a load that is not in the configuration itself."""
        kind = load.text("type", "constant")
        if kind == "concurrent":
            return {"concurrent_stages": self._stages(load, ("num_requests", "concurrency_level"))}
        if kind in _LOADS_ELSEWHERE:
            raise TraceError(f"{load.place}.type: {kind} is not read, {_LOADS_ELSEWHERE[kind]}")
        if kind not in ("constant", "poisson"):
            expected = ", ".join(("constant", "poisson", "concurrent", *_LOADS_ELSEWHERE))
            raise TraceError(f"{load.place}.type: expected {expected}, got {kind!r}")
        found = {"process": kind}
        if load.values.get("sweep") is not None:
            return {**found, "stages": self._sweep(load.part("sweep"))}
        return {**found, "stages": self._stages(load, ("rate", "duration"))}

    def _stages(self, load: _Part, keys: tuple[str, str]) -> list[dict[str, Any]]:
        load.take("stages")
        stages = []
        for number, each in enumerate(at(load.place, load.values, "stages", "a list")):
            place = f"{load.place}.stages[{number}]"
            stage = expect(place, "an object", each)
            stages.append({key: at(place, stage, key, "a number") for key in keys})
            for key in stage:
                if key not in keys and stage[key] is not None:
                    self.left_out[f"key load.stages.{key}"] = 1
        return stages

    def _sweep(self, sweep: _Part) -> list[dict[str, Any]]:
        """Return the stages up to the rate at which a server is saturated, which only its user knows."""
        highest = self._options.rate
        if highest is None:
            raise TraceError(f"{sweep.place}: its rates go up to what saturates a server: give that rate with --rate")
        count, duration = sweep.count("num_stages", 5), sweep.number("stage_duration", 180)
        if count > _MOST_STAGES:
            raise TraceError(f"{sweep.place}.num_stages: expected at most {_MOST_STAGES}, got {count}")
        is_geometric = sweep.text("type", "linear") == "geometric"
        rates = 1 + highest - np.geomspace(highest, 1, count) if is_geometric else np.linspace(1, highest, count)
        sweep.leave()
        return [{"rate": round(rate, 2), "duration": duration} for rate in rates.tolist()]

    def data(self, data: _Part) -> dict[str, Any]:
        """The users and their lengths. Raises TraceError for data that are not in the configuration itself."""
        kind = data.text("type", "mock")
        if kind in _DATA_ELSEWHERE:
            raise TraceError(f"{data.place}.type: {kind} is not read, {_DATA_ELSEWHERE[kind]}{_where(data, kind)}")
        if kind not in _DATA:
            raise TraceError(f"{data.place}.type: expected {', '.join((*_DATA, *_DATA_ELSEWHERE))}, got {kind!r}")
        return _DATA[kind](self, data)

    def mock(self, _: _Part) -> dict[str, Any]:
        """Prompts of a few words; replies as long as the program asks for where nothing else is said."""
        self.notes.append(f"mock prompts have about {_MOCK_PROMPT_TOKENS} tokens, replies {_MOCK_REPLY_TOKENS}")
        return {**_ONE_USER, "question_len": _MOCK_PROMPT_TOKENS, "output_len": _MOCK_REPLY_TOKENS}

    def random(self, data: _Part) -> dict[str, Any]:
        """Prompts of random text, each of its own."""
        if data.values.get("trace") is not None:
            raise TraceError(f"{data.place}.trace: the lengths are those of its file: read it with blis convert azure")
        found: dict[str, Any] = dict(_ONE_USER)
        for name, key in (("question", "input_distribution"), ("output", "output_distribution")):
            found |= self._lengths(name, data.part(key), is_shifted=True)
        return found

    def shared_prefix(self, data: _Part) -> dict[str, Any]:
        """Users in groups that share a system prompt, under both spellings of their numbers."""
        shared = data.part("shared_prefix")
        found: dict[str, Any] = {}
        for key, other in (
            ("num_unique_system_prompts", "num_groups"),
            ("num_users_per_system_prompt", "num_prompts_per_group"),
        ):
            given = shared.take(key, shared.take(other, 10))
            found[key] = expect(f"{shared.place}.{key}", "a whole number", given)
        found |= self._fixed_or_drawn(shared, "system_prompt", "system_prompt_len", 100)
        if found.pop("system_prompt_distribution", None) is not None:
            self.notes.append("system prompts have all their mean length")
        for name in ("question", "output"):
            found |= self._fixed_or_drawn(shared, name, f"{name}_len", 50)
            if shared.values.get(f"{name}_distribution") is not None:
                found |= self._lengths(name, shared.part(f"{name}_distribution"))
        if shared.flag("enable_multi_turn_chat"):
            found["enable_multi_turn_chat"] = True
        seed = shared.take("seed")
        self.seed = self.seed if seed is None else seed
        shared.leave()
        return found

    def conversation_replay(self, data: _Part) -> dict[str, Any]:
        """Conversations of drawn lengths behind one system prompt."""
        given = data.part("conversation_replay")
        self.seed = given.count("seed", 42)
        found: dict[str, Any] = {
            "num_unique_system_prompts": 1,
            "num_users_per_system_prompt": given.count("num_conversations", 200),
            "system_prompt_len": given.count("shared_system_prompt_len", 8359),
            "enable_multi_turn_chat": True,
            "context_growth": "accumulate",
            "question_len": 512,
            "output_len": 256,
            "turns_per_conversation": 10,
        }
        for name, key in (("question", "input_tokens_per_turn"), ("output", "output_tokens_per_turn")):
            if given.values.get(key) is not None:
                found |= self._lengths(name, given.part(key))
        for key, name, scale in (
            ("turns_per_conversation", "turns_per_conversation", 1),
            ("dynamic_system_prompt_len", "dynamic_system_prompt_len", 1),
            ("tool_call_latency_sec", "tool_time_us", 1_000_000),
        ):
            if given.values.get(key) is not None:
                mean = self._lengths(name, given.part(key))
                found[name] = max(int(name == "turns_per_conversation"), mean[f"{name}_len"] * scale)
                if f"{name}_distribution" in mean:
                    self.notes.append(f"{key} has its mean everywhere")
        given.leave()
        return found

    def _fixed_or_drawn(self, part: _Part, name: str, key: str, default: int) -> dict[str, Any]:
        """A length, given as a number or as a distribution."""
        if isinstance(part.values.get(key), dict):
            return self._lengths(name, part.part(key))
        return {key: part.count(key, default)}

    def _lengths(self, name: str, given: _Part, *, is_shifted: bool = False) -> dict[str, Any]:
        """The mean of a distribution, and the distribution where it has more than one value."""
        kind = given.text("type", "normal")
        low, high = given.number("min", 10), given.number("max", 1024)
        mean, deviation = given.number("mean", 512), given.number("std_dev", given.take("std", 200))
        if given.values.get("variance") is not None:
            deviation = sqrt(given.number("variance"))
        skew = given.take("skew", 0.0)
        size = expect(f"{given.place}.skew", "a number", -skew if type(skew) in (int, float) and skew < 0 else skew)
        given.take("total_count")
        given.leave()
        if low > high:
            raise TraceError(f"{given.place}: expected min to be at most max ({high:g}), got {low:g}")
        if kind == "fixed":
            return {f"{name}_len": round(mean)}
        if low == high or (deviation == 0 and kind != "uniform" and kind != "poisson"):
            return {f"{name}_len": round(min(max(mean, low), high))}
        if kind == "normal":
            params = {"mean": mean, "std_dev": deviation, "min": low, "max": high}
            return {f"{name}_len": round(mean), f"{name}_distribution": {"type": "gaussian", "params": params}}
        draw = _DRAWS.get(kind)
        if draw is None:
            raise TraceError(f"{given.place}.type: expected fixed, normal, {', '.join(_DRAWS)}, got {kind!r}")
        drawn = draw(_Shape(low, high, mean, deviation, -size if skew < 0 else size, low if is_shifted else 0.0))
        values = np.round(np.clip(np.quantile(drawn, (np.arange(_NUM_VALUES) + 0.5) / _NUM_VALUES), low, high))
        shares = Counter(str(int(value)) for value in values)
        self.notes.append(f"lengths of kind {kind} are written as {_NUM_VALUES} equally likely ones")
        return {
            f"{name}_len": round(float(values.mean())),
            f"{name}_distribution": {"type": "empirical", "params": dict(shares)},
        }


def _where(data: _Part, kind: str) -> str:
    """The folder or file that a configuration names for its traces or its data set, as the end of a sentence."""
    given = data.values.get(kind)
    named = [given.get("trace_directory"), given.get("trace_files")] if isinstance(given, dict) else []
    found = next((each for each in (*named, data.values.get("path")) if each), None)
    return "" if found is None else f" ({str(found)[:100]})"


_ONE_USER = {"num_unique_system_prompts": 1, "num_users_per_system_prompt": 1, "system_prompt_len": 0}
_DATA: Mapping[str, Callable[[_Reader, _Part], dict[str, Any]]] = {
    "mock": _Reader.mock,
    "random": _Reader.random,
    "synthetic": _Reader.random,
    "shared_prefix": _Reader.shared_prefix,
    "conversation_replay": _Reader.conversation_replay,
}


class _Shape(NamedTuple):
    """The parameters of a distribution; lengths of lognormal ones lie `shift` above what is drawn."""

    low: float
    high: float
    mean: float
    deviation: float
    skew: float
    shift: float


_NUM_VALUES = 256
_NUM_DRAWN = 100_000


def _uniform(shape: _Shape) -> Floats:
    return np.linspace(shape.low, shape.high, _NUM_DRAWN)


def _lognormal(shape: _Shape) -> Floats:
    """Values whose own mean and standard deviation these are."""
    mean = max(1.0, shape.mean - shape.shift)
    variance = log(1 + (shape.deviation / mean) ** 2)
    drawn = np.random.default_rng(0).lognormal(log(mean) - variance / 2, sqrt(variance), _NUM_DRAWN)
    return np.asarray(drawn + shape.shift)


def _skew_normal(shape: _Shape) -> Floats:
    """Values of the larger of two normal ones that depend on each other, as far as the skew says."""
    random = np.random.default_rng(0)
    one, other = random.standard_normal(_NUM_DRAWN), random.standard_normal(_NUM_DRAWN)
    share = shape.skew / sqrt(1 + shape.skew**2)
    mixed = share * np.abs(one) + sqrt(1 - share**2) * other
    return np.asarray(shape.mean + shape.deviation * mixed)


def _poisson(shape: _Shape) -> Floats:
    return np.random.default_rng(0).poisson(shape.mean, _NUM_DRAWN).astype(np.float64)


_DRAWS: Mapping[str, Callable[[_Shape], Floats]] = {
    "uniform": _uniform,
    "lognormal": _lognormal,
    "skew_normal": _skew_normal,
    "poisson": _poisson,
}

# Workloads of inference-perf as specs: its configuration, or a spec with a section `inference_perf`.


def convert(options: ConvertOptions) -> Imported:
    """A spec of what the file describes, whichever of the two it is. Raises TraceError."""
    text = read_text(options.path)
    loaded = expect(str(options.path), "an object", parse_yaml(options.path, text))
    if "load" in loaded or "data" in loaded:
        return of_configuration(str(options.path), loaded, options)
    spec = parse_spec(text, str(options.path))
    if spec.inference_perf is None:
        raise TraceError(f"{options.path}: expected load and data of inference-perf, or a section inference_perf")
    if has_waiting_requests(spec.inference_perf):
        raise TraceError(
            f"{options.path} key inference_perf: its requests wait for others and are no clients, run it as it is"
        )
    return _written_out(spec, spec.inference_perf, str(options.path))


def _written_out(spec: WorkloadSpec, section: InferencePerf, source: str) -> Imported:
    """A client per user and stage, each at the rate of its stage."""
    several = len(section.stages) > 1
    chat = section.shared_prefix.enable_multi_turn_chat
    clients: list[Client] = []
    start_us = 0
    for number, stage in enumerate(section.stages):
        end_us = start_us + round(stage.duration * 1e6)
        users = _users(section, stage)
        clients += (
            [_only_in(number, start_us, end_us, stage.rate / len(users), user) for user in users] if several else users
        )
        start_us = end_us
    first = section.stages[0]
    converted = dataclasses.replace(
        spec,
        inference_perf=None,
        category="reasoning" if chat else "language",
        clients=tuple(clients),
        aggregate_rate=sequential_sum(stage.rate for stage in section.stages),
        num_requests=spec.num_requests or (0 if several or chat else int(first.rate * first.duration)),
    )
    notes = ["the section sends a fixed number of requests per user, clients do so on average"]
    if section.process == "constant":
        notes.append("the section sends evenly, clients by chance")
    return Imported(spec=spec_of(plain_spec(converted), f"{source}, as clients,"), notes=tuple(notes))


def _users(section: InferencePerf, stage: Stage) -> list[Client]:
    """The users during a stage; the first ones take what does not divide evenly."""
    users = users_of(section)
    total, share = int(stage.rate * stage.duration), 1 / len(users)
    if not section.shared_prefix.enable_multi_turn_chat:
        return [dataclasses.replace(user, rate_fraction=share) for user in users]
    rounds = [total // len(users) + (number < total % len(users)) for number in range(len(users))]
    think_time_us = round(1e6 * len(users) / stage.rate)
    return [
        dataclasses.replace(conversing(user, count, think_time_us), rate_fraction=share)
        for user, count in zip(users, rounds, strict=True)
        if count
    ]


def _only_in(number: int, start_us: int, end_us: int, rate: float, user: Client) -> Client:
    """The user as one of a stage.

    Shares of the aggregate rate cannot differ between stages. So its Poisson arrivals are written as gamma arrivals of
    shape 1, which have their scale (the mean gap in microseconds) with them.
    """
    return dataclasses.replace(
        user,
        id=f"stage-{number}-{user.id}",
        rate_fraction=1.0,
        arrival=Arrival(process="gamma", shape=1.0, scale=1e6 / rate),
        lifecycle=Lifecycle(windows=(Window(start_us=start_us, end_us=end_us),)),
    )
