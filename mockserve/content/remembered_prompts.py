"""Prompts that come again are not encoded again: load tests send the same ones many times."""

from collections import OrderedDict

from mockserve.tokenizer import Tokenizer

MOST_CHARS = 8_000_000


class RememberedPrompts:
    """The token ids of the latest prompts, up to `most_chars` characters of text in all."""

    def __init__(self, tokenizer: Tokenizer, most_chars: int = MOST_CHARS) -> None:
        self._tokenizer = tokenizer
        self._most_chars = most_chars
        self._known: OrderedDict[tuple[str, bool], list[int]] = OrderedDict()
        self._num_chars = 0

    def ids(self, text: str, add_special_tokens: bool) -> list[int]:
        """The ids of `text`, as the tokenizer gives them; the list is shared and must not be changed."""
        key = (text, add_special_tokens)
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
            return found
        ids = self._tokenizer.encode(text, add_special_tokens)
        self._known[key] = ids
        self._num_chars += len(text)
        while self._num_chars > self._most_chars:
            (oldest, _), _ = self._known.popitem(last=False)
            self._num_chars -= len(oldest)
        return ids
