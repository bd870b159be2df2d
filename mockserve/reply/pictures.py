"""Pictures in the place of answers to conversations, as models give them that generate pictures beside text."""

import base64
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

from mockserve.generation.answer import Answer
from mockserve.options.content import PictureOptions
from mockserve.protocol.bodies import Bodies, Choice, Choices, Ending, Piece, PromptOutput, Usage
from mockserve.protocol.json_text import JsonBlocks
from mockserve.reply.reply import AT_THE_END, PlannedChoice, ReplyJob

SEND_HEADER = "X-Send-Image"
"""Header with which a request asks for a picture, or for none."""
_NO = frozenset({"", "0", "false", "no"})
_WIDTH = 64
MAX_NOISE_FRACTION = 0.7
"""Farthest that a time goes from the mean, as a fraction of the mean."""


class PictureBodies(NamedTuple):
    """The bodies of a reply whose content is a picture. `bodies` makes the bodies of the conversation."""

    bodies: Bodies
    picture: str

    def opening_chunks(
        self, num_choices: int, prompt_output: PromptOutput, usage: Usage | None
    ) -> list[dict[str, Any]]:
        return self.bodies.opening_chunks(num_choices, prompt_output, usage)

    def chunk(self, index: int, piece: Piece, usage: Usage | None) -> dict[str, Any]:
        found = self.bodies.chunk(index, piece, usage)
        for choice in found["choices"]:
            choice["delta"] = {**choice["delta"], "content": self._content()}
        return found

    def usage_chunk(self, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        return self.bodies.usage_chunk(usage, metrics)

    def whole(self, choices: Choices, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        return self.bodies.whole([self._with_picture(each) for each in choices], usage, metrics)

    def _with_picture(self, choice: Choice) -> Choice:
        assert not isinstance(choice.content, JsonBlocks)
        return choice._replace(content={**choice.content, "content": self._content()})

    def _content(self) -> list[dict[str, Any]]:
        return [{"type": "image_url", "image_url": {"url": self.picture}}]


@dataclass(slots=True)
class Pictures:
    """Decides which conversations are answered with a picture, and how long each takes."""

    options: PictureOptions
    seed: int
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def is_wanted(self, header: str | None) -> bool:
        """Whether a request is answered with a picture. Its header decides, else chance does."""
        if not self.options.omni:
            return False
        if header is not None:
            return header.strip().lower() not in _NO
        return self._random.uniform(0, 100) < self.options.image_emission_rate

    def time_s(self) -> float:
        """Return the time that a picture takes."""
        mean_ms = self.options.time_to_generate_image_ms
        reach_ms = MAX_NOISE_FRACTION * mean_ms
        noise_ms = self._random.gauss(0, 1) * self.options.time_to_generate_image_std_dev_ms
        return (mean_ms + max(-reach_ms, min(reach_ms, noise_ms))) / 1000

    def job_of(self, job: ReplyJob) -> ReplyJob:
        """Return the job of a reply with pictures in the place of its answers, of one token each."""
        prompts = [prompt._replace(choices=[_one_token(each) for each in prompt.choices]) for prompt in job.prompts]
        bodies = PictureBodies(job.bodies, self._picture())
        return job._replace(bodies=bodies, prompts=prompts, templates=None, stream_interval=AT_THE_END)

    def _picture(self) -> str:
        """Return a PNG of one colour as a data URL."""
        row = b"\0" + bytes(self._random.randrange(256) for _ in range(3)) * _WIDTH
        header = struct.pack(">IIBBBBB", _WIDTH, _WIDTH, 8, 2, 0, 0, 0)
        parts = ((b"IHDR", header), (b"IDAT", zlib.compress(row * _WIDTH)), (b"IEND", b""))
        data = b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
            for kind, content in parts
        )
        return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _one_token(choice: PlannedChoice) -> PlannedChoice:
    answer = Answer([""], Ending("stop"), [""], [choice.answer.token_ids[0]])
    return replace(choice, request=choice.request._replace(output_tokens=1), answer=answer)
