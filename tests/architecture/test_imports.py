"""Who may import whom, and that every module stands on its own."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.project import PACKAGES, PROJECT, module_name, product_files, pyproject

FORBIDDEN_IN_ENGINE = {
    "asyncio",
    "datetime",
    "logging",
    "multiprocessing",
    "os",
    "random",
    "selectors",
    "socket",
    "threading",
    "time",
}

IMPORT_EACH_ALONE = """
import importlib, sys
for name in sys.argv[1:]:
    package = name.partition(".")[0]
    for loaded in [each for each in sys.modules if each.partition(".")[0] == package]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except BaseException as error:
        print(f"{name}: {type(error).__name__}: {error}")
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)


def test_imports_point_one_way() -> None:
    process = python(
        "-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    )
    assert process.returncode == 0, process.stdout + process.stderr


def test_every_module_imports_alone_and_without_a_warning() -> None:
    """No module of its package is loaded before it, so one that needs another to come first is found."""
    modules = [module_name(file) for file in product_files() if file.stem != "__main__"]
    assert len(modules) > len(PACKAGES)
    process = python("-W", "error", "-c", IMPORT_EACH_ALONE, *modules)
    assert (process.stdout, process.stderr, process.returncode) == ("", "", 0)


def test_the_engine_knows_neither_clock_nor_chance_nor_system() -> None:
    found = [
        f"{module_name(file)} imports {name}"
        for file in product_files()
        if module_name(file).partition(".")[0] == "engine"
        for name in imported(file)
        if name.partition(".")[0] in FORBIDDEN_IN_ENGINE or name.startswith("numpy.random")
    ]
    assert found == []


def test_no_module_imports_by_relative_path() -> None:
    assert [
        module_name(file)
        for file in product_files()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    ] == []


def test_every_list_of_packages_names_the_same_ones() -> None:
    tools = pyproject()["tool"]
    assert sorted(path.parent.name for path in PROJECT.glob("*/__init__.py")) == PACKAGES
    assert tools["hatch"]["build"]["targets"]["wheel"]["packages"] == PACKAGES
    assert tools["importlinter"]["root_packages"] == PACKAGES
    assert tools["mypy"]["packages"] == [*PACKAGES, "tests"]


def imported(file: Path) -> Iterator[str]:
    """Names of all modules a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
