"""The recipes are followed to the letter, in a copy of the packages."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import FENCE, PROJECT, fences
from tests.docs.terminal import Terminal

PAGE = PROJECT / "docs" / "recipes.md"
PACKAGES = ("blis_sim", "mockserve", "replay", "traces")
NEW_FILE = re.compile(r"`(\w+\.py)` in `([\w/]+/)`:$")
OWN_FILE = re.compile(r"`(\w+\.py)` in a folder of your own:$")
NEW_DATA_ROW = re.compile(r"row of `([\w/]+\.csv)`:$")
NEW_FIELD = re.compile(r"field of `(\w+)` in `([\w/]+\.py)`:$")
NEW_ROW = re.compile(r"row of `(\w+)` in `([\w/]+\.py)`:$")


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages with all that the page adds."""
    project = tmp_path_factory.mktemp("extended")
    for package in PACKAGES:
        shutil.copytree(PROJECT / package, project / package, ignore=shutil.ignore_patterns("__pycache__"))
    for paragraph, code in recipes():
        if new_file := NEW_FILE.search(paragraph):
            (project / new_file[2] / new_file[1]).write_text(code)
        elif OWN_FILE.search(paragraph):
            continue
        elif data_row := NEW_DATA_ROW.search(paragraph):
            with (project / data_row[1]).open("a") as table:
                table.write(code)
        elif new_field := NEW_FIELD.search(paragraph):
            add_field(project / new_field[2], new_field[1], code)
        else:
            new_row = NEW_ROW.search(paragraph)
            assert new_row, f"neither a file nor a row: {paragraph}"
            add_row(project / new_row[2], new_row[1], code)
    return project


def recipes() -> Iterator[tuple[str, str]]:
    """Each piece of code, and the paragraph before it."""
    page = PAGE.read_text(encoding="utf-8")
    for match in FENCE.finditer(page):
        if match["language"] in ("python", "csv"):
            before = page[: match.start("body")].rsplit("```", 1)[0]
            yield " ".join(before.rstrip().rsplit("\n\n", 1)[1].split()), match["body"]


def add_row(file: Path, table: str, code: str) -> None:
    """The last paragraph becomes the first row of the table, the rest stands above it."""
    above, _, row = code.rstrip("\n").rpartition("\n\n")
    source = file.read_text()
    (opening,) = re.findall(rf"^{table}\b.*[{{(]\n", source, re.MULTILINE)
    file.write_text(source.replace(f"\n{opening}", f"\n{above}\n\n\n{opening}{row.lstrip()}\n"))


def add_field(file: Path, class_name: str, code: str) -> None:
    """The field becomes the first one of the class, below its docstring."""
    source = file.read_text()
    (head,) = re.findall(rf'^class {class_name}\b.*:\n    """.*"""\n\n', source, re.MULTILINE)
    file.write_text(source.replace(head, head + code))


@pytest.mark.slow
def test_additions_of_the_recipes_work_without_another_change(extended: Path, tmp_path: Path) -> None:
    for program in ("bash", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"the commands need {program}")
    for paragraph, code in recipes():
        if own_file := OWN_FILE.search(paragraph):
            (tmp_path / own_file[1]).write_text(code)
    terminal = Terminal(tmp_path, extended)
    try:
        for command in fences(PAGE)[0].commands:
            printed = terminal.execute(command).splitlines()
            missing = [line for line in command.expected if line not in ("...", *printed)]
            assert not missing, f"{command.text} prints {printed}"
    finally:
        terminal.close()
