"""Text to token ids and back: a built-in tokenizer that needs no files, or a real one from a file.

The built-in one splits English the way byte-pair vocabularies do on average: about 4.5 characters per token of plain
prose, 3 of source code. Counts are within about 15 % of a real model's for English and off by up to half for other
scripts. Give a tokenizer file where exact counts matter.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol
from zlib import crc32

from blis_sim.options import OptionError
from mockserve.content.tokens.split import Split
from mockserve.content.tokens.words import WORDS

DEFAULT_VOCABULARY_SIZE = 128_000
MAX_REMEMBERED_PIECES = 100_000
LONG_TEXT_CHARS = 100_000
PIECES_AT_ONCE = 4096

_PIECE = re.compile(
    r"<\|\w{1,12}\|>|</?(?:think|tool_call)>"  # the markers of chat templates and parsers are one token each
    r"|'(?:s|t|re|ve|m|ll|d)\b"
    r"| ?[A-Za-z]{1,7}"
    r"| ?[0-9]{1,3}"
    r"|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # one ideograph or syllable each
    r"| ?[^\W\d_A-Za-z\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{1,3}"
    r"| ?(?:(?!<\||</?t)[^\w\s]|_){1,3}"
    r"|\n{1,16}"
    r"|\s{1,16}(?!\S)"
    r"|\s"
    r"|."
)
LONGEST_PIECE_CHARS = 16
LOOKAHEAD_CHARS = 2 * LONGEST_PIECE_CHARS
"""Characters by which the expression looks beyond the end of a piece, and more."""

STRETCH_CHARS = 16_384

END_OF_TURN = "<|im_end|>"
SPECIAL_MARKERS = (END_OF_TURN, "<|im_start|>", "<|endoftext|>")

_PIECES_WITH_IDS = tuple(
    dict.fromkeys(
        (
            *SPECIAL_MARKERS,
            *("<think>", "</think>", "<tool_call>", "</tool_call>", "\n", "\n\n"),
            *map(chr, range(32, 127)),
            *(space + word for each in WORDS for word in (each, each.capitalize()) for space in ("", " ")),
            *map(str, range(10, 1000)),
        )
    )
)
"""Pieces that no other shares an id with: what answers consist of."""

_SYLLABLES = ("ba", "ce", "di", "fo", "gu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "wu", "za")


class Tokenizer(Protocol):
    """What the server asks of a tokenizer. The same text always gives the same ids."""

    @property
    def vocabulary_size(self) -> int:
        """Ids run from 0 to one less."""
        ...

    @property
    def longest_piece_chars(self) -> int:
        """The most characters that one token can stand for."""
        ...

    @property
    def eos_token_id(self) -> int:
        """The token that ends an answer."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are marks and no text."""
        ...

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The token ids of `text`, on request between the marks that open and close a sequence."""
        ...

    def split(self, text: str) -> Split:
        """The token ids of `text`, and the part of it that each makes readable."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of `ids`."""
        ...

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary spells it."""
        ...

    def marker_id(self, marker: str) -> int | None:
        """The id of a token that is spelt exactly `marker`, if there is one."""
        ...

    def count(self, text: str) -> int:
        """How many tokens `text` has."""
        ...


class BuiltinTokenizer:
    """Words of up to seven letters with the space before them are one token, and so are runs of punctuation.

    Common words, numbers and marks have the first ids; the id of any other piece is a hash of it, so it is the same in
    every process. Text is given back exactly for ids this process has seen (the latest 100,000 distinct pieces, unless
    two of them share an id); any other id reads as an invented word.
    """

    longest_piece_chars = LONGEST_PIECE_CHARS

    def __init__(self, vocabulary_size: int = DEFAULT_VOCABULARY_SIZE) -> None:
        self.vocabulary_size = vocabulary_size
        self._reserved = _PIECES_WITH_IDS if vocabulary_size > 4 * len(_PIECES_WITH_IDS) else ()
        self._ids: dict[str, int] = {}
        self._pieces: dict[int, str] = {}
        self._reserve()
        self.eos_token_id = self._ids_of([END_OF_TURN])[0]
        self.special_ids = frozenset(self._ids_of(SPECIAL_MARKERS))

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        for pieces in _stretches(text):  # all pieces of a long text would take ten times what the ids take
            ids += self._ids_of(pieces)
        return ids

    def split(self, text: str) -> Split:
        pieces = [piece for stretch in _stretches(text) for piece in stretch]
        return Split(self._ids_of(pieces), pieces)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        if skip_special_tokens:
            ids = [each for each in ids if each not in self.special_ids]
        return "".join(self.token_strings(ids))

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        known = self._pieces
        return [known[each] if each in known else invented_word(each) for each in ids]

    def marker_id(self, marker: str) -> int | None:
        return self._ids_of([marker])[0] if _PIECE.fullmatch(marker) else None

    def count(self, text: str) -> int:
        return sum(map(len, _stretches(text)))

    def _ids_of(self, pieces: Sequence[str]) -> list[int]:
        known = self._ids
        try:
            return [known[piece] for piece in pieces]
        except KeyError:
            return self._learn(pieces)

    def _reserve(self) -> None:
        """Know only the pieces that have an id of their own. Other threads go on with the dictionaries they have."""
        self._pieces = dict(enumerate(self._reserved))
        self._ids = {piece: number for number, piece in self._pieces.items()}

    def _learn(self, pieces: Sequence[str]) -> list[int]:
        """The ids of pieces of which some are not known. They are remembered while there is room."""
        if len(self._ids) > MAX_REMEMBERED_PIECES:
            self._reserve()
        known, spelt = self._ids, self._pieces
        first = len(self._reserved)
        found = []
        for piece in pieces:
            number = known.get(piece)
            if number is None:
                number = first + crc32(piece.encode("utf-8", "surrogatepass")) % (self.vocabulary_size - first)
                if len(known) <= MAX_REMEMBERED_PIECES:
                    known[piece] = number
                    spelt.setdefault(number, piece)
            found.append(number)
        return found


def _stretches(text: str) -> Iterator[list[str]]:
    """`text` cut into pieces, a stretch at a time: other threads run between two of them."""
    if len(text) <= STRETCH_CHARS:
        yield _PIECE.findall(text)
        return
    at = 0
    while at < len(text):
        end = min(len(text), at + STRETCH_CHARS)
        found = _PIECE.findall(text, at, end)
        if end < len(text):
            # What follows has a say in the last pieces, which therefore are the first of the next stretch.
            safe = end - LOOKAHEAD_CHARS
            while end > safe:
                end -= len(found.pop())
        yield found
        at = end


def load_tokenizer(path: str | None, vocabulary_size: int) -> Tokenizer:
    """The tokenizer of a tokenizer.json or of the folder that holds one; without a path the built-in one, with ids
    below `vocabulary_size`.

    Raises OptionError when there is no such file, it cannot be read, or the `tokenizers` library is missing.
    """
    if path is None:
        return BuiltinTokenizer(vocabulary_size or DEFAULT_VOCABULARY_SIZE)
    file = Path(path)
    if not (file / "tokenizer.json" if file.is_dir() else file).is_file():
        raise OptionError(f"--tokenizer must be a tokenizer.json or a folder with one, got {path!r}")
    from mockserve.content.tokens.file import open_tokenizer

    return open_tokenizer(file)


def invented_word(token_id: int) -> str:
    """A pronounceable word that stands for a token id whose text is unknown."""
    syllables: list[str] = []
    number = token_id
    while number or not syllables:
        number, digit = divmod(number, len(_SYLLABLES))
        syllables.append(_SYLLABLES[digit])
    return " " + "".join(syllables)
