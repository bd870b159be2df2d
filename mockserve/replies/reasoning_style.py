"""How reasoning looks in streams under each of vLLM's parsers of it."""

from collections.abc import Mapping
from typing import NamedTuple

from mockserve.replies.call_style import Filler


class ReasoningStyle(NamedTuple):
    """Nulls beside reasoning and beside content, and what the last event has where no parser of calls is in force."""

    null_content: bool = False
    null_reasoning: bool = False
    after_words: Filler = Filler.EMPTY


NO_REASONING = ReasoningStyle(after_words=Filler.NOTHING)
_USUAL = ReasoningStyle()
STYLES: Mapping[str, ReasoningStyle] = {
    **dict.fromkeys(("kimi_k3", "minicpmv", "muse", "muse_glimmer", "musespark1x", "olmo3"), NO_REASONING),
    **dict.fromkeys(("hy_v4", "minimax_m3"), ReasoningStyle(null_content=True)),
    "granite": ReasoningStyle(True, True, Filler.NOTHING),
}
"""By the name of the parser; the others are usual."""


def reasoning_style(parser: str | None) -> ReasoningStyle:
    """The style of a parser; without one there is nothing to show."""
    return NO_REASONING if parser is None else STYLES.get(parser, _USUAL)
