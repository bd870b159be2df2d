"""Text to token ids and back: a built-in tokenizer that needs no files, or a real one from a file.

The built-in one splits English the way byte-pair vocabularies do on average: about 4.5 characters per token of plain
prose, 3 of source code. Counts are within about 15 % of a real model's for English and off by up to half for other
scripts. Give a tokenizer file where exact counts matter.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

from blis_options import OptionError

DEFAULT_VOCABULARY_SIZE = 128_000
MAX_REMEMBERED_PIECES = 200_000

_PIECE = re.compile(
    r"<\|\w{1,12}\|>"  # a chat template's markers are one token each
    r"|'(?:s|t|re|ve|m|ll|d)\b"
    r"| ?[A-Za-z]{1,7}"
    r"| ?[0-9]{1,3}"
    r"|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # one ideograph or syllable each
    r"| ?[^\W\d_A-Za-z\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{1,3}"
    r"| ?(?:[^\w\s]|_){1,3}"
    r"|\n{1,16}"
    r"|\s{1,16}(?!\S)"
    r"|\s"
    r"|."
)
LONGEST_PIECE_CHARS = 16

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

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`."""
        ...

    def count(self, text: str) -> int:
        """How many tokens `text` has."""
        ...


class BuiltinTokenizer:
    """Words of up to seven letters with the space before them are one token, and so are runs of punctuation.

    An id is a hash of its piece, so it is the same in every process. Text is given back exactly for ids this process
    has seen (the latest 200,000 distinct pieces); any other id reads as an invented word.
    """

    longest_piece_chars = LONGEST_PIECE_CHARS

    def __init__(self, vocabulary_size: int = DEFAULT_VOCABULARY_SIZE) -> None:
        self.vocabulary_size = vocabulary_size
        self._ids: dict[str, int] = {}
        self._pieces: dict[int, str] = {}

    def encode(self, text: str) -> list[int]:
        known = self._ids
        pieces = _PIECE.findall(text)
        try:
            return [known[piece] for piece in pieces]
        except KeyError:
            self._learn(pieces)
            return [self._ids[piece] for piece in pieces]

    def decode(self, ids: Sequence[int]) -> str:
        known = self._pieces
        return "".join(known[each] if each in known else invented_word(each) for each in ids)

    def count(self, text: str) -> int:
        return len(_PIECE.findall(text))

    def _learn(self, pieces: list[str]) -> None:
        if len(self._ids) > MAX_REMEMBERED_PIECES:
            self._ids.clear()
            self._pieces.clear()
        for piece in pieces:
            if piece not in self._ids:
                number = crc32(piece.encode("utf-8", "surrogatepass")) % self.vocabulary_size
                self._ids[piece] = number
                self._pieces.setdefault(number, piece)


class FileTokenizer:
    """A tokenizer.json of the `tokenizers` library. Special tokens are not added: the chat template names its own."""

    def __init__(self, path: Path) -> None:
        self._tokenizer: Any = _load(path)
        self.vocabulary_size: int = self._tokenizer.get_vocab_size()
        self.longest_piece_chars = max(map(len, self._tokenizer.get_vocab()), default=1)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def count(self, text: str) -> int:
        return len(self.encode(text))


def load_tokenizer(path: str | None, vocabulary_size: int) -> Tokenizer:
    """The tokenizer of a tokenizer.json or of the folder that holds one; without a path the built-in one, with ids
    below `vocabulary_size`.

    Raises OptionError when there is no such file, it cannot be read, or the `tokenizers` library is missing.
    """
    if path is None:
        return BuiltinTokenizer(vocabulary_size or DEFAULT_VOCABULARY_SIZE)
    file = Path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    if not file.is_file():
        raise OptionError(f"--tokenizer must be a tokenizer.json or a folder with one, got {path!r}")
    return FileTokenizer(file)


def invented_word(token_id: int) -> str:
    """A pronounceable word that stands for a token id whose text is unknown."""
    syllables: list[str] = []
    number = token_id
    while number or not syllables:
        number, digit = divmod(number, len(_SYLLABLES))
        syllables.append(_SYLLABLES[digit])
    return " " + "".join(syllables)


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer as LibraryTokenizer
    except ImportError as error:
        raise OptionError("--tokenizer needs the tokenizers library: pip install tokenizers") from error
    try:
        return LibraryTokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise OptionError(f"--tokenizer: cannot read {path}: {error}") from error
