"""Streams of what is heard: the stretches of a recording are worked on at once, and told one after the other."""

from collections.abc import Callable
from typing import Any

from mockserve.planning.speech import SpeechPlan
from mockserve.protocol.bodies import Ending, Usage
from mockserve.protocol.errors import ApiError
from mockserve.protocol.speech import SpeechChunks, SpeechRequest
from mockserve.replies.collected import ending_at, engine_reason, failure
from mockserve.replies.generation import Generation
from mockserve.replies.reply_set import ReplySet

SEPARATOR = " "


class SpokenStream:
    """The events of one stream. What a later stretch brings waits until those before it have ended."""

    def __init__(
        self,
        replies: ReplySet,
        plan: SpeechPlan,
        asked: SpeechRequest,
        chunks: SpeechChunks,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self._replies = replies
        self._plan = plan
        self._asked = asked
        self.chunks = chunks
        self._tell = tell
        self._current = 0
        self._waiting: list[list[tuple[str, Ending | None, int]]] = [[] for _ in plan.job.prompts]
        self._num_tokens = 0

    def replies(self) -> list["SpokenStretch"]:
        """Where the tokens of each stretch go."""
        generations = [each.generations[0] for each in self._plan.job.prompts]
        return [SpokenStretch(self, number, each) for number, each in enumerate(generations)]

    def add(self, number: int, text: str, ending: Ending | None, num_new: int) -> None:
        """What stretch `number` has brought."""
        self._waiting[number].append((text, ending, num_new))
        while self._current < len(self._waiting) and self._waiting[self._current]:
            self._send(*self._waiting[self._current].pop(0))

    def fail(self, error: ApiError) -> None:
        """The status has been sent, so the error is an event."""
        self._tell(error.body())
        self._replies.resolve()

    def _send(self, text: str, ending: Ending | None, num_new: int) -> None:
        self._num_tokens += num_new
        usage = Usage(len(self._plan.job.prompts[self._current].token_ids), self._num_tokens)
        if text or ending is not None:
            self._tell(self.chunks.text(text, ending, usage if self._asked.continuous_usage else None))
        if ending is None:
            return
        self._current += 1
        if self._current == len(self._waiting):
            if self._asked.include_usage:
                self._tell(self.chunks.usage(usage))
            self._replies.resolve()


class SpokenStretch:
    """One stretch of a stream."""

    def __init__(self, stream: SpokenStream, number: int, generation: Generation) -> None:
        self._stream = stream
        self._number = number
        self._generation = generation
        self._num_sent = 0
        self._has_text = number == 0

    def token(self, number: int) -> None:
        self._add(number, None)

    def tokens(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self.token(number)

    def finish(self, num_tokens: int) -> None:
        self._add(num_tokens, ending_at(self._generation, num_tokens))

    def abort(self, num_tokens: int) -> None:
        self._add(num_tokens, Ending("abort"))

    def fail(self, message: str, status: int) -> None:
        self._stream.fail(failure(message, status))

    @property
    def is_streamed(self) -> bool:
        return True

    @property
    def finish_reason(self) -> str:
        return engine_reason(self._generation)

    def _add(self, number: int, ending: Ending | None) -> None:
        text = "".join(self._generation.answer.texts[self._num_sent : number])
        if text and not self._has_text:
            self._has_text = True
            text = SEPARATOR + text
        self._stream.add(self._number, text, ending, number - self._num_sent)
        self._num_sent = number
