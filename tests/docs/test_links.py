"""Every link of a page has a target, and every page can be reached."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, PROJECT

LINK = re.compile(r"\]\((?!\w+://)([^)\s]*)\)")


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """The file and the heading that each relative link of a page names."""
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, heading = target.partition("#")
        yield (page.parent / path).resolve() if path else page, heading


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("package", ["blis_sim", "calibrate", "mockserve", "observe", "replay", "traces"])
def test_every_file_that_a_folder_tells_its_reader_of_is_in_it(package: str) -> None:
    told = {
        init.parent / name
        for init in (PROJECT / package).rglob("__init__.py")
        for name in re.findall(r"`([\w/]+(?:\.py|/))`", ast.get_docstring(ast.parse(init.read_text())) or "")
    }
    assert told
    assert {path for path in told if not path.exists()} == set()


@pytest.mark.parametrize("page", [*PAGES, PROJECT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, heading in links(page):
        assert target.exists(), f"{page.name} points at {target}"
        assert not heading or heading in anchors(target), f"{page.name} points at #{heading} of {target.name}"


def test_every_page_and_picture_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    found = {PROJECT / "README.md"}
    while found - reached:
        page = (found - reached).pop()
        reached.add(page)
        if page.suffix == ".md":
            found |= {target for target, _ in links(page)}
    documents = {*PAGES, *(PROJECT / "docs" / "pictures").iterdir()}
    assert documents - reached == set()


def test_the_names_in_the_recipes_are_in_the_files_they_speak_of() -> None:
    recipes = [
        found
        for page in PAGES
        for found in re.findall(r"`(\w+)` in `(\w[\w/]*/\w+\.py)`", page.read_text(encoding="utf-8"))
    ]
    assert ("ROUTES", "mockserve/routes/table.py") in recipes
    missing = [(name, file) for name, file in recipes if not re.search(rf"\b{name}\b", (PROJECT / file).read_text())]
    assert missing == []


@pytest.mark.parametrize("package", ["blis_sim/engine", "mockserve", "replay"])
def test_every_folder_of_a_package_has_a_line(package: str) -> None:
    page = (PROJECT / "docs" / "inside.md").read_text(encoding="utf-8")
    lines = re.findall(rf"^\| `{package}/(\w+)/` \|", page, re.MULTILINE)
    folders = {each.parent.name for each in (PROJECT / package).glob("*/__init__.py")}
    assert sorted(lines) == sorted(folders)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_speaks_of_exists(page: Path) -> None:
    spoken_of = re.findall(r"`(\w[\w/]*/(?:[\w.]+\.(?:py|yaml|csv|md))?)`", page.read_text(encoding="utf-8"))
    of_vidur = "data/"  # defaults of its command line
    ours = [name for name in spoken_of if not name.startswith(of_vidur)]
    assert [name for name in ours if not (PROJECT / name).exists()] == []
