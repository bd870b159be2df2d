"""Conversion of text to token ids and back: the built-in tokenizer, which needs no files, and a cache of prompts."""

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NamedTuple, Protocol
from zlib import crc32

_COMMON_WORDS = """
    the of and to a in is that it for was on are as with they at be this from have or by one had not but what all
    were when we there can an your which their said if do will each about how up out them then she many some so these
    would other into has more her two like him see time could no make than first been its who now people my made over
    did down only way find use may water long little very after words called just where most know get through back
    much before go good new write our used me man too any day same right look think also around another came come
    work three word must because does part even place well such here take why things help put years away again off
    went old number great tell men say small every found still between name should home big give air line set own
    under read last never us left end along while might next sound below saw both few those always looked show large
    often asked house world going want school until form food keep feet land side without boy once animal life enough
    took four head above kind began almost live page got earth need far hand high year mother light parts country
    father let night picture being study second soon since white ever paper hard near better best across during today
    however sure knew try told young sun thing whole hear example heard several change answer room sea against top
    turned learn point city play toward five using himself usually money seen car morning body upon family later turn
    move face door cut done group true half red fish plants living black eat short united run book gave order open
    ground cold really table tree course front space inside ago sad early learned strong list cost map test
    """
WORDS = tuple(_COMMON_WORDS.split())
"""Words of at most seven letters: most vocabularies have one token for each with the space before it."""


class Split(NamedTuple):
    """Token ids of a text. `pieces[k]` is the text that becomes readable when token k arrives.

    `pieces` joined are the text. The piece of a token that ends within a character is empty: the token that completes
    the character has the whole character.
    """

    ids: Sequence[int]
    pieces: Sequence[str]

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def first(self, num_tokens: int) -> "Split":
        """Return the first `num_tokens` tokens."""
        return Split(self.ids[:num_tokens], self.pieces[:num_tokens])


def whole_characters(text: str) -> str:
    """Return `text` with a replacement character for each half of a surrogate pair: JSON can contain surrogates, UTF-8
    cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= each <= "\udfff" else each for each in text)
    return text


def split_at(text: str, ids: Sequence[int], offsets: Sequence[tuple[int, int]]) -> Split:
    """Split `text` by the character range of each token; characters between tokens belong to the following token."""
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


DEFAULT_VOCABULARY_SIZE = 128_000
MAX_CACHED_PIECES = 100_000
LONG_TEXT_CHARS = 100_000

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
"""Upper bound of the characters that the expression reads beyond the end of a piece."""

CHUNK_CHARS = 16_384

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
"""Pieces with an id of their own; built-in answers consist of them."""

_SYLLABLES = ("ba", "ce", "di", "fo", "gu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "wu", "za")


class Tokenizer(Protocol):
    """The tokenizer interface of the server. Equal texts give equal ids."""

    @property
    def vocabulary_size(self) -> int:
        """Number of ids; ids begin at 0."""
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
        """Ids of special tokens, which have no text."""
        ...

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of `text`, with `add_special_tokens` between the marks of a sequence."""
        ...

    def split(self, text: str) -> Split:
        """Return the token ids of `text`, and the part of the text that each token makes readable."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of `ids`."""
        ...

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary spells it."""
        ...

    def marker_id(self, marker: str) -> int | None:
        """Return the id of the token with the exact spelling `marker`, if there is one."""
        ...

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`."""
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
        for pieces in _split_in_chunks(text):  # all pieces of a long text would take ten times what the ids take
            ids += self._ids_of(pieces)
        return ids

    def split(self, text: str) -> Split:
        if len(text) <= CHUNK_CHARS:
            pieces = _PIECE.findall(text)
        else:
            # A long text has few different pieces, and a string of its own for each would take most of the memory.
            shared: dict[str, str] = {}
            pieces = [shared.setdefault(piece, piece) for stretch in _split_in_chunks(text) for piece in stretch]
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
        return sum(map(len, _split_in_chunks(text)))

    def _ids_of(self, pieces: Sequence[str]) -> list[int]:
        known = self._ids
        try:
            return [known[piece] for piece in pieces]
        except KeyError:
            return self._add_pieces(pieces)

    def _reserve(self) -> None:
        """Reset to the pieces that have an id of their own. Other threads continue with the previous dictionaries."""
        self._pieces = dict(enumerate(self._reserved))
        self._ids = {piece: number for number, piece in self._pieces.items()}

    def _add_pieces(self, pieces: Sequence[str]) -> list[int]:
        """Return the ids of pieces, some of which have none yet. New pieces are remembered while there is room."""
        if len(self._ids) > MAX_CACHED_PIECES:
            self._reserve()
        known, spelt = self._ids, self._pieces
        first = len(self._reserved)
        found = []
        for piece in pieces:
            number = known.get(piece)
            if number is None:
                number = first + crc32(piece.encode("utf-8", "surrogatepass")) % (self.vocabulary_size - first)
                if len(known) <= MAX_CACHED_PIECES:
                    known[piece] = number
                    spelt.setdefault(number, piece)
            found.append(number)
        return found


def _split_in_chunks(text: str) -> Iterator[list[str]]:
    """Yield the pieces of `text` in lists, one for each chunk of the text: other threads run between two chunks."""
    if len(text) <= CHUNK_CHARS:
        yield _PIECE.findall(text)
        return
    at = 0
    while at < len(text):
        end = min(len(text), at + CHUNK_CHARS)
        found = _PIECE.findall(text, at, end)
        if end < len(text):
            # The following text changes the last pieces, which therefore are the first of the next stretch.
            safe = end - LOOKAHEAD_CHARS
            while end > safe:
                end -= len(found.pop())
        yield found
        at = end


def invented_word(token_id: int) -> str:
    """Return a pronounceable word for a token id of unknown text; a negative id has no text."""
    if token_id < 0:
        return ""
    syllables: list[str] = []
    number = token_id
    while number or not syllables:
        number, digit = divmod(number, len(_SYLLABLES))
        syllables.append(_SYLLABLES[digit])
    return " " + "".join(syllables)


MOST_CHARS = 8_000_000
ENTRY_OVERHEAD_CHARS = 250
"""Overhead of a cached prompt, in characters, so that many short prompts take no more memory than a few long ones."""


class PromptTokenCache:
    """Cache of the token ids of recent prompts.

    It holds `most_chars` characters in all; `ENTRY_OVERHEAD_CHARS` is added for each prompt.
    """

    def __init__(self, tokenizer: Tokenizer, most_chars: int = MOST_CHARS) -> None:
        self._tokenizer = tokenizer
        self._most_chars = most_chars
        self._token_ids: OrderedDict[tuple[str, bool], list[int]] = OrderedDict()
        self._num_chars = 0
        self._lock = Lock()
        """Long prompts are encoded on other threads."""

    def ids(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the ids of `text`. The returned list is shared and must not be changed."""
        key = (text, add_special_tokens)
        with self._lock:
            found = self._token_ids.get(key)
            if found is not None:
                self._token_ids.move_to_end(key)
                return found
        ids = self._tokenizer.encode(text, add_special_tokens)
        self._store(key, ids)
        return ids

    def _store(self, key: tuple[str, bool], ids: list[int]) -> None:
        with self._lock:
            if key in self._token_ids:  # another thread has encoded the same text meanwhile
                return
            self._token_ids[key] = ids
            text, _ = key
            self._num_chars += len(text) + ENTRY_OVERHEAD_CHARS
            while self._num_chars > self._most_chars:
                (oldest, _), _ = self._token_ids.popitem(last=False)
                self._num_chars -= len(oldest) + ENTRY_OVERHEAD_CHARS
