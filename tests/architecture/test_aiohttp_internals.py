"""Undocumented parts of aiohttp are used in one module, and its versions have an upper bound."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web
from aiohttp.http import StreamWriter

from tests.architecture.project import PROJECT, product_files, pyproject

THE_MODULE = PROJECT / "mockserve" / "http" / "aiohttp_internals.py"
DOCUMENTED = {"aiohttp", "aiohttp.web"}
CLASSES = (web.Request, web.RequestHandler, web.StreamResponse, web.Response, web.Application, StreamWriter)
ITS_OBJECTS = ("request", "response", "library", "connection", "writer")
NAMED = re.compile(rf"\baiohttp\b|\b({'|'.join(ITS_OBJECTS)})\s*\._")
"""Stands in every file that uses internals."""
PRIVATE = {name for each in CLASSES for name in dir(each) if name.startswith("_") and not name.startswith("__")}


def uses_of_internals(file: Path) -> Iterator[str]:
    """Imports of undocumented modules, and private attributes of a request, response or connection of aiohttp."""
    text = file.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if NAMED.search(text) else ():
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if _is_undocumented(each.name))
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            if _is_undocumented(node.module) or (node.module == "aiohttp" and any(_is_private(e) for e in node.names)):
                yield node.module
        elif isinstance(node, ast.Attribute) and node.attr in PRIVATE and _is_of_aiohttp(node.value):
            yield ast.unparse(node)


def _is_undocumented(module: str) -> bool:
    return module.partition(".")[0] == "aiohttp" and module not in DOCUMENTED


def _is_private(name: ast.alias) -> bool:
    return name.name.startswith("_")


def _is_of_aiohttp(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ITS_OBJECTS


def test_only_one_module_uses_internals_of_aiohttp() -> None:
    found = {file: set(uses_of_internals(file)) for file in product_files()}
    assert {file for file, uses in found.items() if uses} == {THE_MODULE}
    assert found[THE_MODULE] >= {"aiohttp.web_protocol", "request._cache", "request._read_bytes", "request._match_info"}


def test_versions_of_aiohttp_have_an_upper_bound() -> None:
    (requirement,) = [each for each in pyproject()["project"]["dependencies"] if each.startswith("aiohttp")]
    assert "<" in requirement


def test_a_target_and_a_workflow_test_with_the_newest_aiohttp() -> None:
    assert "\ntest-newest-aiohttp:" in (PROJECT / "Makefile").read_text(encoding="utf-8")
    workflow = PROJECT / ".github" / "workflows" / "newest-aiohttp.yml"
    assert "make test-newest-aiohttp" in workflow.read_text(encoding="utf-8")
