"""The allowed imports between packages, and modules that import on their own."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest

from tests.architecture.project import (
    PACKAGES,
    PROJECT,
    imported,
    imported_at_once,
    module_name,
    product_files,
    pyproject,
    statements,
)

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

IMPORT_ALL = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)


def test_imports_point_one_way() -> None:
    process = python(
        "-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    )
    assert process.returncode == 0, process.stdout + process.stderr


def test_the_picture_of_the_architecture_has_the_order_of_the_contract() -> None:
    page = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = page.split("```")[1]
    drawn = re.findall(rf"^   (?! )((?:(?:{'|'.join(PACKAGES)})[\w.]*(?: \| )?)+)", picture, re.MULTILINE)
    (layers,) = (
        each["layers"] for each in pyproject()["tool"]["importlinter"]["contracts"] if "blis_sim.wings" in str(each)
    )
    assert drawn == layers


@pytest.mark.slow
def test_every_module_imports_without_a_warning() -> None:
    modules = [module_name(file) for file in product_files() if file.stem != "__main__"]
    assert len(modules) > len(PACKAGES)
    process = python("-W", "error", "-c", IMPORT_ALL, *modules)
    assert (process.stdout, process.stderr, process.returncode) == ("", "", 0)


@pytest.mark.slow
def test_no_module_needs_another_to_be_imported_first() -> None:
    """An import from any starting module works when no module needs itself, by way of others, before it is complete."""
    files = {module_name(file): file for file in product_files()}
    needs = {
        name: {each if each in files else each.rpartition(".")[0] for each in imported_at_once(file)} & files.keys()
        for name, file in files.items()
    }
    assert needs["blis_sim.engine.core"] > {"blis_sim.engine.events", "blis_sim.engine.units"}
    TopologicalSorter(needs).prepare()


@pytest.mark.slow
def test_no_module_imports_itself_by_way_of_others_also_not_later_or_for_types() -> None:
    files = {module_name(file): file for file in product_files()}
    graph = {
        name: {each if each in files else each.rpartition(".")[0] for each in imported(file)} & files.keys() - {name}
        for name, file in files.items()
    }
    assert "blis_sim.engine.scheduler.vllm" in graph["blis_sim.engine.scheduler.registry"]  # imported in a function
    assert "blis_sim.engine.latency.decode_sums" in graph["blis_sim.engine.latency.model"]  # imported for types
    TopologicalSorter(graph).prepare()


def test_the_engine_imports_no_clock_no_chance_and_no_system() -> None:
    found = [
        f"{module_name(file)} imports {name}"
        for file in product_files()
        if module_name(file).startswith("blis_sim.engine")
        for name in imported(file)
        if name.partition(".")[0] in FORBIDDEN_IN_ENGINE or name.startswith("numpy.random")
    ]
    assert found == []


def test_no_module_imports_by_relative_path() -> None:
    texts = {module_name(file): file.read_text(encoding="utf-8") for file in product_files()}
    assert [
        name
        for name, text in texts.items()
        if re.search(r"from\s*\.", text)  # which is quicker than to parse all of them
        for node in statements(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.level
    ] == []


def test_every_list_of_packages_names_the_same_ones() -> None:
    tools = pyproject()["tool"]
    assert sorted(path.parent.name for path in PROJECT.glob("*/__init__.py")) == PACKAGES
    assert tools["hatch"]["build"]["targets"]["wheel"]["only-include"] == PACKAGES
    assert tools["importlinter"]["root_packages"] == PACKAGES
    assert sorted(tools["mypy"]["files"]) == sorted(
        [*PACKAGES, "docs", "examples", "hatch_build.py", "tests", "workshop"]
    )
