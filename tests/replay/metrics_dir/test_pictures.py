"""The pictures of a folder of metrics."""

from pathlib import Path

import numpy as np
import pytest

from blis_sim.cli.main import run
from replay.metrics_dir.pictures import per_second


@pytest.mark.slow
def test_a_run_draws_its_latencies_batches_and_use_as_png_and_svg(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    flags = ("--model", "qwen/qwen3-14b", "--rate", "10", "--num-requests", "20", "--num-instances", "2")
    assert run(["run", *flags, "--metrics-dir", str(folder)]) == 0
    plots = {each.name: each.read_bytes() for each in (folder / "plots").iterdir()}
    names = ("latencies", "batches", "tokens", "utilization")
    assert set(plots) == {f"{name}{suffix}" for name in names for suffix in (".png", ".svg")}
    assert all(content.startswith(b"\x89PNG") for name, content in plots.items() if name.endswith(".png"))
    texts = {name: content.decode() for name, content in plots.items() if name.endswith(".svg")}
    assert all("</svg>" in text and "qwen3-14b on 2 instances of" in text for text in texts.values())
    labels = {
        "latencies": ("TTFT, ms", "E2E, ms", "median", "p99"),
        "batches": ("requests in a batch", "time of a batch, ms"),
        "tokens": ("tokens/s", "prompt tokens", "decodes"),
        "utilization": ("% of KV blocks", "% of peak FLOP/s", "replica 1"),
    }
    assert [(name, word) for name, words in labels.items() for word in words if word not in texts[f"{name}.svg"]] == []


def test_tokens_per_second_are_counted_in_stretches_of_the_run() -> None:
    at_s, values = per_second(np.arange(100.0) * 1e6, np.full(100, 30.0), 100_000_000)
    assert values.sum() * (at_s[1] - at_s[0]) == pytest.approx(3000)
    assert values.max() < 60
