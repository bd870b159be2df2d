"""Where the tokens of a whole reply go: nothing leaves before the last one."""

from mockserve.protocol.bodies import Choice, Ending
from mockserve.replies.choice_writer import ChoiceWriter
from mockserve.replies.endings import ending_at, engine_reason, failure
from mockserve.replies.generation import Generation
from mockserve.replies.reply_set import ReplySet


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
