"""Prompts that come again are not encoded again: load tests send the same ones many times."""

from collections import OrderedDict
from threading import Lock

from mockserve.content.tokens.tokenizer import Tokenizer

MOST_CHARS = 8_000_000
CHARS_BESIDE = 250
"""What each prompt takes beside its text and ids, in characters: many short ones must not take more than a few long."""


class RememberedPrompts:
    """The token ids of the latest prompts, up to `most_chars` characters in all, `CHARS_BESIDE` with each included."""

    def __init__(self, tokenizer: Tokenizer, most_chars: int = MOST_CHARS) -> None:
        self._tokenizer = tokenizer
        self._most_chars = most_chars
        self._known: OrderedDict[tuple[str, bool], list[int]] = OrderedDict()
        self._num_chars = 0
        self._lock = Lock()
        """Long prompts are encoded on other threads."""

    def ids(self, text: str, add_special_tokens: bool) -> list[int]:
        """The ids of `text`, as the tokenizer gives them; the list is shared and must not be changed."""
        key = (text, add_special_tokens)
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
                return found
        ids = self._tokenizer.encode(text, add_special_tokens)
        self._keep(key, ids)
        return ids

    def _keep(self, key: tuple[str, bool], ids: list[int]) -> None:
        with self._lock:
            if key in self._known:  # another thread has encoded the same text meanwhile
                return
            self._known[key] = ids
            text, _ = key
            self._num_chars += len(text) + CHARS_BESIDE
            while self._num_chars > self._most_chars:
                (oldest, _), _ = self._known.popitem(last=False)
                self._num_chars -= len(oldest) + CHARS_BESIDE
