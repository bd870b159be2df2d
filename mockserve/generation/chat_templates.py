"""From the body of a chat request to the text of its prompt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blis_sim.installation import install_command
from blis_sim.options import OptionError
from blis_sim.options.files import read_text
from blis_sim.options.option import json_object
from mockserve.executor.worker import Job
from mockserve.generation.chat_turns import ChatMLTemplate, ChatTemplate, MissingTemplate, TemplateRequest, Turns
from mockserve.options.content import ContentOptions
from mockserve.protocol.chat_messages import effort_arguments, tool_definitions
from mockserve.protocol.errors import ApiError
from mockserve.protocol.forms import as_flag

DEFAULT, FOR_TOOLS = "default", "tool_use"
"""Names of templates in a tokenizer that has several."""
USED = (DEFAULT, FOR_TOOLS)
UNSET = (None, "auto")
"""Values of arguments that leave the preceding setting in force."""
ABOUT_PROMPTS = (
    "messages",
    "tools",
    "tool_choice",
    "documents",
    "reasoning_effort",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
)
"""Fields of a body that determine the prompt."""


def _in_place(job: Job[str], _refusal: ApiError) -> str:
    return job.done()


@dataclass(frozen=True, slots=True)
class ChatRenderer:
    """Renders conversations to prompts. `special_tokens` are the templates' variables such as `bos_token`.

    `tool_template` replaces `template` for requests with tools; None is one template for both.
    """

    template: ChatTemplate = field(default_factory=ChatMLTemplate)
    tool_template: ChatTemplate | None = None
    is_given: bool = False
    """Whether the template is the server's own, not the tokenizer's."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    default_arguments: Mapping[str, Any] = field(default_factory=dict)
    trusts_requests: bool = False
    hides_unusable_tools: bool = False
    run_job: Callable[[Job[str], ApiError], str] = _in_place
    """Settings for a template in a request; the error is raised for a template beyond the limits."""

    def prompt(self, body: Mapping[str, Any]) -> str:
        """Return the prompt of a body with `messages` and related fields.

        Raises ApiError for an invalid conversation, or one that the template refuses.
        """
        own = self._own_source(body)
        if own is not None:
            return self._render_own_template(own, body)
        template, request = self.prepared(body)
        return template.render(Turns(body.get("messages") or [], template.takes_parts), request)

    def prepared(self, body: Mapping[str, Any]) -> tuple[ChatTemplate, TemplateRequest]:
        """Return the template of a body without one of its own, and what the template gets beside the messages."""
        arguments = self._arguments(body)
        has_tools = arguments.get("tools") is not None
        template = self.tool_template if has_tools and self.tool_template is not None else self.template
        request = TemplateRequest(
            tools=arguments.pop("tools", None),
            documents=arguments.pop("documents", None),
            add_generation_prompt=arguments.pop("add_generation_prompt"),
            continue_final_message=arguments.pop("continue_final_message"),
            arguments=arguments,
        )
        return template, request

    def makes_token_ids(self, body: Mapping[str, Any]) -> bool:
        """Whether a body lets the template's library make the token ids: then without marks, and without a text."""
        given = body.get("chat_template_kwargs")
        return bool(given) and bool(_mapping_or_empty(given).get("tokenize"))

    def has_own_template(self, body: Mapping[str, Any]) -> bool:
        """Whether a body has a template of its own, which must not be rendered in the event loop."""
        return self.trusts_requests and self._own_source(body) is not None

    def refuse_untrusted(self, body: Mapping[str, Any]) -> None:
        """Raise ApiError for a body with a template of its own where requests may have none."""
        given = _mapping_or_empty(body.get("chat_template_kwargs")).get("chat_template")
        if not self.trusts_requests and (body.get("chat_template") is not None or given is not None):
            raise ApiError(
                "Chat template is passed with request, but --trust-request-chat-template is not set. "
                "Refused request with untrusted chat template."
            )

    def _own_source(self, body: Mapping[str, Any]) -> str | None:
        """Return the template of a body, if any. Raises ApiError where requests may not have templates."""
        self.refuse_untrusted(body)
        own, given = body.get("chat_template"), _mapping_or_empty(body.get("chat_template_kwargs")).get("chat_template")
        # The template among the variables counts only where the request has no other and the server none of its own.
        source = own or (None if self.is_given else given)
        return None if source is None else str(source)

    def _render_own_template(self, source: str, body: Mapping[str, Any]) -> str:
        """Return the prompt rendered by the template of the request. Raises ApiError."""
        rest = {name: body[name] for name in ABOUT_PROMPTS if name in body}
        settings = {
            "default_arguments": dict(self.default_arguments),
            "hides_unusable_tools": self.hides_unusable_tools,
        }
        job = Job(render_own_template, (source, dict(self.special_tokens), settings, rest), is_small=False)
        return self.run_job(job, template_too_costly())

    def _arguments(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the variables of a template. Fields of the request override its variables, which override the
        server's."""
        adds, continues_word = body.get("add_generation_prompt"), body.get("continue_final_message")
        given = _mapping_or_empty(body.get("chat_template_kwargs"))
        fields = {
            "add_generation_prompt": True if adds is None else as_flag(adds),
            "continue_final_message": False if continues_word is None else as_flag(continues_word),
            "documents": body.get("documents"),
            **effort_arguments(body.get("reasoning_effort"), given),
        }
        arguments = dict(self.default_arguments)
        hides_tools = self.hides_unusable_tools and body.get("tool_choice") == "none"
        if isinstance(body.get("tools"), list) and not hides_tools:
            arguments["tools"] = tool_definitions(body["tools"])
        return arguments | _set_arguments(given) | _set_arguments(fields)


def load_chat_renderer(options: ContentOptions, model_folder: Path | None) -> ChatRenderer:
    """Return the chat renderer of the server with the given template, else the template of the model folder.

    Conversations are refused with a folder without a template. Without a folder, prompts are ChatML. Raises OptionError
    when a template cannot be read, or when the `jinja2` library is missing.
    """
    tokens: Mapping[str, str] = {}
    sources: Mapping[str, str] = {}
    given = _given_source(options.chat_template)
    if model_folder is not None:
        from mockserve.generation.tokenizer import read_settings, special_tokens, template_sources

        tokens = special_tokens(read_settings(model_folder))
        sources = template_sources(model_folder)
    if given is not None:
        sources = {DEFAULT: given}
    requested = options.chat_template_content_format
    takes_parts = None if requested == "auto" else requested == "openai"
    templates = {
        name: _compiled_template(source, tokens, takes_parts) for name, source in sources.items() if name in USED
    }
    otherwise = ChatMLTemplate() if model_folder is None else MissingTemplate()
    return ChatRenderer(
        template=templates.get(DEFAULT, otherwise),
        tool_template=templates.get(FOR_TOOLS),
        is_given=given is not None,
        special_tokens=tokens,
        default_arguments=json_object("--default-chat-template-kwargs", options.default_chat_template_kwargs),
        trusts_requests=options.trust_request_chat_template,
        hides_unusable_tools=options.exclude_tools_when_tool_choice_none,
    )


def _given_source(given: str | None) -> str | None:
    """Return a template given as a file, or as text if it cannot be a file name."""
    if given is None:
        return None
    try:
        return read_text(given)
    except (OSError, UnicodeDecodeError) as error:
        if "{" not in given and "\n" not in given:
            raise OptionError(
                f"--chat-template must be a readable file or a template, got {given!r}: {error}"
            ) from None
        return given


def _compiled_template(source: str, tokens: Mapping[str, str], takes_parts: bool | None) -> ChatTemplate:
    try:
        from mockserve.generation.jinja_template import JinjaTemplate
    except ImportError as error:
        raise OptionError(f"a chat template needs the jinja2 library: {install_command('tokenizers')}") from error
    return JinjaTemplate(source, tokens, takes_parts)


def _mapping_or_empty(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _set_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value not in UNSET}


MOST_PROMPT_CHARS = 16 << 20


def render_own_template(
    source: str, special_tokens: Mapping[str, str], settings: Mapping[str, Any], body: Mapping[str, Any]
) -> str:
    """Render the prompt of a body with the template of the request.

    `settings` come from the server's `ChatRenderer`. Raises ApiError for an invalid template, a refusal by the
    template, or a text that is longer than any context.
    """
    # Imported here because only workers call this function; the server process needs neither library.
    from mockserve.generation.chat_templates import ChatRenderer
    from mockserve.generation.jinja_template import JinjaTemplate

    try:
        template = JinjaTemplate(source, special_tokens)
        # The template counts as the server's own, so that none among the variables of the body replaces it.
        own = ChatRenderer(template, special_tokens=special_tokens, is_given=True, trusts_requests=True, **settings)
        text = own.prompt(body)
    except OptionError as error:
        raise ApiError(str(error).removeprefix("--chat-template: not a Jinja template: ")) from None
    except ApiError as error:
        if error.message:
            raise
        raise template_too_costly() from None  # the message of a MemoryError within a template
    except (MemoryError, RecursionError):
        raise template_too_costly() from None
    if len(text) > MOST_PROMPT_CHARS:
        raise template_too_costly()
    return text


def template_too_costly() -> ApiError:
    """Return the error of a template beyond the limits."""
    return ApiError("The chat template of the request takes too much time or memory.")
