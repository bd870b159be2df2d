"""Whether a run wrote what the reference wrote."""

import json
from pathlib import Path
from typing import Any

from tests.reference.files import figures_of


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def assert_printed(text: str, figures: Path) -> None:
    """Compare printed text: its numbers with the reference, and all else by its digest."""
    assert figures_of(text) == read_json(figures)


def by_id(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["requestID"]: row for row in rows}


def assert_same_files(ours: Path, theirs: Path) -> None:
    """Compare the results and the metrics, in their order."""
    assert read_json(ours / "results.json") == read_json(theirs / "results.json")
    our_metrics, their_metrics = read_json(ours / "metrics.json"), read_json(theirs / "metrics.json")
    assert list(our_metrics) == list(their_metrics)
    # Requests that arrive at the same instant come in no particular order there.
    assert by_id(our_metrics.pop("requests")) == by_id(their_metrics.pop("requests"))
    assert our_metrics == their_metrics
