"""Sections of a Markdown page: a script that writes some of them keeps the others."""

from pathlib import Path

_MARK = "## "


def write_sections(path: Path, text: str) -> None:
    """Write the sections of `text` into a page, which keeps all others where they are."""
    path.write_text(with_sections(path.read_text() if path.exists() else "", text))


def with_sections(page: str, text: str) -> str:
    """Return `page` with the sections of `text` in place of those of equal headings.

    What stands before the first heading of `text`, unless empty, takes the place of what stands there in `page`. A
    section that only `text` has follows the one that it follows there; one that only `page` has stays behind the one
    that it follows in `page`.
    """
    old, new = _sections(page), _sections(text)
    merged = {heading: new.get(heading) or section for heading, section in old.items()}
    previous = ""
    for heading, section in new.items():
        if heading not in merged:
            merged = _inserted(merged, heading, section, previous)
        previous = heading
    return "\n\n".join(section.strip("\n") for section in merged.values() if section.strip()) + "\n"


def _sections(page: str) -> dict[str, str]:
    """Return each section with its heading, by that; what stands before the first one by an empty heading."""
    sections = {"": ""}
    heading = ""
    for line in page.splitlines(keepends=True):
        if line.startswith(_MARK):
            heading = line.strip()
        sections[heading] = sections.get(heading, "") + line
    return sections


def _inserted(sections: dict[str, str], heading: str, section: str, previous: str) -> dict[str, str]:
    """Return `sections` with one more behind the section `previous`."""
    places = list(sections)
    after = places.index(previous) + 1
    items = list(sections.items())
    return dict([*items[:after], (heading, section), *items[after:]])
