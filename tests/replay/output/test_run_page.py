"""The picture and the page of a run."""

import re
from pathlib import Path

import pytest

from blis_sim.cli.main import run

pytest.importorskip("matplotlib")
BASE = ("--model", "qwen3-14b", "--num-requests", "40", "--rate", "20", "--output-tokens", "20", "--json")
Captured = pytest.CaptureFixture[str]


@pytest.mark.slow
def test_a_cluster_has_its_instances_targets_and_origin_on_the_page(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "run.html"
    flags = (
        "--num-instances",
        "2",
        "--slo-ttft",
        "default=1ms",
        "--html",
        str(path),
        "--plot",
        str(tmp_path / "r.png"),
    )
    assert run(["run", *BASE, *flags]) == 0
    printed = capsys.readouterr().out
    text = path.read_text()
    assert "<title>Run of qwen3-14b</title>" in text
    assert "targets MISSED: 0.0% within all" in text
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert {"Requests running and waiting", "Running requests of each instance"} <= set(titles)
    assert "target, 1 ms" in text
    assert "<th>expected error</th><td>median error TTFT " in text
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert run(["run", *BASE, *flags]) == 0
    assert (path.read_text(), capsys.readouterr().out) == (text, printed)


def test_a_run_that_serves_nothing_has_a_page_without_pictures(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    flags = ("--num-instances", "2", "--admission-policy", "reject-all", "--html", str(path))
    assert run(["run", *BASE, *flags]) == 0
    assert "40 rejected" in path.read_text()
    assert "<figure>" not in path.read_text()


def test_a_page_is_not_written_over_another_file(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "notes.html").write_text("<p>notes")
    assert run(["run", *BASE, "--html", str(tmp_path / "notes.html")]) == 2
    assert "--html would write over" in capsys.readouterr().err
