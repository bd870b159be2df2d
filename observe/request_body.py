"""The JSON bodies of completion requests."""

from dataclasses import dataclass
from typing import Any

import orjson

# What "as long as the model likes" is to an API whose own default is 16 tokens.
_UNLIMITED_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStyle:
    """What all requests of a run have in common.

    Outputs have exactly the planned length, unless `exact_output` is off: then the model ends them.
    """

    model: str
    chat: bool = False
    streaming: bool = True
    exact_output: bool = True
    ignore_eos: bool = True

    @property
    def path(self) -> str:
        """The path of the API."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, prompt: str, output_tokens: int) -> bytes:
        """The body of one request."""
        body: dict[str, Any] = {"model": self.model, **self._prompt(prompt), "stream": self.streaming}
        if self.exact_output:
            body |= {"max_tokens": output_tokens, "min_tokens": output_tokens}
            if self.ignore_eos:
                body["ignore_eos"] = True
        elif not self.chat:
            body["max_tokens"] = _UNLIMITED_TOKENS
        if self.streaming:
            body["stream_options"] = {"include_usage": True}
        return orjson.dumps(body)

    def calibration_body(self, prompt: str) -> bytes:
        """The body of a request that only asks how many tokens its prompt has."""
        body = {"model": self.model, **self._prompt(prompt), "stream": False, "max_tokens": 1}
        return orjson.dumps(body)

    def _prompt(self, prompt: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
