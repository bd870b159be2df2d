"""Changes of a tokenizer.json by the settings beside it, as in the library that vLLM loads tokenizers with."""

from collections.abc import Iterator, Mapping
from typing import Any

NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
EXTRA_NAMES = ("extra_special_tokens", "additional_special_tokens")
LLAMA_CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast")
LLAMA_TYPES = ("llama",)
"""Types of models for which the class that a tokenizer's configuration names is taken at its word."""
SPACE = "\u2581"


def token_text(value: Any) -> str | None:
    """A special token as configuration files write it: its text, or an object with the text as `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def adapt(tokenizer: Any, settings: Mapping[str, Any]) -> None:
    """Change a tokenizer of the tokenizers library by the settings of its model folder."""
    is_llama = settings.get("tokenizer_class") in LLAMA_CLASSES and settings.get("model_type") in LLAMA_TYPES
    if is_llama and type(tokenizer.model).__name__ == "BPE":
        _put_spaces_as_llama(tokenizer, settings)
    _add_special_tokens(tokenizer, settings)


def _put_spaces_as_llama(tokenizer: Any, settings: Mapping[str, Any]) -> None:
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
    """Add the special tokens that the settings name and the file has not, with the next ids."""
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
