"""What a request asks of its answer besides sampling: how it may end, which form it must have, what it answers."""

from typing import NamedTuple

from mockserve.content.constraints.kinds import Constraint, DeferredForm
from mockserve.content.thinking import Thinking
from mockserve.content.tool_calls import ToolUse
from mockserve.options.structured_outputs import AUTO, StructuredOutputsConfig


class AnswerForm(NamedTuple):
    """`asked` is what the answer replies to: the last user message or the prompt, then the whole prompt.

    `is_parsed`: the server has a parser for tool calls or reasoning, which all chat answers go through.
    """

    constraint: Constraint | None = None
    structured_outputs: StructuredOutputsConfig = AUTO
    tools: ToolUse | None = None
    thinking: Thinking | None = None
    asked: tuple[str, ...] = ()
    is_parsed: bool = False
    natural_tokens: int | None = None
    """Length of an answer that ends by itself, where what is asked sets it."""
    goes_on: bool = False
    """Whether it stands right behind a word of the prompt, as completions do."""

    @property
    def is_plain(self) -> bool:
        """Whether nothing is demanded of the answer that a worker might have to write."""
        return self.tools is None and not isinstance(self.constraint, DeferredForm)


PLAIN = AnswerForm()
