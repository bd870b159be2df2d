"""What the tokens of one choice look like to the client, for the one or the other reply format."""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from mockserve.content.answer import Delta
from mockserve.protocol.bodies import Choice, Ending, Piece
from mockserve.protocol.logprob_shapes import LONG_TOKENS, Scored, ScoredTokens
from mockserve.replies.generation import Generation
from mockserve.replies.planned_prompt import PlannedPrompt
from mockserve.replies.scoring import Scorer


class ChoiceWriter(Protocol):
    """Shapes the tokens of one choice. Tokens are counted from 0; a range excludes its end."""

    @property
    def sends_text_only(self) -> bool:
        """Whether a token brings its text and nothing else, so that its event can be filled into a template."""
        ...

    def text_piece(self, text: str) -> Piece:
        """What a token brings that brings this text and nothing else."""
        ...

    def stretch(self, place: int) -> Delta | None:
        """What one token brings if that is text of one kind and nothing else, which is filled into a template."""
        ...

    def stretch_piece(self, stretch: Delta) -> Piece:
        """What a token brings that brings this stretch and nothing else."""
        ...

    def piece(self, first: int, last: int) -> Piece | None:
        """What these tokens bring to a stream; None if nothing that the client sees. Ranges must follow each other."""
        ...

    def last_piece(self, first: int, last: int) -> Piece:
        """The same at the end of the choice, where there always is something to send."""
        ...

    def choice(self, num_tokens: int, ending: Ending) -> Choice:
        """All of it, for a whole reply."""
        ...


NewWriter: TypeAlias = Callable[[PlannedPrompt, Generation], ChoiceWriter]
NewScorer: TypeAlias = Callable[[Generation], Scorer]


def scored_tokens(scorer: Scorer, generation: Generation, first: int, last: int) -> ScoredTokens:
    """The tokens of a choice with their log-probabilities; many are scored each time they are gone through."""
    found = AnswerScores(scorer, generation, first, last)
    return found if len(found) > LONG_TOKENS else list(found)


class AnswerScores:
    """Some tokens of an answer, each scored when its turn comes."""

    def __init__(self, scorer: Scorer, generation: Generation, first: int, last: int) -> None:
        self._scorer = scorer
        self._answer = generation.answer
        self._places = range(first, last)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Scored]:
        score, ids, texts = self._scorer.score, self._answer.token_ids, self._answer.token_texts
        return (score(place, ids[place], texts[place]) for place in self._places)
