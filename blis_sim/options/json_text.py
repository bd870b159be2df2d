"""JSON as flags and files hold it."""

import json
from typing import Any


def load_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError, too, where values nest deeper than the parser follows."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("values nest too deep") from None
