"""A text cut into tokens: the ids, and the characters that each token makes readable."""

from collections.abc import Sequence
from typing import NamedTuple


class Split(NamedTuple):
    """`pieces[k]` is what a reader gets when token k arrives; joined they are the text.

    A token that ends within a character brings nothing: the token that completes the character brings it whole.
    """

    ids: Sequence[int]
    pieces: Sequence[str]

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def first(self, num_tokens: int) -> "Split":
        """Its beginning."""
        return Split(self.ids[:num_tokens], self.pieces[:num_tokens])


def whole_characters(text: str) -> str:
    """`text`, with a mark for each half of a surrogate pair: JSON can carry those, and no vocabulary or reply can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= each <= "\udfff" else each for each in text)
    return text


def split_at(text: str, ids: Sequence[int], offsets: Sequence[tuple[int, int]]) -> Split:
    """Cut `text` by the character range of each token; characters between tokens go with the token after them."""
    ends: list[int] = []
    shown = 0
    for index, (_, end) in enumerate(offsets):
        following = offsets[index + 1][0] if index + 1 < len(offsets) else len(text)
        # Two tokens that share a character overlap: the first ends within it, so all of it waits for the second.
        if end <= following:
            shown = max(shown, end)
        ends.append(shown)
    if ends:
        ends[-1] = len(text)
    return Split(ids, [text[start:end] for start, end in zip([0, *ends], ends, strict=False)])
