"""Files that can be read in one sitting, functions that fit on a screen."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.project import PROJECT, product_files

MAX_LINES_OF_A_FILE = 400
MAX_LINES_OF_A_FUNCTION = 60


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the last one."""
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_no_file_is_too_long() -> None:
    lengths = {file.relative_to(PROJECT): len(file.read_text().splitlines()) for file in product_files()}
    too_long = [f"{file} has {lines} lines" for file, lines in lengths.items() if lines > MAX_LINES_OF_A_FILE]
    assert not too_long, f"at most {MAX_LINES_OF_A_FILE} are allowed: {'; '.join(too_long)}"


def test_no_function_is_too_long() -> None:
    too_long = [
        f"{file.relative_to(PROJECT)}:{function.lineno} {function.name} has {length(function)} lines"
        for file in product_files()
        for function in functions(file)
        if length(function) > MAX_LINES_OF_A_FUNCTION
    ]
    assert not too_long, f"at most {MAX_LINES_OF_A_FUNCTION} are allowed: {'; '.join(too_long)}"
