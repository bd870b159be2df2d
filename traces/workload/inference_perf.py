"""The `inference_perf` section of a spec: users in groups that share a system prompt, at rates that come in stages."""

import dataclasses
from collections.abc import Iterator

from traces.workload.arrivals import Timeline
from traces.workload.lengths import LengthProfile
from traces.workload.sources import Source, fixed_count_arrivals, named, renewal_process
from traces.workload.spec import Arrival, Client, Distribution, InferencePerf, MultiTurn, Reasoning, SharedPrefix, Stage

_POISSON = Arrival(process="poisson")


def inference_perf_sources(section: InferencePerf, seed: int) -> list[Source]:
    """Return every user in every stage. A single stage sends exactly rate times duration requests; several are
    Poisson."""
    users = users_of(section.shared_prefix)
    several = len(section.stages) > 1
    sources: list[Source] = []
    start_s = 0.0
    for number, stage in enumerate(section.stages):
        prefix = f"stage-{number}-" if several else ""
        clients = [dataclasses.replace(user, id=prefix + user.id) for user in users]
        sources += _stage_sources(section, clients, stage, round(start_s * 1e6), seed)
        start_s += stage.duration
    return sources


def users_of(shared: SharedPrefix) -> list[Client]:
    """The users as clients that send at a rate yet to be said."""
    return [
        Client(
            id=f"prompt-{prompt}-user-{user}",
            tenant_id=f"prompt-{prompt}",
            slo_class="standard",
            prefix_group=f"prompt-{prompt}" if shared.system_prompt_len else "",
            prefix_length=shared.system_prompt_len,
            arrival=_POISSON,
            input_distribution=Distribution(type="constant", params={"value": shared.question_len}),
            output_distribution=Distribution(type="constant", params={"value": shared.output_len}),
        )
        for prompt in range(shared.num_unique_system_prompts)
        for user in range(shared.num_users_per_system_prompt)
    ]


def _stage_sources(
    section: InferencePerf, clients: list[Client], stage: Stage, start_us: int, seed: int
) -> Iterator[Source]:
    total = int(stage.rate * stage.duration)
    rate = stage.rate / len(clients)
    duration_us = stage.duration * 1e6
    span = (start_us, start_us + round(duration_us))
    for number, (client, label, streams) in enumerate(named(clients, seed)):
        # The first users take what does not divide evenly.
        share = total // len(clients) + (number < total % len(clients))
        timeline: Timeline
        if section.shared_prefix.enable_multi_turn_chat:
            if not share:
                continue
            client = conversing(client, share, round(1e6 / rate))
            # A conversation begins when it begins, even after a short single stage.
            timeline = renewal_process(_POISSON, rate, (span,) if len(section.stages) > 1 else None)
        elif len(section.stages) > 1:
            timeline = renewal_process(_POISSON, rate, (span,))
        else:
            timeline = fixed_count_arrivals(_POISSON, rate, start_us, duration_us, share)
        profile = LengthProfile(client, client.input_distribution, client.output_distribution)
        yield Source(label=label, profile=profile, timeline=timeline, streams=streams)


def conversing(client: Client, num_rounds: int, think_time_us: int) -> Client:
    """The client as one that has a single conversation."""
    multi_turn = MultiTurn(max_rounds=num_rounds, think_time_us=think_time_us, single_session=True)
    return dataclasses.replace(client, reasoning=Reasoning(multi_turn=multi_turn))
