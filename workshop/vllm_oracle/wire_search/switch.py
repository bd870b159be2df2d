"""ASGI middleware of a genuine vLLM server: a header chooses the parsers of a request, so one server has them all.

Start the server with `--middleware workshop.vllm_oracle.wire_search.switch.SwitchParsers` and the root of the
checkout in PYTHONPATH. Everything that reads an answer stays vLLM's own. Requests must come one at a time.

The engine, which lets a grammar begin where reasoning ends, is another process: the module of its stand-in executor
calls `let_requests_choose_reasoning`.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from vllm.parser import ParserManager  # type: ignore[import-not-found]
from vllm.reasoning import ReasoningParserManager  # type: ignore[import-not-found]
from vllm.v1.structured_output import StructuredOutputManager  # type: ignore[import-not-found]

HEADER = "x-parsers"
"""The header's value is the name of a parser of function calls, a comma, and that of a parser of reasoning."""
UNKNOWN_STATUS = 599
REASONER = "fx_reasoner"
"""The argument of a request for the engine that names the parser of reasoning there."""


def let_requests_choose_reasoning() -> None:
    """Make the engine of this process take the parser of reasoning from each request."""

    def parser_of(manager: Any, request: Any) -> Any:
        asked = request.structured_output_request
        name = (getattr(request.sampling_params, "extra_args", None) or {}).get(REASONER)
        if asked is None or not name:
            return None
        if asked.reasoner is None:
            parser = ReasoningParserManager.get_reasoning_parser(name)
            asked.reasoner = parser(tokenizer=manager.tokenizer, **(asked.reasoning_parser_kwargs or {}))
        return asked.reasoner

    StructuredOutputManager._get_reasoner = parser_of


class SwitchParsers:
    """Sets the parsers in the parts of the server that have one."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._known: dict[tuple[str, str], Any] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request."""
        headers = dict(scope.get("headers") or ())
        requested = headers.get(HEADER.encode())
        if requested is not None:
            tool, _, reasoning = requested.decode().partition(",")
            try:
                self._switch(scope["app"].state, tool, reasoning)
            except Exception as error:  # noqa: BLE001  (a parser that this tokenizer cannot have)
                await send({"type": "http.response.start", "status": UNKNOWN_STATUS, "headers": []})
                await send({"type": "http.response.body", "body": str(error).encode()})
                return
        await self._app(scope, receive, send)

    def _switch(self, state: Any, tool: str, reasoning: str) -> None:
        for value in list(state._state.values()):
            for name in (None, "online_renderer", "online_derenderer"):
                self._set(value if name is None else getattr(value, name, None), tool, reasoning)

    def _set(self, part: Any, tool: str, reasoning: str) -> None:
        fields = getattr(part, "__dict__", {})
        renderer = fields.get("renderer")
        for name in ("parser", "parser_cls"):
            if name in fields:
                setattr(part, name, self._parser(tool, reasoning, None if renderer is None else renderer.tokenizer))
        if "enable_auto_tools" in fields:
            part.enable_auto_tools = bool(tool)
        if "_include_reasoning_tokens_details" in fields:
            part._include_reasoning_tokens_details = bool(reasoning)

    def _parser(self, tool: str, reasoning: str, tokenizer: Any) -> Any:
        key = (tool, reasoning)
        if key not in self._known:
            self._known[key] = ParserManager.get_parser(
                tool_parser_name=tool or None,
                reasoning_parser_name=reasoning or None,
                enable_auto_tools=bool(tool),
                model_name="m",
                tokenizer=tokenizer,
            )
        return self._known[key]
