"""From a recording to what the engine is asked: a request for each stretch that the model hears at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from blis_sim.options.addition import added_up
from mockserve.content.form import AnswerForm
from mockserve.planning.prompts import medium_ids
from mockserve.planning.recordings import duration_s
from mockserve.planning.reply_settings import new_scorers
from mockserve.protocol.asked.wanted import Delivery
from mockserve.protocol.bodies import Choice
from mockserve.protocol.completions.bodies import CompletionBodies
from mockserve.protocol.completions.messages import Medium
from mockserve.protocol.errors import ApiError
from mockserve.protocol.speech import VERBOSE, Speech, SpeechRequest, Spoken
from mockserve.replies.completion_writer import CompletionShape
from mockserve.replies.frames import OTHER_ERRORS
from mockserve.replies.generation import PlannedPrompt
from mockserve.replies.identity import unix_time
from mockserve.replies.reply_set import ReplyJob
from mockserve.serving.adapters import Adapter
from mockserve.serving.planner import Terms
from mockserve.serving.service import Service

CLIP_S = 30.0
"""The longest stretch that a model like Whisper hears at once; its context knows when it is over."""

AUDIO_TOKENS_PER_S = 50
SPOKEN_TOKENS_PER_S = 3.5
"""English at 150 words a minute."""

LONGEST_S = 600
START_TOKENS = 4
"""Marks of the start, the language, the task and that there are no times."""


@dataclass(frozen=True, slots=True)
class SpeechPlan:
    """A recording, and a reply with a prompt for each stretch of it."""

    duration_s: float
    job: ReplyJob

    def heard(self, choices: Sequence[Choice]) -> list[Spoken]:
        """What was said in each stretch, when all is complete."""
        return [_spoken(self, number, choice) for number, choice in enumerate(choices)]


async def plan_speech(
    service: Service, asked: SpeechRequest, speech: Speech, recording: bytes, name: str, adapter: Adapter | None
) -> SpeechPlan:
    """Raises ApiError for a recording that is none or too long, and for sampling fields out of bounds."""
    length_s = duration_s(recording)
    if length_s > LONGEST_S:
        raise ApiError(
            f"Audio exceeds maximum allowed duration of {LONGEST_S}s (file contains {length_s:.1f}s). "
            "Set VLLM_MAX_AUDIO_DECODE_DURATION_S to increase this limit."
        )
    count = max(1, math.ceil(length_s / CLIP_S))
    service.check_queue(count)
    source = f"{speech.verb} {asked.language} {crc32(recording)}"
    wants_scores = asked.response_format == VERBOSE
    sampling = replace(asked.sampling, n=1, num_logprobs=1 if wants_scores else None)
    prompts = [
        await _planned(
            service,
            replace(asked, sampling=sampling),
            medium=Medium("audio", f"{source} {number}"),
            length_s=min(CLIP_S, length_s - number * CLIP_S),
            name=name if count == 1 else f"{name}-{number}",
            adapter=adapter,
        )
        for number in range(count)
    ]
    model = service.reply_name(adapter)
    job = ReplyJob(
        bodies=CompletionBodies(id=name, created=unix_time(), model=model, fingerprint=service.fingerprint),
        new_writer=CompletionShape(new_scorer=new_scorers(service, sampling)).writer,
        delivery=Delivery(asked.streams, asked.include_usage, asked.continuous_usage),
        prompts=prompts,
        errors=OTHER_ERRORS,
    )
    return SpeechPlan(length_s, job)


async def _planned(
    service: Service, asked: SpeechRequest, medium: Medium, length_s: float, name: str, adapter: Adapter | None
) -> PlannedPrompt:
    """The audio counts as prompt, at most half of the context."""
    planner = service.planner
    num_heard = min(math.ceil(length_s * AUDIO_TOKENS_PER_S), planner.max_model_len // 2) + START_TOKENS
    ids = medium_ids(planner, medium, num_heard)
    if asked.prompt:
        ids += planner.encode(asked.prompt)
    form = AnswerForm(asked=(asked.prompt,), natural_tokens=max(2, round(length_s * SPOKEN_TOKENS_PER_S)))
    generations = await planner.plan(ids, asked.sampling, Terms(name, lora=adapter), form)
    return PlannedPrompt(token_ids=ids, text=asked.prompt, generations=generations)


def _spoken(plan: SpeechPlan, number: int, choice: Choice) -> Spoken:
    answer = plan.job.prompts[number].generations[0].answer
    start_s = number * CLIP_S
    scores = choice.logprobs["token_logprobs"] if choice.logprobs is not None else [0.0]
    return Spoken(
        text=choice.content,
        token_ids=answer.token_ids[: choice.num_tokens],
        start_s=start_s,
        end_s=min(plan.duration_s, start_s + CLIP_S),
        avg_logprob=added_up(scores) / max(1, len(scores)),
    )
