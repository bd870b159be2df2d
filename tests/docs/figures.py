"""The names of all figures that a replay can write."""

import json
import tempfile
from pathlib import Path
from typing import Any

from blis_sim.cli.main import run

HEADER = "trace_version: 3\nmode: generated\n"
ROW = {
    "request_id": "1",
    "tenant_id": "t",
    "slo_class": "critical",
    "session_id": "s",
    "input_tokens": "5",
    "output_tokens": "3",
    "model": "qwen3-14b",
    "arrival_time_us": "0",
    "adapter": "a",
}


def replay_keys() -> set[str]:
    """Keys of both files, of a trace whose row has every column, judged by all detectors."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "t.yaml").write_text(HEADER)
        (folder / "t.csv").write_text(f"{','.join(ROW)}\n{','.join(ROW.values())}\n")
        written = ["--metrics-path", str(folder / "m.json"), "--results-path", str(folder / "r.json")]
        judged = ["--slo-ttft", "critical=1s", "--detectors", "all"]
        assert run(["replay", str(folder / "t.yaml"), "--model", "qwen3-14b", *written, *judged]) == 0
        metrics: dict[str, Any] = json.loads((folder / "m.json").read_text())
        (result,) = json.loads((folder / "r.json").read_text())
        (row,) = metrics["requests"]
    return set(metrics) | set(row) | set(result)
