"""Sections of a page that scripts write, and those that they keep."""

from pathlib import Path

from workshop.sections import with_sections, write_sections

PAGE = """# Title

Old words.

## One

1 before

## Kept

as it is

## Two

2 before
"""


def test_a_section_that_is_not_written_stays_behind_the_one_before_it() -> None:
    written = with_sections(PAGE, "# Title\n\nNew words.\n\n## One\n\n1 now\n\n## Two\n\n2 now\n")
    assert written == PAGE.replace("before", "now").replace("Old", "New")


def test_a_single_section_replaces_its_own_text_only() -> None:
    assert with_sections(PAGE, "## Kept\n\nas it is now\n") == PAGE.replace("as it is", "as it is now")


def test_a_new_section_follows_the_one_that_it_is_written_behind() -> None:
    written = with_sections(PAGE, "## One\n\n1 before\n\n## New\n\nadded\n")
    assert written == PAGE.replace("## Kept", "## New\n\nadded\n\n## Kept")


def test_a_page_that_does_not_exist_is_written_as_a_whole(tmp_path: Path) -> None:
    write_sections(tmp_path / "page.md", PAGE)
    assert (tmp_path / "page.md").read_text() == PAGE


def test_the_page_on_accuracy_keeps_the_section_of_left_out_recordings() -> None:
    page = (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text()
    heading = "## Each recording, predicted from the others"
    assert heading in page
    assert heading in with_sections(page, "# Accuracy\n\n## Learned coefficients\n\nanew\n")
