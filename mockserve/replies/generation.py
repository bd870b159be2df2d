"""One choice: what the engine is asked, and what the client will read."""

from typing import NamedTuple

from engine.request import Request
from mockserve.content.answer import Answer


class Generation(NamedTuple):
    """One choice of a reply."""

    request: Request
    answer: Answer
    seed: int = 0
    """Of what is drawn about its tokens later on."""
