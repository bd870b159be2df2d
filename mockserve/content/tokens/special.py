"""What the files of a model folder say besides its vocabulary: special tokens, and the chat template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mockserve.content.tokens.file import read_json_object, token_text

NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the special tokens that a model's configuration names."""
    named = {name: token_text(settings.get(name)) for name in NAMES}
    return {name: text for name, text in named.items() if text is not None}


def template_source(folder: Path) -> str | None:
    """The chat template of a model folder: a file of its own before an entry of the tokenizer's configuration."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = read_json_object(folder / "chat_template.json").get("chat_template")
    found = found or read_json_object(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None
