"""Whatever an installation imports, it has asked for: `pip install` brings what no extra is needed for."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions

import pytest

from tests.architecture.project import PACKAGES, imported, product_files, pyproject

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dependencies")]


def names(requirements: list[str]) -> set[str]:
    """The distributions, as they are written in the list of what is installed."""
    return {re.split(r"[\[<>=; ]", each)[0].lower().replace("_", "-") for each in requirements}


def imported_modules() -> Iterator[str]:
    """Return the top level of each module of another distribution that the product imports, wherever in a file, and
    however."""
    for file in product_files():
        yield from (name.partition(".")[0] for name in imported(file))
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "import_module(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "import_module":
                yield from (
                    str(each.value).partition(".")[0] for each in node.args[:1] if isinstance(each, ast.Constant)
                )


FOR_TYPES_ALONE = frozenset({"mypy_extensions"})
"""Modules of the compiler, which no run imports."""


@cache
def foreign_modules() -> frozenset[str]:
    known = sys.stdlib_module_names | frozenset(PACKAGES) | FOR_TYPES_ALONE
    return frozenset(name for name in imported_modules() if name not in known)


def test_everything_imported_is_a_dependency_or_in_an_extra_for_users() -> None:
    project = pyproject()["project"]
    extras = {name: each for name, each in project["optional-dependencies"].items() if name not in ("test", "clients")}
    asked_for = names(project["dependencies"]).union(*map(names, extras.values()))
    distributions = packages_distributions()
    undeclared = {
        module
        for module in foreign_modules()
        if asked_for.isdisjoint(each.lower().replace("_", "-") for each in distributions.get(module, [module]))
    }
    assert undeclared == set()


def test_every_dependency_is_imported() -> None:
    distributions = packages_distributions()
    used = {
        each.lower().replace("_", "-") for module in foreign_modules() for each in distributions.get(module, [module])
    }
    assert names(pyproject()["project"]["dependencies"]) <= used
