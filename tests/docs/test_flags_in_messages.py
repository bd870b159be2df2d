"""Every flag, command, file and installation that a help text, a docstring or an error names exists."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from blis_sim.cli.commands import COMMANDS
from tests.docs.pages import PROJECT

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
_REFERENCE = ("cli.md", "vllm-flags.md", "llm-d-inference-sim.md")
_PACKAGES = ("blis_sim", "calibrate", "mockserve", "observe", "replay", "traces")
_OF_OTHERS = (
    "blis_sim/options/option.py",
    "blis_sim/options/command_line.py",
    "mockserve/options/vllm_",
    "blis_sim/wings/inference_sim",
    "blis_sim/bench/serve_",
    "blis_sim/bench/latency_command.py",
    "blis_sim/bench/throughput_command.py",
    "blis_sim/bench/plan_report.py",
    "blis_sim/pytest_plugin.py",
    "blis_sim/wings/trace_formats/sglang.py",
)
"""Modules that use or translate flags of other programs."""


def _texts(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.slow
@pytest.mark.parametrize("package", _PACKAGES)
def test_a_flag_that_is_spoken_of_is_in_the_reference(package: str) -> None:
    known = {flag for page in _REFERENCE for flag in _FLAG.findall((PROJECT / "docs" / page).read_text())}
    known |= {"--version", "--help-all", "--slo"}  # of `blis` itself; the beginning of three flags
    files = [
        file for file in (PROJECT / package).rglob("*.py") if not str(file.relative_to(PROJECT)).startswith(_OF_OTHERS)
    ]
    assert files
    unknown = {(file.name, flag) for file in files for text in _texts(file) for flag in _FLAG.findall(text)}
    assert {(name, flag) for name, flag in unknown if flag not in known} == set()


_COMMAND = re.compile(r"`blis ([a-z][a-z-]*)")
_PATH = re.compile(r"(?<![\w/.])(?:docs|examples|docker|deploy)/[\w/-]+\.[a-z]+")


@cache
def commands() -> set[str]:
    """The first words of all commands."""
    return {each.split()[0] for each in (*COMMANDS, *(point.name for point in entry_points(group="blis.commands")))}


def _unknown(text: str) -> Iterator[str]:
    """Commands and paths of a text that do not exist, and installations that are not of this one."""
    yield from (f"blis {name}" for name in _COMMAND.findall(text) if name not in commands())
    yield from (path for path in _PATH.findall(text) if not (PROJECT / path).exists())
    if "pip install" in text:
        yield "pip install"


@pytest.mark.slow
@pytest.mark.parametrize("package", _PACKAGES)
def test_commands_files_and_installations_that_are_spoken_of_exist(package: str) -> None:
    one_place = PROJECT / "blis_sim" / "installation.py"
    files = [file for file in (PROJECT / package).rglob("*.py") if file != one_place]
    assert [(file.name, found) for file in files for text in _texts(file) for found in _unknown(text)] == []


_OF_TOOLS = {
    *("--build", "--constraint", "--fail", "--namespace", "--no-cache-dir", "--no-deps", "--prefix", "--quiet"),
    *("--requirement", "--silent", "--start-period", "--storage", "--test"),
}
"""Flags of curl, Docker, Helm, Node, pip and Prometheus in files for them."""


@pytest.mark.parametrize("folder", ["deploy", "docker", "examples", ".github", "workshop"])
def test_what_files_beside_the_packages_speak_of_exists(folder: str) -> None:
    texts = {
        str(path.relative_to(PROJECT)): path.read_text(encoding="utf-8")
        for path in (PROJECT / folder).rglob("*")
        if path.is_file() and path.suffix not in (".csv", ".pyc")
    }
    assert texts
    assert [(name, found) for name, text in texts.items() for found in _dead_names(text)] == []
    if folder in ("deploy", "docker", "examples"):
        known = {flag for page in _REFERENCE for flag in _FLAG.findall((PROJECT / "docs" / page).read_text())}
        found = {(name, flag) for name, text in texts.items() for flag in _FLAG.findall(text)}
        assert {(name, flag) for name, flag in found if flag not in known | _OF_TOOLS} == set()


def _dead_names(text: str) -> Iterator[str]:
    """Commands and paths that do not exist, also at the beginning of a line, and the package by its bare name."""
    lines = (f"`{line}" for line in re.findall(r"^\s*(?:\$ |- run: |run: )?(blis [a-z].*)$", text, re.MULTILINE))
    for each in (text, *lines):
        yield from (name for name in _unknown(each) if name != "pip install")
    if re.search(r"pip install[^\n]*\bblis-mockserve(?!.* @ )", text):
        yield "pip install blis-mockserve"


def test_what_the_changelog_speaks_of_exists() -> None:
    text = (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert list(_dead_names(text)) == []
    known = {flag for page in _REFERENCE for flag in _FLAG.findall((PROJECT / "docs" / page).read_text())}
    assert set(_FLAG.findall(text)) - known == set()


def test_what_does_not_exist_would_be_found() -> None:
    text = (
        "`blis serv m`, `blis bench serve`, see docs/serve.md and docs/server.md: pip install 'blis-mockserve[plots]'"
    )
    assert list(_unknown(text)) == ["blis serv", "docs/server.md", "pip install"]
    assert list(_dead_names(text)) == ["blis serv", "docs/server.md", "pip install blis-mockserve"]
    assert list(_dead_names("  - run: blis srve m\nthe blis package")) == ["blis srve"]
