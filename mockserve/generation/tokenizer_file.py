"""A tokenizer of a model folder: its vocabulary, special tokens, chat template, and settings that change it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_sim.options import OptionError
from blis_sim.options.files import read_text
from blis_sim.options.text import load_json
from mockserve.generation.tokenizer import (
    DEFAULT_VOCABULARY_SIZE,
    BuiltinTokenizer,
    Split,
    Tokenizer,
    split_at,
    whole_characters,
)

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
    """Replace the handling of spaces in the file: the class builds that part anew, and text behind a special token gets
    no space in front unless the settings call it legacy."""
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
    """Add the special tokens of the settings that the file lacks, with the next ids."""
    from tokenizers import AddedToken

    added = {each.content for each in tokenizer.get_added_tokens_decoder().values()}
    missing = dict.fromkeys(text for text in _named(settings) if text and text not in added)
    if missing:
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])


def _named(settings: Mapping[str, Any]) -> Iterator[str]:
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


LONG_TEXT_CHARS = 20_000
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
        if len(text) < LONG_TEXT_CHARS:
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
        found = load_json(read_text(file))
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
        raise OptionError(
            "--tokenizer needs the tokenizers library: pip install 'blis-mockserve[tokenizers]'"
        ) from error
    try:
        return LibraryTokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise OptionError(f"--tokenizer: cannot read {path}: {error}") from error
