"""One answer, token by token: its cost, its text and kinds of text; also answers as beam search gives them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from mockserve.protocol.bodies import Ending


class Kind(Enum):
    """What a stretch of an answer is to the client."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_NAME = "tool_name"
    TOOL_ARGUMENTS = "tool_arguments"
    MARKUP = "markup"
    """Marks around reasoning and tool calls: they cost tokens and are never shown."""
    NOTHING = "nothing"
    """An event of a stream with a null content."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A stretch of one kind. `call` numbers the tool call it belongs to."""

    kind: Kind
    text: str
    call: int = 0


class Answer(NamedTuple):
    """One answer: `texts[k-1]` is the text that a client may read when token k arrives; a token may bring none.

    Joined they are the whole text, as the model says it. `token_texts` are the tokens themselves, before anything was
    held back or cut. `deltas[k-1]` is the same text sorted by kind, without markup; None means that all is content.
    """

    texts: Sequence[str]
    ending: Ending
    token_texts: Sequence[str]
    token_ids: Sequence[int]
    deltas: Sequence[Sequence[Delta]] | None = None
    num_reasoning_tokens: int = 0
    unparsed: str | None = None
    """Where function calls were cut short: all that was said after the reasoning. A whole message has this instead of
    the calls, since vLLM parses it in one go and gives up; a stream has had what there is of them."""
    streamed_ending: Ending | None = None
    """How a stream ends, where that differs from the ending of a whole message."""

    @property
    def num_tokens(self) -> int:
        return len(self.texts)


def as_beam(answer: Answer, eos_token_id: int, keeps_end: bool) -> Answer:
    """The answer with its end marker as the reason of its end, and the marker itself only with `keeps_end`.

    A beam of nothing but the marker keeps it, as the engine has to be asked for a token.
    """
    if not answer.token_ids or answer.token_ids[-1] != eos_token_id or answer.ending.finish_reason == "length":
        return answer
    answer = answer._replace(ending=Ending(answer.ending.finish_reason, eos_token_id))
    if keeps_end or answer.num_tokens == 1:
        return answer
    return answer._replace(
        texts=answer.texts[:-1],
        token_texts=answer.token_texts[:-1],
        token_ids=answer.token_ids[:-1],
        deltas=None if answer.deltas is None else answer.deltas[:-1],
    )
