"""Planning of transcriptions and translations of speech, and the duration of a recording from its headers."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from blis_sim.options.addition import sequential_sum
from blis_sim.wings.speech.bodies import VERBOSE, SpeechRequest, SpeechSegment, SpeechTask
from mockserve.generation.writing import OutputSpec
from mockserve.protocol.bodies import Choice
from mockserve.protocol.chat_messages import Medium
from mockserve.protocol.completions import CompletionBodies
from mockserve.protocol.errors import ApiError, unhandled_error
from mockserve.protocol.sampling import Delivery, SamplingParams
from mockserve.realtime.driver import unix_time
from mockserve.reply.choice_writer import CompletionShape
from mockserve.reply.frames import OTHER_ERRORS
from mockserve.reply.reply import PlannedPrompt, ReplyJob
from mockserve.serving.chat import medium_ids
from mockserve.serving.model import Adapter, ServedModel
from mockserve.serving.planner import draft_request, scope_of
from mockserve.serving.prompts import new_scorers, read_beams

MP3_BYTES_PER_S = 16_000
"""Assumed bytes per second of MP3 and of video containers, which are not parsed: 128 kbit/s."""

OPUS_RATE = 48_000
_CONTAINERS = (b"ftyp", b"\x1a\x45\xdf\xa3")
"""Magic numbers of MP4 and WebM."""


def duration_s(data: bytes) -> float:
    """Return the seconds of a WAV, FLAC, Ogg, MP3, MP4 or WebM file. Raises ApiError for any other file."""
    try:
        found = _duration_s(data)
    except (struct.error, IndexError, ZeroDivisionError):
        found = None
    if found is None:
        if data[8:12] == b"WAVE":
            raise ApiError("Invalid or unsupported audio file.")
        raise ApiError(
            "Invalid or corrupted audio data. Ensure the input is a valid audio or video file (e.g. a complete WAV, "
            "MP3, or MP4)."
        )
    return found


def _duration_s(data: bytes) -> float | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return _wav_duration_s(data)
    if data[:4] == b"fLaC":
        return _flac_duration_s(data)
    if data[:4] == b"OggS":
        return _ogg_duration_s(data)
    is_mp3 = data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0)
    is_container = data[4:8] == _CONTAINERS[0] or data[:4] == _CONTAINERS[1]
    return len(data) / MP3_BYTES_PER_S if is_mp3 or is_container else None


def _wav_duration_s(data: bytes) -> float | None:
    """Return the duration of a WAV file, read chunk by chunk: `fmt ` has the bytes per second, `data` the number of
    bytes."""
    place, bytes_per_s = 12, 0
    while place + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, place)
        if name == b"fmt ":
            bytes_per_s = struct.unpack_from("<I", data, place + 16)[0]
        elif name == b"data":
            # A recording of a live stream has no size in its header.
            return float(min(size, len(data) - place - 8) / bytes_per_s)
        place += 8 + size + size % 2
    return None


def _flac_duration_s(data: bytes) -> float:
    """Return the duration of a FLAC file: the first block has 20 bits of sample rate and 36 bits of samples."""
    packed = int.from_bytes(data[18:26], "big")
    return float((packed & (1 << 36) - 1) / (packed >> 44))


def _ogg_duration_s(data: bytes) -> float:
    """Return the duration of an Ogg file: the last page has the number of samples."""
    samples = struct.unpack_from("<q", data, data.rindex(b"OggS") + 6)[0]
    vorbis = data.find(b"\x01vorbis", 0, 4096)
    rate = struct.unpack_from("<I", data, vorbis + 12)[0] if vorbis >= 0 else OPUS_RATE
    return float(samples / rate)


CLIP_S = 30.0
"""Longest clip that a model like Whisper processes at once."""

AUDIO_TOKENS_PER_S = 50
SPOKEN_TOKENS_PER_S = 3.5
"""English at 150 words a minute."""

LONGEST_S = 600
MOST_REALTIME_TOKENS = 64
"""Maximum number of output tokens for one segment of live speech, as with vLLM's Qwen3-ASR."""

START_TOKENS = 4
"""Special tokens for the start, the language, the task and the absence of timestamps."""


@dataclass(frozen=True, slots=True)
class SpeechPlan:
    """A recording, and a reply with a prompt for each segment of it."""

    duration_s: float
    job: ReplyJob

    def segments(self, choices: Sequence[Choice]) -> list[SpeechSegment]:
        """Return the text of each complete segment, of the best beam if there are several."""
        num_beams = len(choices) // len(self.job.prompts)
        return [_speech_segment(self, number, choice) for number, choice in enumerate(choices[::num_beams])]


async def plan_speech(
    model: ServedModel, asked: SpeechRequest, speech: SpeechTask, recording: bytes, name: str, adapter: Adapter | None
) -> SpeechPlan:
    """Plan the reply. Raises ApiError for an invalid or long recording, and for sampling fields out of bounds."""
    length_s = duration_s(recording)
    if length_s > LONGEST_S:
        raise ApiError(
            f"Audio exceeds maximum allowed duration of {LONGEST_S}s (file contains {length_s:.1f}s). "
            "Set VLLM_MAX_AUDIO_DECODE_DURATION_S to increase this limit."
        )
    count = max(1, math.ceil(length_s / CLIP_S))
    model.queue.check(count)
    source = f"{speech.verb} {asked.spoken_language} {crc32(recording)}"
    needs_scores = asked.form.response_format == VERBOSE
    limit = asked.sampling.max_tokens
    most = None if limit is None else min(limit, model.planner.max_model_len)
    sampling = replace(asked.sampling, num_logprobs=1 if needs_scores else None, max_tokens=most)
    beams = read_beams(sampling, model.options.replies.max_logprobs) if sampling.use_beam_search else None
    if beams is not None and beams.is_empty and needs_scores:
        raise unhandled_error("")  # vLLM asserts that there are scores of tokens
    sampling = replace(sampling, n=1) if beams is None else beams.sampling
    prompts = [
        await _planned(
            model,
            replace(asked, sampling=sampling),
            medium=Medium("audio", f"{source} {number}"),
            length_s=min(CLIP_S, length_s - number * CLIP_S),
            name=name if count == 1 else f"{name}-{number}",
            adapter=adapter,
        )
        for number in range(count)
    ]
    job = ReplyJob(
        bodies=CompletionBodies(
            id=name, created=unix_time(), model=model.reply_name(adapter), fingerprint=model.fingerprint
        ),
        new_writer=CompletionShape(new_scorer=new_scorers(model, sampling)).writer,
        delivery=asked.delivery,
        prompts=prompts,
        errors=OTHER_ERRORS,
        sampling=sampling,
        is_empty=beams is not None and beams.is_empty,
    )
    return SpeechPlan(length_s, job)


async def plan_stretch(model: ServedModel, before: Sequence[int], source: str, length_s: float, name: str) -> ReplyJob:
    """Plan a reply to speech that continues earlier speech and its text."""
    model.queue.check(1)
    planner = model.planner
    num_audio_tokens = max(1, math.ceil(length_s * AUDIO_TOKENS_PER_S)) + START_TOKENS
    ids = [*before, *medium_ids(planner, Medium("audio", source), num_audio_tokens)]
    sampling = SamplingParams(temperature=0.0, max_tokens=MOST_REALTIME_TOKENS)
    form = OutputSpec(asked=("",), natural_tokens=max(1, round(length_s * SPOKEN_TOKENS_PER_S)))
    choices = await planner.plan(ids, sampling, draft_request(name), form=form)
    return ReplyJob(
        bodies=CompletionBodies(
            id=name, created=unix_time(), model=model.reply_name(None), fingerprint=model.fingerprint
        ),
        new_writer=CompletionShape(new_scorer=new_scorers(model, sampling)).writer,
        delivery=Delivery(True, False, False),
        prompts=[PlannedPrompt(token_ids=ids, text="", choices=choices)],
        errors=OTHER_ERRORS,
        sampling=sampling,
    )


async def _planned(
    model: ServedModel, asked: SpeechRequest, medium: Medium, length_s: float, name: str, adapter: Adapter | None
) -> PlannedPrompt:
    """Plan the choices of a segment. The audio counts as prompt, with at most half of the context."""
    planner = model.planner
    num_audio_tokens = min(math.ceil(length_s * AUDIO_TOKENS_PER_S), planner.max_model_len // 2) + START_TOKENS
    ids = medium_ids(planner, medium, num_audio_tokens)
    if asked.form.prompt:
        ids += planner.encode(asked.form.prompt)
    form = OutputSpec(asked=(asked.form.prompt,), natural_tokens=max(2, round(length_s * SPOKEN_TOKENS_PER_S)))
    choices = await planner.plan(ids, asked.sampling, draft_request(name, adapter), scope_of(None, adapter), form)
    return PlannedPrompt(token_ids=ids, text=asked.form.prompt, choices=choices)


def _speech_segment(plan: SpeechPlan, number: int, choice: Choice) -> SpeechSegment:
    answer = plan.job.prompts[number].choices[0].answer
    start_s = number * CLIP_S
    scores = choice.logprobs["token_logprobs"] if choice.logprobs is not None else [0.0]
    return SpeechSegment(
        text=choice.content,
        token_ids=answer.token_ids[: choice.num_tokens],
        start_s=start_s,
        end_s=min(plan.duration_s, start_s + CLIP_S),
        avg_logprob=sequential_sum(scores) / max(1, len(scores)),
    )
