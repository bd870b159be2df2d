"""The result file of an offline benchmark."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traces.text_file import write_text


def write_results(path: str | None, results: Mapping[str, Any]) -> None:
    """Write the results, if a file is wanted. Raises TraceError when that fails."""
    if path is not None:
        write_text(Path(path), json.dumps(results, indent=4))
