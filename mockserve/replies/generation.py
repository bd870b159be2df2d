"""A reply before its first token: its prompts and the choices of each."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from blis_sim.engine.request import Request
from mockserve.generation.answer import Answer
from mockserve.protocol.bodies import Prompted
from mockserve.protocol.logprob_shapes import ScoredPrompt, prompt_logprobs


class Generation(NamedTuple):
    """One choice of a reply."""

    request: Request
    answer: Answer
    seed: int = 0
    """The seed of random numbers about its tokens."""


def external_id(generation: Generation, prompt_number: int) -> str:
    """Return the id by which vLLM's engine names the request of a choice: completions and responses number them."""
    name, _, _ = generation.request.id.rpartition("-")
    if name.startswith("cmpl-"):
        return f"{name}-{prompt_number}"
    return f"{name}_0" if name.startswith("resp_") else name


class LateGenerations:
    """Choices that are planned when they are requested, and again if they are requested once more.

    Together they would not fit into memory. `make` gives the same choice each time for the same index and number.
    """

    def __init__(self, make: Callable[[int, int], Generation], numbers: Sequence[int]) -> None:
        self._make = make
        self._numbers = numbers
        self._kept: dict[int, Generation] = {}

    def changed(self, change: Callable[[Generation], Generation]) -> "LateGenerations":
        """The choices with `change` applied to each."""
        make = self._make
        return LateGenerations(lambda index, number: change(make(index, number)), self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Generation:
        return self._kept.get(index) or self._make(index, self._numbers[index])

    def __iter__(self) -> Iterator[Generation]:
        return (self[index] for index in range(len(self)))

    def keep(self, index: int) -> Generation:
        """A choice that is kept until `forget`."""
        found = self._kept[index] = self[index]
        return found

    def forget(self, index: int) -> None:
        """Keep a choice no longer."""
        self._kept.pop(index, None)


Generations: TypeAlias = Sequence[Generation] | LateGenerations


class PlannedPrompt(NamedTuple):
    """`scores` are there when the request asks for the log-probabilities of the prompt's tokens; `text` may be
    repeated."""

    token_ids: Sequence[int]
    text: str
    generations: Generations
    scores: ScoredPrompt | None = None
    first_token_text: str = ""
    shows_text: bool = False

    @property
    def prompted(self) -> Prompted:
        """The prompt's part of the reply."""
        return Prompted(
            token_ids=self.token_ids,
            text=self.text if self.shows_text else None,
            logprobs=None if self.scores is None else prompt_logprobs(self.scores),
        )
