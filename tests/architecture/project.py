"""The contents of the project, from its own files."""

import ast
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
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


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Every statement, also in functions, branches and classes: a twentieth of the nodes that `ast.walk` visits."""
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            yield node
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            waiting += getattr(node, name, ())


def imported(file: Path) -> Iterator[str]:
    """Names of all modules a file imports, wherever in it."""
    return _imported_by(statements(ast.parse(file.read_text(encoding="utf-8"))))


def imported_at_once(file: Path) -> Iterator[str]:
    """Names of all modules a file imports when it is imported itself."""
    return _imported_by(ast.parse(file.read_text(encoding="utf-8")).body)


def _imported_by(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring: of a module, class or function, and of the attribute before it."""
    for node in statements(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def tracked_files() -> list[Path]:
    """All files under version control, or about to be."""
    if not (PROJECT / ".git").exists():
        pytest.skip("not a git checkout, so there is no list of its files")
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    paths = [PROJECT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file()]
