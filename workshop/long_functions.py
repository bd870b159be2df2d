"""Functions of the product that do not fit on a screen: `python -m workshop.long_functions`. A list, not a verdict."""

import ast
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PACKAGES = ("blis_sim", "calibrate", "mockserve", "observe", "replay", "traces")
SCREEN = 60
"""Lines of a function that are read without scrolling."""


def long_functions(file: Path) -> Iterator[tuple[int, str, int]]:
    """Yield first line, name and number of lines of each function of `file` that is longer than a screen."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > SCREEN:
                yield node.lineno, node.name, length


def main() -> None:
    """Print a warning for each long function, in the form that editors and CI understand."""
    for package in PACKAGES:
        for file in sorted((PROJECT / package).rglob("*.py")):
            for line, name, length in long_functions(file):
                print(f"{file.relative_to(PROJECT)}:{line}: warning: {name} has {length} lines, a screen has {SCREEN}")


if __name__ == "__main__":
    main()
