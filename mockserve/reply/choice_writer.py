"""The conversion of the tokens of a choice to text with log-probabilities."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from mockserve.generation.answer import MAX_RANK, token_logprobs
from mockserve.generation.tokenizer import Tokenizer
from mockserve.protocol.bodies import (
    LONG_TOKENS,
    Candidate,
    Choice,
    Ending,
    LongCompletionLogprobs,
    Piece,
    ScoredPrompt,
    ScoredToken,
    ScoredTokens,
    completion_logprobs,
    next_offset,
)
from mockserve.reply.reply import ChoiceWriter, NewTextPiece, PlannedChoice, PlannedPrompt


class Scorer:
    """Scores tokens by their position. Equal seeds give equal values; `candidates` are alternative tokens of a step.

    With `chosen_ids`, the chosen ids replace the likeliest candidates. The token of a beam is one of the `num_top`
    likeliest, which are in their order.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        candidates: Sequence[int],
        seed: int,
        is_greedy: bool,
        num_top: int,
        chosen_ids: Sequence[int] = (),
        is_beam: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._candidates = candidates
        self._seed = seed
        self._is_greedy = is_greedy
        self._num_top = num_top
        self._chosen_ids = chosen_ids
        self._is_beam = is_beam

    def score(self, place: int, token_id: int, piece: str | None = None) -> ScoredToken:
        """Score the token at `place`; `piece` is its part of the text, if known."""
        num_top = max(0, self._num_top)
        max_rank = num_top if self._is_beam else MAX_RANK
        seed = self._seed + place
        found = token_logprobs(seed, token_id, num_top, self._candidates, self._is_greedy, max_rank)
        text = self._text(token_id) if piece is None or token_id in self._tokenizer.special_ids else piece
        chosen = Candidate(token_id, text, found.logprob, found.rank)
        if self._chosen_ids:
            return ScoredToken(chosen, [chosen, *self._score_requested_ids(chosen)])
        likeliest = [
            chosen if each == token_id else Candidate(each, self._text(each), logprob, rank)
            for rank, (each, logprob) in enumerate(found.top, start=1)
        ]
        if self._is_beam:
            return ScoredToken(chosen, likeliest)
        return ScoredToken(chosen, [chosen, *(each for each in likeliest if each is not chosen)])

    def score_all(self, token_ids: Sequence[int]) -> ScoredPrompt:
        """Score the tokens of a prompt; the first has no score. Many tokens are scored anew in each iteration."""
        found = PromptScores(self, token_ids)
        return found if len(token_ids) > LONG_TOKENS else list(found)

    def _score_requested_ids(self, chosen: Candidate) -> list[Candidate]:
        """Divide the probability left by the chosen token among the candidates, each half of the rest."""
        left = math.log(max(1e-9, 1 - math.exp(chosen.logprob)))
        return [
            Candidate(each, self._text(each), left - (number + 1) * math.log(2), chosen.rank + number + 1)
            for number, each in enumerate(self._chosen_ids)
            if each != chosen.token_id
        ]

    def _text(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id])


class PromptScores:
    """The tokens of a prompt, scored during iteration."""

    def __init__(self, scorer: Scorer, token_ids: Sequence[int]) -> None:
        self._scorer = scorer
        self._token_ids = token_ids

    def __len__(self) -> int:
        return len(self._token_ids)

    def __iter__(self) -> Iterator[ScoredToken | None]:
        yield None
        for place in range(1, len(self._token_ids)):
            yield self._scorer.score(place, self._token_ids[place])


NewScorer: TypeAlias = Callable[[PlannedChoice], Scorer]


def scored_tokens(scorer: Scorer, choice: PlannedChoice, first: int, last: int) -> ScoredTokens:
    """Return the tokens of a choice with their log-probabilities; many tokens are scored anew in each iteration."""
    found = AnswerScores(scorer, choice, first, last)
    return found if len(found) > LONG_TOKENS else list(found)


class AnswerScores:
    """A range of an answer's tokens, scored during iteration."""

    def __init__(self, scorer: Scorer, choice: PlannedChoice, first: int, last: int) -> None:
        self._scorer = scorer
        self._answer = choice.answer
        self._places = range(first, last)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[ScoredToken]:
        score, ids, texts = self._scorer.score, self._answer.token_ids, self._answer.token_texts
        return (score(place, ids[place], texts[place]) for place in self._places)


class CompletionShape(NamedTuple):
    """The requested form of completion choices. `num_top` of None includes every scored candidate.

    `echo` repeats the prompt before the answer; `only_echoes` omits the answer.
    """

    new_scorer: NewScorer | None = None
    num_top: int | None = 0
    tokens_as_ids: bool = False
    shows_token_ids: bool = False
    echo: bool = False
    only_echoes: bool = False

    def text_pieces(self, _generation: PlannedChoice) -> NewTextPiece | None:
        """Return what makes the pieces of a choice whose tokens add only their text; None for other choices."""
        return None if self.new_scorer is not None or self.shows_token_ids or self.echo else Piece

    def writer(self, prompt: PlannedPrompt, choice: PlannedChoice) -> "CompletionWriter":
        """The writer of one choice."""
        return CompletionWriter(self, prompt, choice)


class CompletionWriter(ChoiceWriter):
    """Writes one choice."""

    def __init__(self, shape: CompletionShape, prompt: PlannedPrompt, choice: PlannedChoice) -> None:
        self._shape = shape
        self._prompt = prompt
        self._choice = choice
        self._answer = choice.answer
        self._scorer = None if shape.new_scorer is None else shape.new_scorer(choice)
        self._text_offset = 0
        """Offset of the next tokens in the names of all tokens so far."""

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
            prompt_output=self._prompt.prompt_output,
        )

    def _text(self, first: int, last: int) -> str:
        answer_text = "" if self._shape.only_echoes else "".join(self._answer.texts[first:last])
        if self._shape.echo and first == 0 and not self._shape.shows_token_ids:
            return self._prompt.text + answer_text
        return answer_text

    def _logprobs(self, first: int, last: int) -> dict[str, Any] | None:
        if self._scorer is None:
            return None
        shape = self._shape
        num_echoed = 0 if first or not shape.echo or self._prompt.scores is None else len(self._prompt.scores)
        tokens = chain(self._echoed(num_echoed), self._answer_tokens(self._scorer, first, last))
        if num_echoed + last - first > LONG_TOKENS:
            long = LongCompletionLogprobs(tokens, shape.num_top, shape.tokens_as_ids, self._text_offset)
            self._text_offset = long.text_offset
            return long.body
        found = completion_logprobs(tokens, shape.num_top, shape.tokens_as_ids, self._text_offset)
        if found["tokens"]:
            self._text_offset = next_offset(found)
        return found

    def _echoed(self, num_tokens: int) -> Iterator[ScoredToken | tuple[int, str]]:
        """Return the tokens of the prompt if they are repeated; the first has no log-probability."""
        if num_tokens:
            opening = self._prompt.token_ids[0], self._prompt.first_token_text
            for each in self._prompt.scores or ():
                yield opening if each is None else each

    def _answer_tokens(self, scorer: Scorer, first: int, last: int) -> Iterable[ScoredToken]:
        return () if self._shape.only_echoes else scored_tokens(scorer, self._choice, first, last)
