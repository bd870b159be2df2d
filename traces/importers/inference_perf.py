"""Workloads of inference-perf as specs: its configuration, or a spec with a section `inference_perf`."""

import dataclasses

from blis_sim.options.addition import sequential_sum
from traces.importers.inference_perf_data import of_configuration
from traces.importers.reading import expect
from traces.importers.registry import ConvertOptions, Imported
from traces.text_file import TraceError, parse_yaml, read_text
from traces.workload import Arrival, WorkloadSpec, parse_spec
from traces.workload.inference_perf import conversing, users_of
from traces.workload.spec import Client, InferencePerf, Lifecycle, Stage, Window
from traces.workload.spec_text import plain_spec, spec_of
from traces.workload.staged import has_waiting_requests


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
    """The user as one of a stage. Shares of the aggregate rate cannot differ between stages, so its Poisson arrivals
    are written as gamma arrivals of shape 1, which have their scale (the mean gap in microseconds) with them."""
    return dataclasses.replace(
        user,
        id=f"stage-{number}-{user.id}",
        rate_fraction=1.0,
        arrival=Arrival(process="gamma", shape=1.0, scale=1e6 / rate),
        lifecycle=Lifecycle(windows=(Window(start_us=start_us, end_us=end_us),)),
    )
