"""Pictures, recordings and videos of a prompt, and how many of their tokens an encoder computes and keeps."""

from dataclasses import dataclass
from typing import NamedTuple

from blis_sim.engine.errors import EngineError


class Medium(NamedTuple):
    """One medium of a prompt: its tokens are those from `offset` on. Media of one identity are encoded alike."""

    offset: int
    num_tokens: int
    identity: object

    @property
    def end(self) -> int:
        return self.offset + self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLimits:
    """Tokens of media that the encoder computes in one step, tokens that it keeps, and whether the prompt of a medium
    may be split between steps."""

    step_tokens: int
    cache_tokens: int
    splits_media: bool = True

    def __post_init__(self) -> None:
        for name in ("step_tokens", "cache_tokens"):
            if getattr(self, name) < 1:
                raise EngineError(f"{name} must be at least 1, got {getattr(self, name)}")
