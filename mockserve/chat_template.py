"""How a conversation becomes one prompt: ChatML, the template that most open models are close to.

With the built-in tokenizer a message costs 5 tokens besides its content (two markers, the role and two line ends), and
the prompt for the answer 3 more.
"""

from collections.abc import Iterable

from mockserve.protocol.chat import Message


def render_chat(messages: Iterable[Message]) -> str:
    """The prompt text, ending where the assistant's answer begins."""
    turns = "".join(f"<|im_start|>{each.role}\n{each.content}<|im_end|>\n" for each in messages)
    return f"{turns}<|im_start|>assistant\n"
