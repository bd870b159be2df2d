"""Conversion of text to token ids and back, by the built-in tokenizer or one of a model folder."""

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from blis_sim.installation import install_command
from blis_sim.options import OptionError
from blis_sim.options.files import read_text
from blis_sim.options.option import load_model_json

# Conversion of text to token ids and back: the built-in tokenizer, which needs no files, and a cache of prompts.

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

    Common words, numbers and marks have the first ids. The id of any other piece is a hash of it, which is equal in
    every process. Ids that this process has seen become their exact text: the latest 100,000 distinct pieces, unless
    two share an id. Any other id becomes an invented word.
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
        """Return the ids of pieces; a new piece gets an id. New pieces are remembered while there is room."""
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


# A tokenizer of a model folder: its vocabulary, special tokens, chat template, and settings that change it.

NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
EXTRA_NAMES = ("extra_special_tokens", "additional_special_tokens")
LLAMA_CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast")
LLAMA_TYPES = ("llama",)
"""Model types for which the tokenizer class of the configuration is used unchanged."""
SPACE = "\u2581"


def token_text(value: Any) -> str | None:
    """Return the text of a special token of a configuration file: a string, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def adapt(tokenizer: Any, settings: Mapping[str, Any]) -> None:
    """Change a tokenizer of the tokenizers library by the settings of its model folder."""
    is_llama = settings.get("tokenizer_class") in LLAMA_CLASSES and settings.get("model_type") in LLAMA_TYPES
    if is_llama and type(tokenizer.model).__name__ == "BPE":
        _apply_llama_spaces(tokenizer, settings)
    _add_special_tokens(tokenizer, settings)


def _apply_llama_spaces(tokenizer: Any, settings: Mapping[str, Any]) -> None:
    """Replace the handling of spaces in the file, since the class builds that part anew. Text behind a special token
    gets no space in front unless the settings call it legacy."""
    from tokenizers import decoders, pre_tokenizers

    puts_space = settings.get("add_prefix_space") is not False
    scheme = ("always" if settings.get("legacy") else "first") if puts_space else "never"
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=False)
    strip = [decoders.Strip(content=" ", left=1, right=0)] if puts_space else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )


def _add_special_tokens(tokenizer: Any, settings: Mapping[str, Any]) -> None:
    """Add the special tokens of the settings that the file lacks, with the next ids. Raises OptionError."""
    from tokenizers import AddedToken

    added = {each.content for each in tokenizer.get_added_tokens_decoder().values()}
    missing = dict.fromkeys(text for text in _named_tokens(settings) if text and text not in added)
    try:
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise OptionError(
            f"--tokenizer: special tokens of tokenizer_config.json or special_tokens_map.json must be text: {error}"
        ) from error


def _named_tokens(settings: Mapping[str, Any]) -> Iterator[str]:
    for name in NAMES:
        text = token_text(settings.get(name))
        if text is not None:
            yield text
    extra = next((settings[name] for name in EXTRA_NAMES if settings.get(name) is not None), ())
    for each in extra.values() if isinstance(extra, dict) else extra if isinstance(extra, list) else ():
        text = token_text(each)
        if text is not None:
            yield text


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the special tokens that a model's configuration names."""
    named = {name: token_text(settings.get(name)) for name in NAMES}
    return {name: text for name, text in named.items() if text is not None}


def template_sources(folder: Path) -> dict[str, str]:
    """The chat templates of a model folder by name: files of their own before entries of the tokenizer's configuration.

    A folder with a single template calls it `default`.
    """
    found = read_json_object(folder / "chat_template.json").get("chat_template")
    found = found or read_json_object(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        found = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
    named = found if isinstance(found, dict) else {"default": found}
    sources = {name: text for name, text in named.items() if isinstance(name, str) and isinstance(text, str)}
    file = folder / "chat_template.jinja"
    if file.is_file():
        sources["default"] = read_text(file)
    others = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    return sources | {other.stem: read_text(other) for other in others}


SLOW_TEXT_CHARS = 20_000
"""Length of a text, in characters, whose encoding takes at least 5 ms."""

END_MARKERS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<eos>",
    "[SEP]",
)
"""Names of the end marker in vocabularies, the more specific first; used when no configuration names it."""


class FileTokenizer:
    """A tokenizer.json, with the special tokens of the files beside it.

    Encoding takes 2 to 4 us per token, in time proportional to the text.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any] | None = None) -> None:
        self._tokenizer: Any = _load(path)
        # A file may carry the lengths of its training; a server counts all of a text and nothing else.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        adapt(self._tokenizer, settings or {})
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        self.vocabulary_size = max(vocabulary.values(), default=0) + 1
        self.longest_piece_chars = max(map(len, vocabulary), default=1)
        self.settings = dict(settings or {})
        self.eos_token_id = _find_eos_token_id(self.settings, vocabulary)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(each for each, token in added.items() if token.special)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        # Only lists are encoded without holding up other threads.
        (encoding,) = self._tokenizer.encode_batch_fast([whole_characters(text)], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def split(self, text: str) -> Split:
        encoding = self._encoding(text, add_special_tokens=False)
        return split_at(text, encoding.ids, encoding.offsets)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        return [self._tokenizer.id_to_token(each) or "" for each in ids]

    def marker_id(self, marker: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(marker)
        return found

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def _encoding(self, text: str, add_special_tokens: bool) -> Any:
        text = whole_characters(text)
        if len(text) < SLOW_TEXT_CHARS:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        return encoding


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
    return open_tokenizer(file)


def open_tokenizer(path: Path) -> FileTokenizer:
    """The tokenizer of a file or of a folder that holds a tokenizer.json.

    Raises OptionError when it cannot be read, or when the `tokenizers` library is missing.
    """
    folder = path if path.is_dir() else path.parent
    file = path / "tokenizer.json" if path.is_dir() else path
    return FileTokenizer(file, read_settings(folder))


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the token settings of the configuration files of a model folder; the more specific file wins.

    The map of special tokens is that of older folders, whose tokenizer's configuration has no table of added tokens.
    """
    settings = read_json_object(folder / "config.json") | read_json_object(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in settings:
        settings |= read_json_object(folder / "special_tokens_map.json")
    return settings | read_json_object(folder / "generation_config.json")


def read_json_object(file: Path, flag: str = "--tokenizer") -> dict[str, Any]:
    """The object in `file`; empty when there is no such file.

    Raises OptionError, which names `flag`, when the file is something else.
    """
    if not file.is_file():
        return {}
    try:
        found = load_model_json(read_text(file))
    except (OSError, ValueError) as error:
        raise OptionError(f"{flag}: cannot read {file}: {error}") from error
    if not isinstance(found, dict):
        raise OptionError(f"{flag}: {file} must hold a JSON object, got {type(found).__name__}")
    return found


def _find_eos_token_id(settings: Mapping[str, Any], vocabulary: Mapping[str, int]) -> int:
    """Return the end-of-sequence id: the configured one, else the id of a usual name, else the last of the
    vocabulary."""
    configured = settings.get("eos_token_id")
    if isinstance(configured, list) and configured:
        configured = configured[0]
    if type(configured) is int:
        return configured
    for marker in (token_text(settings.get("eos_token")), *END_MARKERS):
        if marker is not None and marker in vocabulary:
            return vocabulary[marker]
    return max(vocabulary.values(), default=0)


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer as LibraryTokenizer
    except ImportError as error:
        raise OptionError(f"--tokenizer needs the tokenizers library: {install_command('tokenizers')}") from error
    try:
        return LibraryTokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise OptionError(f"--tokenizer: cannot read {path}: {error}") from error
