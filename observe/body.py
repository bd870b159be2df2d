"""The JSON bodies of completion requests, and how long their prompts and outputs are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

APIS = ("completions", "chat", "responses")
_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "responses": "/v1/responses"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStyle:
    """Common properties of all requests of a run. `api` is one of `APIS`.

    Outputs have exactly the planned length, unless `exact_output` is off: then the model ends them. The Responses API
    has no minimum length, so there `ignore_eos` alone keeps the model from ending earlier. Completions default to 16
    tokens, so "as long as the model likes" is `most_output_tokens` there; vLLM refuses more than its context.
    With `streaming` None each request is streamed unless it says otherwise.
    """

    model: str
    adapters: frozenset[str] = frozenset()
    """LoRA adapters that the server lists."""
    api: str = "completions"
    streaming: bool | None = None
    exact_output: bool = True
    ignore_eos: bool = True
    most_output_tokens: int = 2**31 - 1

    @property
    def path(self) -> str:
        """The path of the API."""
        return _PATHS[self.api]

    def model_of(self, model: str, adapter: str) -> str:
        """The model to note for a request that names a model or an adapter; empty for the one of the run.

        An adapter is always noted by its name, also where it is the model of the run.
        """
        named = model or (adapter if adapter in self.adapters else "")
        return named or (self.model if self.model in self.adapters else "")

    def streams(self, wish: bool | None) -> bool:
        """Whether a request asks for a stream, by its own wish where the run leaves it one."""
        if self.streaming is not None:
            return self.streaming
        return wish is not False

    def body(
        self,
        prompt: str,
        output_tokens: int,
        model: str = "",
        earlier: tuple[str, ...] = (),
        priority: int = 0,
        *,
        streaming: bool | None = None,
        media: Sequence[Mapping[str, Any]] = (),
    ) -> bytes:
        """The body of one request, for another model if one is named; `earlier` are the turns before the prompt.

        `media` are parts of the last message of a chat, behind its text.
        """
        is_streamed = self.streams(streaming)
        body: dict[str, Any] = {"model": model or self.model, **self._prompt(prompt, earlier), "stream": is_streamed}
        if media:
            body["messages"][-1]["content"] = [{"type": "text", "text": prompt}, *media]
        if self.exact_output:
            body |= self._length(output_tokens)
            if self.ignore_eos:
                body["ignore_eos"] = True
        elif self.api == "completions":
            body["max_tokens"] = self.most_output_tokens
        if priority:
            body["priority"] = priority
        if is_streamed and self.api != "responses":
            body["stream_options"] = {"include_usage": True}
        return orjson.dumps(body)

    def calibration_body(self, prompt: str) -> bytes:
        """Return the body of a request that counts the tokens of its prompt."""
        limit = "max_output_tokens" if self.api == "responses" else "max_tokens"
        return orjson.dumps({"model": self.model, **self._prompt(prompt), "stream": False, limit: 1})

    def _length(self, output_tokens: int) -> dict[str, int]:
        if self.api == "responses":
            return {"max_output_tokens": output_tokens}
        return {"max_tokens": output_tokens, "min_tokens": output_tokens}

    def _prompt(self, prompt: str, earlier: tuple[str, ...] = ()) -> dict[str, Any]:
        if self.api == "completions":
            # A reply stands right behind its prompt, as the model continued it.
            spaced = [" " + turn if place and place % 2 == 0 else turn for place, turn in enumerate((*earlier, prompt))]
            return {"prompt": "".join(spaced)}
        roles = ("user", "assistant")
        messages = [{"role": roles[place % 2], "content": turn} for place, turn in enumerate((*earlier, prompt))]
        if self.api == "responses":
            # Nothing of a load test is worth storing.
            return {"input": messages if earlier else prompt, "store": False}
        return {"messages": messages}
