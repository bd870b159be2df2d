"""Chat templates that come with requests: they may compute without end, so that they are jobs for worker processes."""

from collections.abc import Mapping
from typing import Any

from blis_sim.options import OptionError
from mockserve.protocol.errors import ApiError

MOST_PROMPT_CHARS = 16 << 20


def own_prompt(
    source: str, special_tokens: Mapping[str, str], settings: Mapping[str, Any], body: Mapping[str, Any]
) -> str:
    """The prompt of a body by the template that it brings. `settings` are those of the server's `Conversations`.

    Raises ApiError for a template that is none, that refuses, or that makes a text that no context holds.
    """
    # The server, which names this function and leaves it to workers, needs neither.
    from mockserve.content.chat_templates.conversations import Conversations
    from mockserve.content.chat_templates.jinja import JinjaTemplate

    try:
        template = JinjaTemplate(source, special_tokens)
        # The template counts as the server's own, so that none among the variables of the body replaces it.
        own = Conversations(template, special_tokens=special_tokens, is_given=True, trusts_requests=True, **settings)
        text = own.prompt(body)
    except OptionError as error:
        raise ApiError(str(error).removeprefix("--chat-template: not a Jinja template: ")) from None
    except ApiError as error:
        if error.message:
            raise
        raise too_costly() from None  # what a MemoryError within a template says
    except (MemoryError, RecursionError):
        raise too_costly() from None
    if len(text) > MOST_PROMPT_CHARS:
        raise too_costly()
    return text


def too_costly() -> ApiError:
    """The refusal of a template beyond the limits."""
    return ApiError("The chat template of the request takes too much time or memory.")
