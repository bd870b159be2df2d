"""Every flag in a help text or an error exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

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
