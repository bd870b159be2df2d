"""Whether a prompt is computed on one instance and its answer on another. A new decider is one function and one row."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


class Prompt(NamedTuple):
    """What a decider sees. `num_cached_tokens` is what the decode instance chosen for it is believed to have."""

    num_tokens: int
    num_cached_tokens: int
    threshold_tokens: int


Judgement: TypeAlias = Callable[[Prompt], bool]
"""True lets another instance compute the prompt."""


@dataclass(frozen=True, slots=True)
class Decider:
    """A judgement, and whether it depends on what is cached."""

    separates: Judgement
    reads_caches: bool = False


def never(_prompt: Prompt) -> bool:
    """The decode instance computes all prompts."""
    return False


def always(_prompt: Prompt) -> bool:
    """A prefill instance computes all prompts, even those that the decode instance has in its cache."""
    return True


def prefix_threshold(prompt: Prompt) -> bool:
    """A prefill instance computes a prompt of which the decode instance lacks more tokens than the threshold."""
    return prompt.num_tokens - prompt.num_cached_tokens > prompt.threshold_tokens


DECIDERS: dict[str, Decider] = {
    "never": Decider(never),
    "always": Decider(always),
    "prefix-threshold": Decider(prefix_threshold, reads_caches=True),
}
"""Name to decider."""
