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
        sources["default"] = file.read_text(encoding="utf-8")
    others = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    return sources | {other.stem: other.read_text(encoding="utf-8") for other in others}
