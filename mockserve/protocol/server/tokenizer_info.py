"""What GET /tokenizer_info says: the settings a tokenizer was loaded with."""

from collections.abc import Mapping
from typing import Any

FILES = ("vocab_file", "merges_file", "tokenizer_file")


def tokenizer_info(
    settings: Mapping[str, Any], class_name: str, path: str | None, max_model_len: int
) -> dict[str, Any]:
    """`settings` are those of the configuration files; tokens given as objects are shown as their text."""
    shown = {name: _plain(value) for name, value in settings.items() if name not in FILES}
    return {
        "tokenizer_class": shown.pop("tokenizer_class", class_name),
        **shown,
        "name_or_path": path,
        "model_max_length": shown.get("model_max_length", max_model_len),
        "backend": "tokenizers" if path is not None else "builtin",
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return value["content"] if "content" in value else {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
