"""Prompts that end within the last message: where that is in a rendered template, and what of it is there."""

from collections.abc import Sequence
from typing import Any

from mockserve.content.chat_templates.turns import Turn

_KEY = "content"
MARK = "\ue001end of the final message\ue001"
"""Stands behind the final text while the template is rendered; no client's text has it."""
_PROBE = f"{MARK} "
"""The mark with a space behind it, which a template that trims contents takes away."""


def marked(turns: Sequence[Turn], source: str) -> tuple[list[Turn], str]:
    """The turns with the mark behind the text of the last one, and that text.

    Raises ValueError where there is no text that an answer could go on from.
    """
    *earlier, last = turns
    content = last.get(_KEY)
    if content is None:
        raise ValueError(f'continue_final_message is set but the final message has no "{_KEY}" to continue!')
    if _KEY not in source:
        raise ValueError(
            f'continue_final_message is set to "{_KEY}" but this is not an accepted field in the chat_template'
        )
    if isinstance(content, str):
        return [*earlier, {**last, _KEY: content + _PROBE}], content
    parts, text = _marked_parts(content)
    return [*earlier, {**last, _KEY: parts}], text


def _marked_parts(content: Sequence[Any]) -> tuple[list[Any], str]:
    for place in range(len(content) - 1, -1, -1):
        part = content[place]
        if "text" in part:
            return [*content[:place], {**part, "text": part["text"] + _PROBE}, *content[place + 1 :]], part["text"]
    raise ValueError("continue_final_message is set but we could not find any text to continue in the final message!")


def open_ended(rendered: str, final_text: str) -> str:
    """A rendered prompt up to the mark. Trailing white space stays unless the template takes it away.

    Raises ValueError where the template has left the final text out.
    """
    text = final_text.strip()
    if text not in rendered or MARK not in rendered:
        raise ValueError(
            "continue_final_message is set but the final message does not appear in the chat after applying the chat "
            "template! This can happen if the chat template deletes portions of the final message. Please verify the "
            "chat template and final message in your chat to ensure they are compatible."
            f"Final message to continue: {text}\nRendered chat:\n{rendered.replace(_PROBE, '').replace(MARK, '')}"
        )
    place = rendered.rindex(MARK)
    before = rendered[:place]
    return before if rendered.startswith(_PROBE, place) else before.rstrip()
