import gzip
from pathlib import Path

import pytest

from traces import TraceError
from traces.append_file import back_up, has_rows

NAMES = ("t.yaml", "t.itl.csv", "t.metrics.jsonl", "t.csv")


def recorded(folder: Path, mark: str = "first") -> dict[str, str]:
    """Make files of a recording; what is in them, by name."""
    for name in NAMES:
        (folder / name).write_text(f"{name}\n{mark}\n")
    return {name: f"{name}\n{mark}\n" for name in NAMES}


def moved(folder: Path) -> Path | None:
    return back_up(folder / "t", [folder / name for name in NAMES[:-1]], [folder / "t.csv", folder / "t.csv.gz"])


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if not path.is_dir()}


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"", False), (b"request_id", False), (b"request_id\n", False), (b"request_id\n1\n", True), (b"a\n1", True)],
)
def test_rows_are_what_stands_behind_the_first_line(tmp_path: Path, content: bytes, expected: bool) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(content))
    assert has_rows(tmp_path / "t.csv") is has_rows(tmp_path / "t.csv.gz") is expected
    assert not has_rows(tmp_path / "nothing.csv")


def test_a_gzip_file_that_cannot_be_read_may_hold_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(b"no gzip at all")
    assert has_rows(tmp_path / "t.csv.gz")


def test_each_recording_moves_to_a_folder_of_its_own(tmp_path: Path) -> None:
    for number, mark in enumerate(("first", "second", "third"), start=1):
        files = recorded(tmp_path, mark)
        assert moved(tmp_path) == tmp_path / f"t.earlier-{number}"
        assert contents(tmp_path / f"t.earlier-{number}") == files
    assert contents(tmp_path) == {}
    assert moved(tmp_path) is None


@pytest.mark.parametrize("num_moved", range(len(NAMES)))
def test_files_that_a_kill_left_behind_follow_into_the_same_folder(tmp_path: Path, num_moved: int) -> None:
    files = recorded(tmp_path)
    (tmp_path / "t.earlier-1").mkdir()
    for name in NAMES[:num_moved]:
        (tmp_path / name).rename(tmp_path / "t.earlier-1" / name)
    assert moved(tmp_path) == tmp_path / "t.earlier-1"
    assert contents(tmp_path / "t.earlier-1") == files


def test_no_file_is_ever_moved_over_those_that_a_kill_left(tmp_path: Path) -> None:
    recorded(tmp_path)
    (tmp_path / "t.earlier-1").mkdir()
    (tmp_path / "t.earlier-1" / "t.yaml").write_text("of the one before")
    assert moved(tmp_path) == tmp_path / "t.earlier-2"
    assert contents(tmp_path / "t.earlier-1") == {"t.yaml": "of the one before"}


def test_when_the_last_file_cannot_be_moved_all_are_where_they_were(tmp_path: Path) -> None:
    files = recorded(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "t.yaml").write_text("takes the name that the rows would need")
    with pytest.raises(TraceError, match=r"elsewhere/t\.yaml: the earlier recording cannot be moved to .*t\.earlier-1"):
        back_up(tmp_path / "t", [tmp_path / "t.yaml"], [tmp_path / "t.csv", tmp_path / "elsewhere" / "t.yaml"])
    assert contents(tmp_path) == files
    assert not (tmp_path / "t.earlier-1").exists()
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["t.yaml"]


def test_a_folder_that_cannot_be_made_leaves_everything_as_it_was(tmp_path: Path) -> None:
    name = "t" * 247  # with .earlier-1 too long for a file system
    for suffix in (".yaml", ".csv"):
        (tmp_path / f"{name}{suffix}").write_text("a\n1\n")
    before = contents(tmp_path)
    with pytest.raises(TraceError, match=r"cannot be moved to .*, file name too long; --overwrite deletes it"):
        back_up(tmp_path / name, [tmp_path / f"{name}.yaml"], [tmp_path / f"{name}.csv"])
    assert contents(tmp_path) == before


def test_files_elsewhere_move_beside_themselves_and_links_stay(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    files = recorded(tmp_path)
    (tmp_path / "t.csv").rename(tmp_path / "large" / "rows.csv")
    (tmp_path / "t.csv").symlink_to("large/rows.csv")
    assert moved(tmp_path) == tmp_path / "t.earlier-1"
    assert contents(tmp_path / "t.earlier-1") == files
    assert (tmp_path / "large" / "t.earlier-1" / "t.csv").read_text() == files["t.csv"]
    (tmp_path / "t.csv").write_text("a\nnew\n")
    assert (tmp_path / "large" / "rows.csv").read_text() == "a\nnew\n"
