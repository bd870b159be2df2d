"""The report of a run, all of it at once."""

from typing import Any

from replay.output.metrics import aggregate, metrics_file
from replay.simulation.simulate import Simulated


def in_detail(run: Simulated) -> dict[str, Any]:
    """The content of the metrics file, its rows as a list."""
    content = metrics_file(run, aggregate(run), {})
    return {**content, "requests": list(content["requests"])}
