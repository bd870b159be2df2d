"""The `inference_perf` section of a spec: users in groups that share a system prompt, at rates that come in stages."""

import dataclasses
from collections.abc import Iterator

from traces.workload.arrivals import Timeline
from traces.workload.lengths import LengthProfile
from traces.workload.sources import Source, arrivals_before_end, fixed_count_arrivals, named, renewal_process
from traces.workload.spec import Arrival, Client, Distribution, InferencePerf, MultiTurn, Reasoning, Stage

_POISSON = Arrival(process="poisson")
_EVEN = Arrival(process="constant")


def inference_perf_sources(section: InferencePerf, seed: int) -> list[Source]:
    """Return every user in every stage. A stage sends exactly rate times duration requests."""
    users = users_of(section)
    several = len(section.stages) > 1
    sources: list[Source] = []
    start_s, num_before = 0.0, 0
    for number, stage in enumerate(section.stages):
        prefix = f"stage-{number}-" if several else ""
        clients = [dataclasses.replace(user, id=prefix + user.id) for user in users]
        total = int(stage.rate * stage.duration)
        is_single = not several and not section.process
        places = _single_shares(total, len(users)) if is_single else _shares(section, num_before, total)
        sources += _stage_sources(section, clients, places, stage, round(start_s * 1e6), seed)
        start_s += stage.duration
        num_before += total
    return sources


def _single_shares(total: int, num_users: int) -> list[tuple[int, int]]:
    """The first users take what does not divide evenly, as in the original."""
    return [(number, total // num_users + (number < total % num_users)) for number in range(num_users)]


def _shares(section: InferencePerf, num_before: int, total: int) -> list[tuple[int, int]]:
    """For each user its turn in the stage, and how many requests it sends.

    Users take turns through all stages, each one of the next group.
    """
    shared = section.shared_prefix
    num_groups, num_each = shared.num_unique_system_prompts, shared.num_users_per_system_prompt
    num_users = num_groups * num_each
    turns = [
        (user * num_groups + group - num_before) % num_users for group in range(num_groups) for user in range(num_each)
    ]
    return [(turn, max(0, -(-(total - turn) // num_users))) for turn in turns]


def users_of(section: InferencePerf) -> list[Client]:
    """The users as clients that send at a rate yet to be said."""
    shared = section.shared_prefix
    return [
        Client(
            id=f"prompt-{prompt}-user-{user}",
            tenant_id=f"prompt-{prompt}",
            slo_class="standard",
            prefix_group=f"prompt-{prompt}" if shared.system_prompt_len else "",
            prefix_length=shared.system_prompt_len,
            arrival=_POISSON,
            streaming=section.streaming,
            input_distribution=shared.question_distribution or _constant(shared.question_len),
            output_distribution=shared.output_distribution or _constant(shared.output_len),
        )
        for prompt in range(shared.num_unique_system_prompts)
        for user in range(shared.num_users_per_system_prompt)
    ]


def _constant(tokens: int) -> Distribution:
    return Distribution(type="constant", params={"value": tokens})


def _stage_sources(
    section: InferencePerf,
    clients: list[Client],
    places: list[tuple[int, int]],
    stage: Stage,
    start_us: int,
    seed: int,
) -> Iterator[Source]:
    rate = stage.rate / len(clients)
    duration_us = stage.duration * 1e6
    for (turn, share), (client, label, streams) in zip(places, named(clients, seed), strict=True):
        timeline: Timeline
        several = len(section.stages) > 1
        if section.shared_prefix.enable_multi_turn_chat:
            if not share:
                continue
            think_time_us = round(1e6 / rate)
            client = conversing(client, share, think_time_us, section.shared_prefix.context_growth)
            # A conversation begins when it begins, even after a short single stage.
            timeline = renewal_process(_POISSON, rate, None)
            if several:
                room_us = max(1.0, duration_us - (share - 1) * think_time_us)
                timeline = arrivals_before_end(_POISSON, rate, start_us, room_us, 1)
        elif section.process == "constant":
            # A user of N sends every N-th request; all requests are evenly apart, half a gap from begin and end.
            first_us = start_us + round((turn + 0.5 - len(clients)) * 1e6 / stage.rate)
            timeline = fixed_count_arrivals(_EVEN, rate, first_us, share * 1e6 / rate, share)
        elif several or section.process:
            timeline = arrivals_before_end(_POISSON, rate, start_us, duration_us, share)
        else:
            timeline = fixed_count_arrivals(_POISSON, rate, start_us, duration_us, share)
        profile = LengthProfile(client, client.input_distribution, client.output_distribution)
        yield Source(label=label, profile=profile, timeline=timeline, streams=streams)


def conversing(client: Client, num_rounds: int, think_time_us: int, context_growth: str = "") -> Client:
    """The client as one that has a single conversation."""
    multi_turn = MultiTurn(
        max_rounds=num_rounds, think_time_us=think_time_us, single_session=True, context_growth=context_growth
    )
    return dataclasses.replace(client, reasoning=Reasoning(multi_turn=multi_turn))
