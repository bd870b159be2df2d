"""The tokens of one text completion, after its prompt if that is to be repeated."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from mockserve.content.answer import Delta
from mockserve.protocol.bodies import Choice, Ending, Piece
from mockserve.protocol.logprob_shapes import (
    LONG_TOKENS,
    LongCompletionLogprobs,
    Scored,
    completion_logprobs,
    next_offset,
)
from mockserve.replies.choice_writer import NewScorer, Scorer, scored_tokens
from mockserve.replies.generation import Generation, PlannedPrompt


class CompletionShape(NamedTuple):
    """How the client wants its choices. `num_top` of None shows every candidate that was scored.

    `echo` repeats the prompt before the answer, and `only_echoes` leaves the answer out.
    """

    new_scorer: NewScorer | None = None
    num_top: int | None = 0
    tokens_as_ids: bool = False
    shows_token_ids: bool = False
    echo: bool = False
    only_echoes: bool = False

    def writer(self, prompt: PlannedPrompt, generation: Generation) -> "CompletionWriter":
        """What writes one choice."""
        return CompletionWriter(self, prompt, generation)


class CompletionWriter:
    """Writes one choice."""

    def __init__(self, shape: CompletionShape, prompt: PlannedPrompt, generation: Generation) -> None:
        self._shape = shape
        self._prompt = prompt
        self._generation = generation
        self._answer = generation.answer
        self._scorer = None if shape.new_scorer is None else shape.new_scorer(generation)
        self._text_offset = 0
        """Where the next tokens begin, in the names of all before them."""

    @property
    def sends_text_only(self) -> bool:
        return self._scorer is None and not self._shape.shows_token_ids and not self._shape.echo

    def text_piece(self, text: str) -> Piece:
        return Piece(delta=text)

    def stretch(self, place: int) -> Delta | None:
        return None

    def stretch_piece(self, stretch: Delta) -> Piece:
        return self.text_piece(stretch.text)

    def piece(self, first: int, last: int) -> Piece | None:
        return self.last_piece(first, last)

    def last_piece(self, first: int, last: int) -> Piece:
        shape = self._shape
        about_prompt = first == 0 and (shape.echo or shape.shows_token_ids)
        return Piece(
            delta=self._text(first, last),
            token_ids=self._answer.token_ids[first:last] if shape.shows_token_ids else None,
            prompt_token_ids=self._prompt.token_ids if about_prompt else None,
            logprobs=self._logprobs(first, last),
        )

    def choice(self, num_tokens: int, ending: Ending) -> Choice:
        return Choice(
            content=self._text(0, num_tokens),
            ending=ending,
            num_tokens=num_tokens,
            token_ids=self._answer.token_ids[:num_tokens] if self._shape.shows_token_ids else None,
            logprobs=self._logprobs(0, num_tokens),
            prompted=self._prompt.prompted,
        )

    def _text(self, first: int, last: int) -> str:
        said = "" if self._shape.only_echoes else "".join(self._answer.texts[first:last])
        if self._shape.echo and first == 0 and not self._shape.shows_token_ids:
            return self._prompt.text + said
        return said

    def _logprobs(self, first: int, last: int) -> dict[str, Any] | None:
        if self._scorer is None:
            return None
        shape = self._shape
        num_echoed = 0 if first or not shape.echo or self._prompt.scores is None else len(self._prompt.scores)
        tokens = chain(self._echoed(num_echoed), self._said(self._scorer, first, last))
        if num_echoed + last - first > LONG_TOKENS:
            long = LongCompletionLogprobs(tokens, shape.num_top, shape.tokens_as_ids, self._text_offset)
            self._text_offset = long.text_offset
            return long.body
        found = completion_logprobs(tokens, shape.num_top, shape.tokens_as_ids, self._text_offset)
        if found["tokens"]:
            self._text_offset = next_offset(found)
        return found

    def _echoed(self, num_tokens: int) -> Iterator[Scored | tuple[int, str]]:
        """The tokens of the prompt, where they are repeated; the first has no log-probability."""
        if num_tokens:
            opening = self._prompt.token_ids[0], self._prompt.first_token_text
            for each in self._prompt.scores or ():
                yield opening if each is None else each

    def _said(self, scorer: Scorer, first: int, last: int) -> Iterable[Scored]:
        return () if self._shape.only_echoes else scored_tokens(scorer, self._generation, first, last)
