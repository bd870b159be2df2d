"""Where random numbers come from: a stream of its own for each quantity of each client, derived from one seed.

The draws of a client depend on the seed and its id, never on how many other clients there are, nor on how many requests
are generated: more requests continue the same streams.
"""

from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b

import numpy as np

_MASK = 2**64 - 1


class Quantity(IntEnum):
    """Quantities that are drawn. Values are part of the seeds, so they keep their meaning."""

    ARRIVALS = 0
    INPUT_TOKENS = 1
    OUTPUT_TOKENS = 2
    REASON_RATIO = 3
    TEXT_TOKENS = 4
    IMAGE_COUNT = 5
    IMAGE_TOKENS = 6
    AUDIO_COUNT = 7
    AUDIO_TOKENS = 8
    VIDEO_COUNT = 9
    VIDEO_TOKENS = 10
    AGENT_TURNS = 11
    HELPERS = 12
    HELPER_TURNS = 13
    TASK_TOKENS = 14
    TOOL_TIME = 15


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of one client, or of a part of it."""

    seed: int
    path: tuple[int, ...] = ()

    def of(self, quantity: Quantity) -> np.random.Generator:
        """A generator at the beginning of the stream of `quantity`."""
        sequence = np.random.SeedSequence(self.seed & _MASK, spawn_key=(*self.path, quantity))
        return np.random.Generator(np.random.PCG64(sequence))

    def part(self, number: int) -> "Streams":
        """The streams of part `number`: one of a client's users or windows."""
        return Streams(self.seed, (*self.path, number))


def client_streams(seed: int, client_id: str, occurrence: int) -> Streams:
    """Return the streams of a client; `occurrence` distinguishes clients of the same id."""
    digest = int.from_bytes(blake2b(client_id.encode(), digest_size=8).digest(), "little")
    return Streams(seed, (digest, occurrence))
