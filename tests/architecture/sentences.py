"""Sentences of pages, docstrings, help texts and messages, and the number of their words."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.architecture.project import docstrings

MOST_WORDS = 25
FENCE = re.compile(r"^ *```.*?^ *```[^\n]*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
TAG = re.compile(r"<[^<>]+>")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"``[^`]+``|`[^`]*`")
NAMES = re.compile(r"`code`(?: \([^()`]*\))?(?:,? `code`(?: \([^()`]*\))?)+")
ITEM = re.compile(r"(?:[-*+]|\d+\.) +")
END = re.compile(r"(?<=[.!?])[\"')*_]* +")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|vs|etc|cf|No|St|Dr)\.")


class Sentence(NamedTuple):
    """A sentence with the line on which its text begins."""

    line: int
    text: str

    @property
    def num_words(self) -> int:
        """Words; a piece of code is one, and so is a placeholder."""
        return sum(any(each.isalnum() for each in word) for word in self.text.split())


def sentences(text: str) -> list[Sentence]:
    """Return the sentences of a text without tables and fences, all of line 1."""
    flat = " ".join(LINK.sub(r"\1", NAMES.sub("`code`", CODE.sub("`code`", text))).split())
    return [Sentence(1, each) for each in END.split(ABBREVIATION.sub(r"\1", flat))]


def too_long(found: Iterable[Sentence], exempt: Sequence[str]) -> Iterator[Sentence]:
    """Yield the sentences with too many words, but for those that begin in an exempt way."""
    for each in found:
        if each.num_words > MOST_WORDS and not each.text.startswith(tuple(exempt)):
            yield each


def of_page(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a page in Markdown. A cell, an item and a heading are texts of their own."""
    for hidden in (FENCE, COMMENT):
        text = hidden.sub(lambda found: "\n" * found.group().count("\n"), text)
    first, lines = 1, list[str]()

    def ended() -> Iterator[Sentence]:
        yield from (Sentence(first, each.text) for each in sentences(TAG.sub(" ", " ".join(lines))))
        lines.clear()

    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith(("|", "#")) or ITEM.match(stripped):
            yield from ended()
        if stripped.startswith(("|", "#")):
            for cell in re.split(r"(?<!\\)\|", CODE.sub("`code`", stripped)):
                yield from (Sentence(number, each.text) for each in sentences(cell))
            continue
        if not lines:
            first = number
        lines.append(ITEM.sub("", stripped, count=1) if ITEM.match(stripped) else stripped)
    yield from ended()


def of_docstrings(source: str) -> Iterator[Sentence]:
    """Yield the sentences of all docstrings, also of attributes."""
    for line, text in docstrings(ast.parse(source)):
        yield from (Sentence(line, each.text) for each in of_page(text))


def of_messages(source: str) -> Iterator[Sentence]:
    """Yield the sentences of all texts that are no docstrings; a value in one is a word."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(each.value) if isinstance(each, ast.Constant) else "V" for each in node.values)
            waiting += (each for value in node.values for each in ast.walk(value) if isinstance(each, ast.JoinedStr))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                waiting += ast.iter_child_nodes(node)
            continue
        yield from (Sentence(node.lineno, each.text) for part in text.split("\n") for each in sentences(part))
