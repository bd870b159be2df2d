"""The pictures are small, and the one that the engine draws shows what the engine does now."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.pages import PROJECT, run_script

PICTURES = PROJECT / "docs" / "pictures"
MAX_BYTES = 70_000


def texts(picture: Path) -> list[str]:
    """Return all text of a picture."""
    root = ElementTree.parse(picture).getroot()
    return ["".join(each.itertext()).strip() for each in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("picture", sorted(PICTURES.iterdir()), ids=lambda picture: picture.name)
def test_a_picture_is_small_and_whole(picture: Path) -> None:
    assert picture.stat().st_size < MAX_BYTES
    assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.slow
def test_the_pictures_of_the_engine_are_up_to_date(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = ("schedulings.svg", "frontier.svg", "engines.svg", "adaptive-burst.svg")
    done = run_script("docs/pictures.py", *names, "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sum("first token after" in text for text in texts(tmp_path / names[0])) == 6
    for name in names:
        assert texts(tmp_path / name) == texts(PICTURES / name)
