"""Values that two servers can never share - ids, times, fingerprints, the model's words - written the same way."""

import re
from typing import Any

TEXT_KEYS = frozenset({"content", "text", "reasoning", "token", "decoded_token", "delta", "arguments", "thinking"})
"""Strings under these names are the model's words: only whether there are any is compared."""

TIME_KEYS = frozenset({"created", "created_at"})
PLACE_KEYS = frozenset({"root", "endpoint", "replay_endpoint"})
"""Folders and addresses."""

FREE_LISTS = frozenset({"bytes", "embedding"})
"""Lists whose length follows from the model's words or from the model: only their kind is compared."""

WORD_LISTS = frozenset({"token_ids", "text_offset", "tokens", "token_logprobs"})
"""Lists with one item for each token: their length is compared, not what is in them."""

WORD_MAPS = frozenset({"top_logprobs", "prompt_logprobs"})
"""Lists of what a model thought likely, as objects whose keys are tokens or as objects in a list. How many there are
follows from whether the token that came was one of the likeliest, so only the first, which is that token, is compared.
"""

DRAWN_KEYS = frozenset({"rank"})

_ID = re.compile(
    r"\b(chatcmpl-tool-|chatcmpl-|cmpl-|resp_|msg_|rs_|fc_|ctc_|embd-|pooling-|score-|generate-tokens-|modelperm-)"
    r"[0-9a-f]{16}\b"
)
_FINGERPRINT = re.compile(r"\bvllm-0\.33\.0-[0-9a-f]{8}\b")
_LONG_ID = re.compile(r"\b[0-9a-f]{32}\b")


def normal(value: Any, key: str = "") -> Any:
    """`value`, found under `key`, without what differs by nature. The order of keys stays."""
    if isinstance(value, dict):
        return {name: normal(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return _normal_list(value, key)
    if isinstance(value, str):
        return _normal_text(value, key)
    if isinstance(value, float):
        return 0.5
    if isinstance(value, int) and not isinstance(value, bool) and key in TIME_KEYS | DRAWN_KEYS:
        return 0
    return value


def normal_text(text: str) -> str:
    """Text without ids and fingerprints."""
    for pattern, replacement in ((_ID, r"\1X"), (_FINGERPRINT, "vllm-0.33.0-X"), (_LONG_ID, "X")):
        text = pattern.sub(replacement, text)
    return text


def _normal_list(values: list[Any], key: str) -> Any:
    if key in FREE_LISTS:
        return "<list>"
    if key in WORD_LISTS and not _are_counted_tokens(values, key):
        return [None if each is None else type(each).__name__ for each in values]
    if key in WORD_MAPS and any("token" in each for each in values if each is not None):
        return [normal(each) for each in values[:1]]
    if key in WORD_MAPS:
        return [_normal_word_map(each) for each in values]
    return [normal(each, key) for each in values]


def _are_counted_tokens(values: list[Any], key: str) -> bool:
    """The tokens of a tokenize reply, which are facts of the prompt."""
    return key == "tokens" and all(isinstance(each, int) for each in values)


def _normal_word_map(value: dict[str, Any] | None) -> Any:
    return None if value is None else [normal(each) for each in value.values()][:1]


def _normal_text(value: str, key: str) -> str:
    if key in TEXT_KEYS:
        return "<text>" if value else ""
    if key in PLACE_KEYS:
        return "<place>"
    return normal_text(value)
