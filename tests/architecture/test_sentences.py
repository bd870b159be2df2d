"""No sentence of a page, a help text, a docstring or a message has more than 25 words."""

import importlib
import subprocess
from collections.abc import Iterator

import pytest

from blis_sim.cli.commands import COMMANDS
from blis_sim.options import options_of
from tests.architecture.project import PROJECT, product_files
from tests.architecture.sentences import MOST_WORDS, of_docstrings, of_messages, of_page, sentences, too_long

OTHERS_WORDS = (
    "Use continue_final_message when you want",
    "Regex does not have a anchored universal start state",
    "The configured offloading spec declares the label names",
    "Mean acceptance length:",
    "To serve at least one request with the model's max seq len",
    "Without it parse_delta cannot tell",
    "Engine sleep state; awake = 0",
    "Prefix-cache hit tokens by the cache tier",
)
"""Beginnings of sentences that vLLM writes."""
LISTS = (
    "af ar hy az be bs bg ca",
    "la ml te bn br eu mn sq",
    "the of and to a in is that",
    "V of V requests completed in V s:",
    "V s: sent V/V at V of V/s",
)
"""Beginnings of texts that are lists of words or figures."""


def tracked_pages() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=PROJECT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("a tree without git does not list its pages")
    return listed.stdout.split()


def test_pages_have_no_long_sentence() -> None:
    found = [
        f"{page}:{each.line}: {each.text}"
        for page in tracked_pages()
        for each in too_long(of_page((PROJECT / page).read_text(encoding="utf-8")), OTHERS_WORDS)
    ]
    assert found == []


@pytest.mark.slow
def test_docstrings_and_messages_have_no_long_sentence() -> None:
    sources = {str(file.relative_to(PROJECT)): file.read_text(encoding="utf-8") for file in product_files()}
    found = [
        f"{file}:{each.line}: {each.text}"
        for file, source in sources.items()
        for each in too_long([*of_docstrings(source), *of_messages(source)], (*OTHERS_WORDS, *LISTS))
    ]
    assert found == []


def help_texts() -> Iterator[tuple[str, str]]:
    for name in COMMANDS.names():
        row = COMMANDS[name]
        yield name, row.help
        for setting in options_of(getattr(importlib.import_module(row.module), row.options)):
            yield f"{name} {setting.label}", setting.option.help


@pytest.mark.slow
def test_help_texts_have_no_long_sentence() -> None:
    found = [
        f"{place}: {each}" for place, text in help_texts() for each in sentences(text) if each.num_words > MOST_WORDS
    ]
    assert found == []


@pytest.mark.parametrize(
    ("page", "counts"),
    [
        ("One two three. Four `a b c` six [seven eight](there.md).", [3, 5]),
        ("- one two\n- three\n\n| four five | six |\n", [2, 1, 2, 1]),
        ("one\n```console\nnot this\n```\ntwo <!-- nor this --> three", [1, 2]),
        ("One: `a`, `b` (c), `d` are e.g. seven.", [5]),
    ],
)
def test_words_of_a_page_are_counted(page: str, counts: list[int]) -> None:
    assert [each.num_words for each in of_page(page) if each.num_words] == counts


def test_a_long_sentence_is_found_wherever_it_stands() -> None:
    long = " ".join(["word"] * 26)
    assert [each.num_words for each in too_long(of_page(f"Short.\n{long}. Short."), ())] == [26]
    assert [each.line for each in too_long(of_docstrings(f'def f():\n    """{long}."""\n'), ())] == [2]
    assert len(list(too_long(of_messages(f'raise E(f"{long} {{value}}.")'), ()))) == 1
    assert list(too_long(of_page(long), ("word word",))) == []
