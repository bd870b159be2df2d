"""From the body of a chat request to the text of its prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blis_options import OptionError
from mockserve.content.chat_templates.chatml import ChatMLTemplate, ChatTemplate, TemplateRequest, turns_of
from mockserve.options.content import ContentOptions, json_object
from mockserve.protocol.completions.messages import read_messages
from mockserve.protocol.completions.template_arguments import effort_arguments
from mockserve.protocol.errors import ApiError


@dataclass(frozen=True, slots=True)
class Conversations:
    """One server's way of putting prompts together. `special_tokens` are what templates call `bos_token` and so on."""

    template: ChatTemplate = field(default_factory=ChatMLTemplate)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    default_arguments: Mapping[str, Any] = field(default_factory=dict)
    trusts_requests: bool = False
    hides_unusable_tools: bool = False

    def prompt(self, body: Mapping[str, Any]) -> str:
        """The prompt of a body with `messages` and whatever else bears on it.

        Raises ApiError for a conversation that is none, or that the template refuses.
        """
        messages = body.get("messages") or []
        texts = [each.content for each in read_messages(messages)]
        template = self._template(body)
        turns = turns_of(messages, texts, template.takes_parts)
        return template.render(turns, self._request(body))

    def _template(self, body: Mapping[str, Any]) -> ChatTemplate:
        own = body.get("chat_template")
        if own is None:
            return self.template
        if not self.trusts_requests:
            raise ApiError(
                "Chat template is passed with request, but --trust-request-chat-template is not set. "
                "Refused request with untrusted chat template."
            )
        try:
            return _compiled(str(own), self.special_tokens, None)
        except OptionError as error:
            raise ApiError(str(error).removeprefix("--chat-template: ")) from None

    def _request(self, body: Mapping[str, Any]) -> TemplateRequest:
        unusable = self.hides_unusable_tools and body.get("tool_choice") == "none"
        arguments = dict(self.default_arguments)
        arguments |= effort_arguments(body.get("reasoning_effort"))
        arguments.update(_mapping(body.get("chat_template_kwargs")))
        continues = body.get("continue_final_message")
        adds = body.get("add_generation_prompt")
        return TemplateRequest(
            tools=() if unusable else _sequence(body.get("tools")),
            documents=_sequence(body.get("documents")),
            add_generation_prompt=True if adds is None else bool(adds),
            continue_final_message=bool(continues),
            arguments=arguments,
        )


def open_conversations(options: ContentOptions, model_folder: Path | None) -> Conversations:
    """How the server makes prompts: by the template it is given, else by that of the model folder, else by ChatML.

    Raises OptionError when a template cannot be read, or when the `jinja2` library is missing.
    """
    tokens: Mapping[str, str] = {}
    template: ChatTemplate = ChatMLTemplate()
    source = _given_source(options.chat_template)
    if model_folder is not None:
        from mockserve.content.tokens.file import read_settings
        from mockserve.content.tokens.special import special_tokens, template_source

        tokens = special_tokens(read_settings(model_folder))
        source = source or template_source(model_folder)
    if source is not None:
        wanted = options.chat_template_content_format
        template = _compiled(source, tokens, None if wanted == "auto" else wanted == "openai")
    return Conversations(
        template,
        tokens,
        json_object("--default-chat-template-kwargs", options.default_chat_template_kwargs),
        options.trust_request_chat_template,
        options.exclude_tools_when_tool_choice_none,
    )


def _given_source(given: str | None) -> str | None:
    """A template given as a file, or as text if it cannot be the name of one."""
    if given is None:
        return None
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if "{" not in given and "\n" not in given:
            raise OptionError(
                f"--chat-template must be a readable file or a template, got {given!r}: {error}"
            ) from None
        return given


def _compiled(source: str, tokens: Mapping[str, str], takes_parts: bool | None) -> ChatTemplate:
    try:
        from mockserve.content.chat_templates.jinja import JinjaTemplate
    except ImportError as error:
        raise OptionError(
            "a chat template needs the jinja2 library: pip install 'blis-mockserve[tokenizers]'"
        ) from error
    return JinjaTemplate(source, tokens, takes_parts)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
