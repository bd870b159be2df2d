"""No command writes over what it reads."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from blis_sim.options import OptionError, check_outputs, option


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    source: tuple[str, ...] = option((), "Read these.", repeatable=True)
    report: str | None = option(None, "Write this.", writes=("",))
    trace: str | None = option(None, "Write these two.", writes=(".yaml", ".csv"))


def test_a_file_that_is_read_is_not_written(tmp_path: Path) -> None:
    source = tmp_path / "a.yaml"
    source.touch()
    with pytest.raises(OptionError) as refusal:
        check_outputs(Copying(source=(str(source),), report=str(source)))
    assert str(refusal.value) == f"--report would write over {source}, which --source reads"


def test_a_file_is_known_under_any_of_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").touch()
    Path("link.json").symlink_to("a.yaml")
    with pytest.raises(OptionError, match=r"--report would write over link\.json, which --source reads"):
        check_outputs(Copying(source=(str(tmp_path / "a.yaml"),), report="link.json"))


def test_a_prefix_stands_for_the_files_that_begin_with_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    options = Copying(trace=str(tmp_path / "a"))
    check_outputs(options)
    with pytest.raises(OptionError, match=r"--trace would write over .*a\.csv, which belongs to what is read"):
        check_outputs(options, tmp_path / "a.csv")


def test_no_two_outputs_are_one_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--report and --trace would both write .*a\.csv"):
        check_outputs(Copying(report=str(tmp_path / "a.csv"), trace=str(tmp_path / "a")))


def test_a_file_without_a_folder_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--trace must be in a folder that exists, got .*gone/a\.yaml"):
        check_outputs(Copying(trace=str(tmp_path / "gone" / "a")))
    check_outputs(Copying(trace="a", report="./b"))


def test_a_folder_is_no_name_of_files(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"--trace must name files, got only the folder {tmp_path}/"):
        check_outputs(Copying(trace=f"{tmp_path}/"))


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"--report must be a file, got the folder {tmp_path}"):
        check_outputs(Copying(report=str(tmp_path)))


def test_a_file_that_no_setting_reads_may_be_written_again(tmp_path: Path) -> None:
    (tmp_path / "a.json").touch()
    check_outputs(Copying(source=("not a file", "\0", "x" * 1000), report=str(tmp_path / "a.json")))


def test_a_device_may_be_read_and_written() -> None:
    check_outputs(Copying(source=("/dev/null",), report="/dev/null"))


def test_a_file_with_two_names_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    (tmp_path / "b.csv").hardlink_to(tmp_path / "a.csv")
    with pytest.raises(OptionError, match=r"--report would write over .*b\.csv, which --source reads"):
        check_outputs(Copying(source=(str(tmp_path / "a.csv"),), report=str(tmp_path / "b.csv")))


def test_a_file_that_no_setting_names_is_checked_too(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--report and --more would both write .*a\.csv"):
        check_outputs(Copying(report=str(tmp_path / "a.csv")), also_written=[(str(tmp_path / "a.csv"), "--more")])
