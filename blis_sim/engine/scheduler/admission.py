"""Whether waiting sequences may join the batch."""

from enum import Enum

from blis_sim.engine.sequence import Sequence

NONE_DISPLACED: list[Sequence] = []
"""Where no sequence loses its place. It is never changed."""


class Admission(Enum):
    """Whether a waiting sequence may join the batch."""

    NOW = 0
    LATER = 1
    """The request waits for something, and those behind it need not."""
    BLOCKED = 2
    """Too few KV blocks are free for the request, so that those behind it wait, too."""


def num_external_tokens(sequence: Sequence) -> int:
    """Tokens that came from another instance; after a preemption they are gone. The last one is computed here."""
    external = sequence.request.external
    if external is None or sequence.num_preemptions:
        return 0
    return min(external.num_tokens, sequence.num_tokens - 1)
