"""The result file of an offline benchmark."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import BenchError


def write_results(path: str | None, results: Mapping[str, Any]) -> None:
    """Write the results, if a file is wanted. Raises BenchError when that fails."""
    if path is None:
        return
    try:
        Path(path).write_text(json.dumps(results, indent=4), encoding="utf-8")
    except OSError as error:
        raise BenchError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error
