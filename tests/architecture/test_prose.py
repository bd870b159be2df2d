"""Docstrings stand alone: each begins with its subject or a verb, and no machinery in them is a person."""

import ast
import re

import pytest

from tests.architecture.project import PROJECT, docstrings, product_files

NEIGHBOURS = re.compile(r"(It|Its|They|Their|Them|Those|Likewise|The same|What|Who|Whom|Whose)\b(?!-)")
"""First words of a docstring that point at another one."""
PERSONS = re.compile(r"\b(nobody|somebody|everybody|anybody|told|tells|hears|likewise)\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]*`")
SOURCES = [*product_files(), *sorted((PROJECT / "tests").rglob("*.py")), *sorted((PROJECT / "docs").rglob("*.py"))]


def faults(source: str) -> list[str]:
    """Return the lines of docstrings that lean on a neighbour or speak of a person, with the word."""
    found = []
    for line, text in docstrings(ast.parse(source)):
        words = CODE.sub("", text.strip())
        found += [f"{line}: {word.group()}" for word in (NEIGHBOURS.match(words), PERSONS.search(words)) if word]
    return found


@pytest.mark.slow
def test_docstrings_stand_alone() -> None:
    found = {str(file.relative_to(PROJECT)): faults(file.read_text(encoding="utf-8")) for file in SOURCES}
    assert {file: lines for file, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("It is sent.", "It"),
        ("The same for a file.", "The same"),
        ("What is sent.", "What"),
        ("Likewise.", "Likewise"),
        ("A block that nobody holds.", "nobody"),
        ("The engine is told.", "told"),
    ],
)
def test_a_sentence_that_leans_on_a_neighbour_is_found(text: str, word: str) -> None:
    assert faults(f'"""{text}"""')[:1] == [f"1: {word}"]
    assert faults(f'class A:\n    b: int = 0\n    """{text}"""')[:1] == [f"3: {word}"]


@pytest.mark.parametrize("text", ["Item of a list.", "A call of `told`.", "Itself a list.", "The samest of all."])
def test_a_sentence_that_stands_alone_is_not_found(text: str) -> None:
    assert faults(f'"""{text}"""') == []


def test_titles_of_tests_stand_alone() -> None:
    title = re.compile(r"def (test_(?:it|those|they|nor|nobody|somebody|who|whom|likewise|the_same)_\w+)")
    files = sorted((PROJECT / "tests").rglob("test_*.py"))
    assert [name for file in files for name in title.findall(file.read_text(encoding="utf-8"))] == []
