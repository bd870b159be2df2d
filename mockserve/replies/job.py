"""Everything that is known of a reply before its first token."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mockserve.protocol.asked.stream_options import Delivery
from mockserve.protocol.bodies import Bodies
from mockserve.replies.accounting import Accounting
from mockserve.replies.choice_writer import NewWriter
from mockserve.replies.event_templates import EventTemplates
from mockserve.replies.planned_prompt import PlannedPrompt
from mockserve.replies.stream_errors import CHAT_ERRORS, StreamErrors

AT_THE_END = 0
"""A stream interval: nothing is sent before all of a choice is there."""


class ReplyJob(NamedTuple):
    """A reply to write: its choices prompt by prompt, how each looks, and what is reported beside them.

    `stream_interval` is how many tokens an event waits for after the first.
    """

    bodies: Bodies
    new_writer: NewWriter
    delivery: Delivery
    prompts: Sequence[PlannedPrompt]
    accounting: Accounting = Accounting()
    stream_interval: int = 1
    templates: EventTemplates | None = None
    """Where events of usual formats have their templates from; without it each stream makes its own."""
    errors: StreamErrors = CHAT_ERRORS
    num_announced: int | None = None
    """Choices that a stream opens, where that is not the number of those that follow."""
    is_empty: bool = False
    """Whether no token is wanted, so that the engine is not asked."""
    kv_transfer_params: Mapping[str, Any] | None = None
    """What the end of a choice tells a later server about the blocks it left."""

    is_long: bool = False
    """Whether the choices are submitted in turn and the reply is written on another thread."""

    @property
    def num_choices(self) -> int:
        return sum(len(prompt.generations) for prompt in self.prompts)
