"""Parts of an OpenAPI document reduced to a few characters, so that two documents can be compared part by part."""

import json
from hashlib import sha256
from typing import Any

PROSE = ("description", "title")


def without_prose(value: Any, is_members: bool = False) -> Any:
    """Return `value` without descriptions and titles; members of an object that are named so stay."""
    if isinstance(value, dict):
        return {
            name: without_prose(each, is_members=name == "properties" and not is_members)
            for name, each in value.items()
            if is_members or name not in PROSE or not isinstance(each, str)
        }
    return [without_prose(each) for each in value] if isinstance(value, list) else value


def canonical(value: Any) -> str:
    """Return the same text for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def digest(value: Any) -> str:
    """Return ten characters that differ where values do."""
    return sha256(canonical(value).encode()).hexdigest()[:10]
