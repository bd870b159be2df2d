"""What stands for the chat template of a tokenizer that has none."""

from collections.abc import Sequence

from mockserve.content.chat_templates.chatml import TemplateRequest
from mockserve.content.chat_templates.turns import Turn
from mockserve.protocol.errors import ApiError


class MissingTemplate:
    """Refuses every conversation, in the words of vLLM."""

    takes_parts = False

    def render(self, turns: Sequence[Turn], request: TemplateRequest) -> str:
        raise ApiError(
            "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template "
            "if the tokenizer does not define one."
        )
