"""The examples of the page on the Python interface print the lines that the page shows."""

import re
from pathlib import Path

import pytest

import blis_sim
from tests.docs.pages import FENCE, PROJECT

PAGE = PROJECT / "docs" / "api.md"


def examples() -> list[tuple[str, str]]:
    """Each piece of Python, and the lines of the text below it."""
    pieces: list[list[str]] = []
    for match in FENCE.finditer(PAGE.read_text(encoding="utf-8")):
        if match["language"] == "python":
            pieces.append([match["body"], ""])
        else:
            pieces[-1][1] = match["body"]
    return [(code, shown) for code, shown in pieces]


@pytest.mark.slow
def test_the_examples_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    printed: list[str] = []
    shown: list[str] = []
    for code, text in examples():
        exec(compile(code, PAGE.name, "exec"), scope)
        captured = capsys.readouterr()
        assert captured.err == ""
        printed += captured.out.splitlines()
        shown += text.splitlines()
    assert printed == shown


def test_the_page_names_every_stable_name() -> None:
    named = set(re.findall(r"[A-Za-z_]+", " ".join(re.findall(r"`[^`]*`", PAGE.read_text(encoding="utf-8")))))
    parts = {"Coefficient", "Latency", "MetricError", "PlannedDeployment", "SweepPoint", "Table", "__version__"}
    assert set(blis_sim.__all__) - named - parts == set()
