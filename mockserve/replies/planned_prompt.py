"""One prompt of a request with everything that will be said in answer to it."""

from collections.abc import Sequence
from typing import NamedTuple

from mockserve.protocol.bodies import Prompted
from mockserve.protocol.logprob_shapes import ScoredPrompt, prompt_logprobs
from mockserve.replies.generation import Generations


class PlannedPrompt(NamedTuple):
    """`scores` are there when the client wants the log-probabilities of the prompt's tokens; `text` may be repeated."""

    token_ids: Sequence[int]
    text: str
    generations: Generations
    scores: ScoredPrompt | None = None
    first_token_text: str = ""
    shows_text: bool = False

    @property
    def prompted(self) -> Prompted:
        """What the reply may say of the prompt."""
        return Prompted(
            token_ids=self.token_ids,
            text=self.text if self.shows_text else None,
            logprobs=None if self.scores is None else prompt_logprobs(self.scores),
        )
