"""The texts of pages that tools of the workshop write are those of the tools."""

from pathlib import Path

import pytest

from workshop import accuracy, errors, published, silicon

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("accuracy", [accuracy.PREAMBLE, accuracy.LEARNED_TEXT.format(accuracy.PHASES)]),
        ("expected-errors", [errors.PREAMBLE]),
        ("published", [published.PREAMBLE, published.WHY, published.OTHERS, published.ANOTHER_GPU]),
        ("silicon", [silicon.PREAMBLE]),
    ],
)
def test_a_page_that_is_written_again_keeps_its_text(page: str, texts: list[str]) -> None:
    written = (DOCS / f"{page}.md").read_text()
    assert [text for text in texts if text not in written] == []
