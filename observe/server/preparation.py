"""Queries before a run: the server's model, its token counts, and the round-trip time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from observe.client.client import Client
from observe.client.connection import Outcome
from observe.errors import RunError
from observe.http.request import get_bytes, post_bytes
from observe.messages import warn
from observe.requests.body import RequestStyle
from observe.requests.prompts import WORDS, TokenScale, calibration_text, scale_from_counts

_RTT_PROBES = 10
_REFUSED_FOR_GOOD = frozenset({401, 403, 404, 405})


@dataclass(frozen=True, slots=True)
class Preparation:
    """Queries one server, over its client, with the headers of all requests."""

    client: Client
    headers: Mapping[str, str]

    @property
    def health_request(self) -> bytes:
        """The cheapest question there is. Any answer to it will do."""
        return get_bytes(self.client.server, "/health", self.headers)

    async def first_model(self) -> str:
        """The first model that the server lists. Raises RunError when it lists none."""
        outcome = await self._models()
        model = _path(outcome.reply.json(), "data", 0, "id") if outcome.status == "ok" else None
        if not isinstance(model, str) or not model:
            reason = outcome.error_message or "no model is listed there"
            raise RunError(
                f"cannot ask {self.client.server.url}/v1/models for the model, give --model: {_short(reason)}"
            )
        return model

    async def context_tokens(self, model: str) -> int | None:
        """The longest context of a model, prompt and output together, where the server lists it as vLLM does."""
        outcome = await self._models()
        cards = _path(outcome.reply.json(), "data") if outcome.status == "ok" else None
        lengths = {_path(card, "id"): _path(card, "max_model_len") for card in cards} if isinstance(cards, list) else {}
        length = lengths.get(model)
        return length if isinstance(length, int) and length > 0 else None

    async def token_scale(self, style: RequestStyle) -> TokenScale:
        """Measure how the server counts words. Raises RunError when it would refuse all requests as well."""
        once = await self._count_prompt_tokens(style, 1)
        twice = await self._count_prompt_tokens(style, 2) if once is not None else None
        scale = scale_from_counts(once, twice)
        if scale is None:
            counted = "no token count" if once is None else f"{once} tokens"
            warn(f"prompts have one word per token, as the server gave {counted} for {len(WORDS)} words")
        return scale or TokenScale()

    async def round_trip_ms(self) -> float | None:
        """The shortest of a few round trips on a connection that is open; None when none came back."""
        times = []
        for _ in range(_RTT_PROBES):
            outcome = await self.client.fetch(self.health_request, timeout_s=5)
            if outcome.reply.status_code:
                times.append(outcome.reply.first_byte - outcome.sent)
        return round(min(times) / 1e6, 3) if times else None

    async def _models(self) -> Outcome:
        return await self.client.fetch(get_bytes(self.client.server, "/v1/models", self.headers))

    async def _count_prompt_tokens(self, style: RequestStyle, num_rounds: int) -> int | None:
        body = style.calibration_body(calibration_text(num_rounds))
        outcome = await self.client.fetch(post_bytes(self.client.server, style.path, self.headers, body))
        _check_not_refused(self.client.server.url + style.path, outcome)
        return outcome.reply.prompt_tokens or None


def _check_not_refused(url: str, outcome: Outcome) -> None:
    if outcome.reply.status_code in _REFUSED_FOR_GOOD:
        raise RunError(f"{url} answered {_short(outcome.error_message)}")


def _path(value: Any, *keys: str | int) -> Any:
    """A value deep inside parsed JSON, None where it does not go that far."""
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:197] + "..."
