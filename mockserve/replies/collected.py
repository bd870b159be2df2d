"""Choices of a whole reply: nothing leaves before the last token, and a large reply is written choice by choice."""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import NamedTuple

from mockserve.protocol.bodies import Choice, Ending
from mockserve.protocol.errors import ApiError, engine_dead
from mockserve.replies.choice_writer import ChoiceWriter
from mockserve.replies.generation import Generation, PlannedPrompt
from mockserve.replies.reply_set import ReplySet


def ending_at(generation: Generation, num_tokens: int, is_stream: bool = False) -> Ending:
    """The planned ending, or `length` when the engine stopped earlier."""
    answer = generation.answer
    if num_tokens < answer.num_tokens:
        return Ending("length")
    return answer.ending if answer.streamed_ending is None or not is_stream else answer.streamed_ending


def engine_reason(generation: Generation) -> str:
    """Why a choice ended as the engine sees it, which knows nothing of tool calls."""
    reason = generation.answer.ending.finish_reason
    return "stop" if reason == "tool_calls" else reason


def failure(message: str, status: int) -> ApiError:
    """A refusal is the request's fault; anything else is a dead engine."""
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return engine_dead()
    return ApiError(message, status=status, kind=_KINDS.get(status, "BadRequestError"))


_KINDS: Mapping[int, str] = {
    HTTPStatus.TOO_MANY_REQUESTS: "RateLimitError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailableError",
}


class CollectedChoice:
    """A choice of a whole reply: keeps nothing but its end."""

    def __init__(self, replies: ReplySet, writer: ChoiceWriter, generation: Generation) -> None:
        self._replies = replies
        self._writer = writer
        self._generation = generation
        self.choice: Choice | None = None

    def token(self, number: int) -> None:
        pass

    def tokens(self, first: int, last: int) -> None:
        pass

    def finish(self, num_tokens: int) -> None:
        self._end(num_tokens, ending_at(self._generation, num_tokens))

    def abort(self, num_tokens: int) -> None:
        self._end(num_tokens, Ending("abort"))

    def _end(self, num_tokens: int, ending: Ending) -> None:
        choice = self._writer.choice(num_tokens, ending)
        self.choice = choice._replace(kv_transfer_params=self._replies.job.kv_transfer_params)
        if self._replies.choice_finished(num_tokens):
            self._replies.resolve()

    def fail(self, message: str, status: int) -> None:
        self._replies.fail(failure(message, status))

    @property
    def is_streamed(self) -> bool:
        return False

    @property
    def finish_reason(self) -> str:
        return engine_reason(self._generation)


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
