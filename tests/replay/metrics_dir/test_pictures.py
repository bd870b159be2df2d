"""The pictures of a folder of metrics."""

from pathlib import Path

from blis_sim.cli.main import run


def test_a_run_draws_its_latencies_batches_and_use_as_png_and_svg(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    flags = ("--model", "qwen/qwen3-14b", "--rate", "10", "--num-requests", "20", "--num-instances", "2")
    assert run(["run", *flags, "--metrics-dir", str(folder)]) == 0
    plots = {each.name: each.read_bytes() for each in (folder / "plots").iterdir()}
    names = ("latencies", "batches", "utilization")
    assert set(plots) == {f"{name}{suffix}" for name in names for suffix in (".png", ".svg")}
    assert all(content.startswith(b"\x89PNG") for name, content in plots.items() if name.endswith(".png"))
    assert all(b"</svg>" in content for name, content in plots.items() if name.endswith(".svg"))
