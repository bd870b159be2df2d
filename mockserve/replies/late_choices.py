"""The choices of a large whole reply: each is written when the reply is sent, so that one at a time is in memory."""

from collections.abc import Iterator
from typing import NamedTuple

from mockserve.protocol.bodies import Choice, Ending
from mockserve.replies.endings import ending_at, engine_reason, failure
from mockserve.replies.generation import Generation
from mockserve.replies.planned_prompt import PlannedPrompt
from mockserve.replies.reply_set import ReplySet


class _End(NamedTuple):
    num_tokens: int
    ending: Ending


class LateChoices:
    """The choices of one reply by their index, once all have ended. Only the first and the last are kept."""

    def __init__(self, replies: ReplySet) -> None:
        self._replies = replies
        self._ends: list[_End | None] = [None] * replies.job.num_choices
        self._kept: dict[int, Choice] = {}

    def reply(self, index: int, _prompt: PlannedPrompt, _number: int, generation: Generation) -> "EndedChoice":
        """Where the tokens of choice `index` go."""
        return EndedChoice(self._replies, self._ends, index, generation)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Choice:
        place = range(len(self))[index]
        if place not in self._kept:
            self._kept[place] = self._written(place)
        return self._kept[place]

    def __iter__(self) -> Iterator[Choice]:
        for index in range(len(self)):
            yield self._kept.get(index) or self._written(index)

    def _written(self, index: int) -> Choice:
        job, end = self._replies.job, self._ends[index]
        assert end is not None  # a reply of which a choice has failed is not written
        place, number = divmod(index, len(job.prompts[0].generations))
        prompt = job.prompts[place]
        writer = job.new_writer(prompt, prompt.generations[number])
        return writer.choice(end.num_tokens, end.ending)._replace(kv_transfer_params=job.kv_transfer_params)


class EndedChoice:
    """Keeps of one choice how it ended."""

    is_streamed = False

    def __init__(self, replies: ReplySet, ends: list[_End | None], index: int, generation: Generation) -> None:
        self._replies = replies
        self._ends = ends
        self._index = index
        self._generation = generation

    def token(self, number: int) -> None:
        """Nothing leaves before the end."""

    def tokens(self, first: int, last: int) -> None:
        """Nothing leaves before the end."""

    def finish(self, num_tokens: int) -> None:
        self._end(num_tokens, ending_at(self._generation, num_tokens))

    def abort(self, num_tokens: int) -> None:
        self._end(num_tokens, Ending("abort"))

    def fail(self, message: str, status: int) -> None:
        self._replies.fail(failure(message, status))

    @property
    def finish_reason(self) -> str:
        return engine_reason(self._generation)

    def _end(self, num_tokens: int, ending: Ending) -> None:
        self._ends[self._index] = _End(num_tokens, ending)
        if self._replies.choice_finished(num_tokens):
            self._replies.resolve()
