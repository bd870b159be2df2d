"""Values of sampling fields that the server sets for requests that leave them open."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mockserve.protocol.asked.sampling import Sampling, output_budget

SAMPLING_NAMES = (
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "temperature"),
    *("top_k", "top_p", "min_p", "skip_special_tokens"),
)
"""Fields of `Sampling` that a generation configuration may set."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What a model's generation configuration says.

    `max_tokens` holds for requests without a limit of their own, `ceiling_tokens` for all.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    ceiling_tokens: int | None = None

    def applied(self, sampling: Sampling, body: Mapping[str, Any]) -> Sampling:
        """`sampling` with the server's value for every field that `body` leaves open."""
        if not self.sampling:
            return sampling
        found = {name: value for name, value in self.sampling.items() if body.get(name) is None}
        return replace(sampling, **found) if found else sampling

    def output_budget(
        self, sampling: Sampling, prompt_tokens: int, max_model_len: int, has_ceiling: bool = True
    ) -> int:
        """How many tokens a request may produce. Raises ApiError when it asks for more than a whole context."""
        budget = output_budget(sampling, prompt_tokens, max_model_len)
        if sampling.max_tokens is None and self.max_tokens is not None:
            budget = min(budget, self.max_tokens)
        if has_ceiling and self.ceiling_tokens is not None:
            budget = min(budget, self.ceiling_tokens)
        return budget


NO_DEFAULTS = GenerationDefaults()
