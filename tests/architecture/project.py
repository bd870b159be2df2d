"""The contents of the project, from its own files."""

import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = ["blis_sim", "calibrate", "mockserve", "observe", "replay", "traces"]


def pyproject() -> dict[str, Any]:
    return tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))


def product_files() -> Iterator[Path]:
    """Every Python file of every package."""
    for package in PACKAGES:
        yield from sorted((PROJECT / package).rglob("*.py"))


def module_name(file: Path) -> str:
    parts = file.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tracked_files() -> list[Path]:
    """All files under version control, or about to be."""
    if not (PROJECT / ".git").exists():
        pytest.skip("not a git checkout, so there is no list of its files")
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    paths = [PROJECT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file()]
