"""The JSON bodies that `vllm bench serve` sends, field by field."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

PATHS: Mapping[str, str] = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
}
"""Backend to the end that the path of its API must have."""

APIS: Mapping[str, str] = {
    "openai": "completions",
    "vllm": "completions",
    "openai-chat": "chat",
    "openai-responses": "responses",
}
"""Backend to its name in `observe`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyStyle:
    """Common fields of all bodies of a run; `extra` comes last and replaces fields of its names."""

    backend: str
    model: str
    logprobs: int | None = None
    ignore_eos: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, prompt: str, output_tokens: int, model: str = "") -> bytes:
        """The body of one request, for another model if one is named."""
        common: dict[str, Any] = {"model": model or self.model, **self._prompt(prompt, output_tokens), "stream": True}
        if self.backend != "openai-responses":
            common["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            common["ignore_eos"] = True
        return orjson.dumps({**common, **self.extra})

    def _prompt(self, prompt: str, output_tokens: int) -> dict[str, Any]:
        if self.backend == "openai-chat":
            content = [{"type": "text", "text": prompt}]
            return {"messages": [{"role": "user", "content": content}], "max_completion_tokens": output_tokens}
        if self.backend == "openai-responses":
            return {"input": prompt, "max_output_tokens": output_tokens, "store": False}
        return {"prompt": prompt, "repetition_penalty": 1.0, "max_tokens": output_tokens, "logprobs": self.logprobs}
