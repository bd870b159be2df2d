"""Files of inference-perf: its configuration, as a spec, and the requests of its report."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from blis_sim.options.addition import sequential_sum
from blis_sim.options.yaml_text import dump_yaml
from traces.importers.reading import at, expect
from traces.importers.registry import ConvertOptions, Imported, recording
from traces.rows import TraceRow
from traces.text_file import TraceError, parse_yaml, read_json, read_text
from traces.workload import Arrival, WorkloadSpec, parse_spec
from traces.workload.inference_perf import conversing, users_of
from traces.workload.spec import Client, InferencePerf, Lifecycle, Stage, Window
from traces.workload.spec_text import plain_spec, spec_of

_SECTION_KEYS = (
    "num_unique_system_prompts",
    "num_users_per_system_prompt",
    "system_prompt_len",
    "question_len",
    "output_len",
    "enable_multi_turn_chat",
)


def convert(options: ConvertOptions) -> Imported:
    """A spec of what the file describes, whichever of the two it is. Raises TraceError."""
    text = read_text(options.path)
    loaded = expect(str(options.path), "an object", parse_yaml(options.path, text))
    if "load" in loaded or "data" in loaded:
        return _of_configuration(str(options.path), loaded)
    spec = parse_spec(text, str(options.path))
    if spec.inference_perf is None:
        raise TraceError(f"{options.path}: expected load and data of inference-perf, or a section inference_perf")
    return _written_out(spec, spec.inference_perf, str(options.path))


def _of_configuration(source: str, loaded: Mapping[str, Any]) -> Imported:
    """Stages and shared prefixes have the same words in both formats; the rest is not about the workload."""
    load, data = (at(source, loaded, key, "an object") for key in ("load", "data"))
    if data.get("type") != "shared_prefix":
        raise TraceError(f"{source} key data.type: expected shared_prefix, got {data.get('type')!r}")
    shared = at(f"{source} key data", data, "shared_prefix", "an object")
    stages = [
        expect(f"{source} key load.stages", "an object", stage)
        for stage in at(f"{source} key load", load, "stages", "a list")
    ]
    section = {
        "stages": [{key: stage.get(key) for key in ("rate", "duration")} for stage in stages],
        "shared_prefix": {key: shared[key] for key in _SECTION_KEYS if key in shared},
    }
    left_out = {f"key {key}": 1 for key in loaded if key not in ("load", "data")}
    left_out |= {f"key load.{key}": 1 for key in load if key != "stages"}
    left_out |= {f"key data.{key}": 1 for key in data if key not in ("type", "shared_prefix")}
    left_out |= {f"key data.shared_prefix.{key}": 1 for key in shared if key not in _SECTION_KEYS}
    text = dump_yaml({"version": "2", "seed": 42, "inference_perf": section})
    return Imported(spec=parse_spec(text, source), left_out=left_out)


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
    notes = ("the section sends a fixed number of requests per user, clients do so on average",)
    return Imported(spec=spec_of(plain_spec(converted), f"{source}, as clients,"), notes=notes)


def _users(section: InferencePerf, stage: Stage) -> list[Client]:
    """The users during a stage; the first ones take what does not divide evenly."""
    users = users_of(section.shared_prefix)
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
    """The user as one of a stage. Shares of the aggregate rate cannot differ between stages, so its Poisson arrivals
    are written as gamma arrivals of shape 1, which have their scale (the mean gap in microseconds) with them."""
    return dataclasses.replace(
        user,
        id=f"stage-{number}-{user.id}",
        rate_fraction=1.0,
        arrival=Arrival(process="gamma", shape=1.0, scale=1e6 / rate),
        lifecycle=Lifecycle(windows=(Window(start_us=start_us, end_us=end_us),)),
    )


def convert_results(options: ConvertOptions) -> Imported:
    """The requests of a report, due when they were scheduled, or else sent. Raises TraceError.

    The times of the file count from some start.
    """
    source = str(options.path)
    entries = expect(source, "a list", read_json(options.path))
    if not entries:
        raise TraceError(f"{source}: expected requests, got none")
    return recording(options, [_request(f"{source} request {number}", each) for number, each in enumerate(entries)])


def _request(place: str, entry: Any) -> tuple[TraceRow, list[int]]:
    expect(place, "an object", entry)
    sent_us = _us(place, entry, "start_time")
    due_us = _us(place, entry, "scheduled_time") if entry.get("scheduled_time") is not None else 0
    ended_us = _us(place, entry, "end_time")
    info = at(place, entry, "info", "an object")
    error = entry.get("error")
    stamps = expect(f"{place} key output_token_times", "a list", info.get("output_token_times") or [])
    times = [round(float(expect(f"{place} output_token_times", "a time in seconds", each)) * 1e6) for each in stamps]
    times = [] if error else times
    row = TraceRow(
        request_id=0,
        streaming=bool(times),
        input_tokens=_count(place, info, "input_tokens"),
        output_tokens=_count(place, info, "output_tokens"),
        arrival_time_us=due_us,
        send_time_us=sent_us,
        first_chunk_time_us=times[0] if times else 0 if error else ended_us,
        last_chunk_time_us=times[-1] if times else 0 if error else ended_us,
        num_chunks=len(times) or int(not error),
        status="error" if error else "ok",
        error_message=_words(error),
    )
    return row, times


def _us(place: str, entry: Mapping[str, Any], key: str) -> int:
    return round(float(at(place, entry, key, "a time in seconds")) * 1e6)


def _count(place: str, info: Mapping[str, Any], key: str) -> int:
    return int(expect(f"{place} key {key}", "a whole number", info.get(key) or 0))


def _words(error: Any) -> str:
    if isinstance(error, dict):
        return ": ".join(str(error[key]) for key in ("error_type", "error_msg") if error.get(key))
    return str(error or "")
