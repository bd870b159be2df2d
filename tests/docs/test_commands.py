"""Every command that a page shows works, and prints the lines that the page shows."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, PROJECT, README, Command, Fence, commands_of, fences, languages
from tests.docs.terminal import Terminal, missing_lines


def run_page(terminal: Terminal, page: Path) -> None:
    """Execute the commands of a page, except those marked as executed by another test."""
    try:
        for fence in fences(page):
            for command in fence.commands if fence.executed_by is None else ():
                missing = missing_lines(command, printed := terminal.execute(command))
                assert not missing, f"{page.name} says of {command.text!r}\n{missing}\nbut it prints\n{printed}"
    finally:
        terminal.close()


@pytest.fixture(scope="module")
def after_the_tour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A terminal in the folder where the tour of the README has left its files, as the pages assume."""
    for program in ("bash", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"the commands need {program}")
    terminal = Terminal(tmp_path_factory.mktemp("reader"))
    run_page(terminal, README)
    yield terminal
    terminal.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != README and fences(page)], ids=lambda page: page.name
)
def test_the_commands_of_a_page_print_the_lines_it_shows(page: Path, after_the_tour: Terminal) -> None:
    run_page(after_the_tour, page)


@pytest.mark.slow
@pytest.mark.usefixtures("after_the_tour")
def test_the_tour_of_the_readme_prints_the_lines_it_shows() -> None:
    assert any(fence.executed_by is None for fence in fences(README))


@pytest.mark.parametrize(
    "fence", [fence for page in PAGES for fence in fences(page) if fence.executed_by], ids=lambda fence: fence.page.name
)
def test_commands_marked_as_executed_elsewhere_are(fence: Fence) -> None:
    assert fence.executed_by is not None
    file, test = fence.executed_by
    source = (PROJECT / file).read_text()
    assert f"def {test}(" in source
    runs_the_page = f'"{fence.page.name}"' in source
    assert [command.text for command in fence.commands if command.text not in source and not runs_the_page] == []


def test_commands_stand_in_fences_that_are_executed() -> None:
    """A fence in another language is an excerpt of a file or a drawing, not something to type."""
    assert {language for page in PAGES for language in languages(page)} <= {
        *("console", "csv", "text", "toml", "python", "yaml", "javascript")
    }


def test_a_line_that_is_not_printed_is_found() -> None:
    (command,) = commands_of("$ say\nTTFT  40  3.0%  good\ngone\n...\n{... 5}\n")
    assert missing_lines(command, 'TTFT 7 -12.5% poor\n{"a": 61}\n') == ["gone"]
    assert missing_lines(command, "E2E 7 12.5% poor\n") == ["TTFT  40  3.0%  good", "gone", "{... 5}"]


def test_a_figure_that_does_not_depend_on_the_machine_must_be_the_one_printed() -> None:
    (command,) = commands_of("$ blis bench throughput --model m\nThroughput: 57.05 requests/s, ...\n")
    assert missing_lines(command, "Throughput:  57.05 requests/s, 4 tokens/s\n") == []
    assert missing_lines(command, "Throughput: 56.75 requests/s, 4 tokens/s\n") == list(command.expected)


def test_lines_after_a_command_are_what_it_prints() -> None:
    assert commands_of("$ one\n$ two\na\nb\n") == (Command("one", ()), Command("two", ("a", "b")))
