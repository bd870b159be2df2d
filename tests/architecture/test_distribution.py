"""The files of a distribution, and those that must never be in it."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from blis_sim.cli.main import run
from tests.architecture.project import PACKAGES, PROJECT, product_files, pyproject, tracked_files

_FOLDERS = ("work", "root")
_REGISTRIES = ("py" + "pi", "python" + "hosted", "ana" + "conda", "npm" + "js", "rubyg" + "ems")
ELSEWHERE = re.compile(rf"(?<![\w.\-/])/(?:{'|'.join(_FOLDERS)})/|\b(?:{'|'.join(_REGISTRIES)})\.(?:org|com|net)\b")
"""An absolute path of one machine, or the host of a package registry."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel as users without a C compiler get it, built without network."""
    pytest.importorskip("hatchling", reason="the wheel is built with hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    plain = {**os.environ, "BLIS_COMPILE": "0"}
    subprocess.run(command, cwd=PROJECT, env=plain, check=True, capture_output=True)
    (built,) = folder.glob("*-py3-none-any.whl")
    return zipfile.ZipFile(built)


@pytest.mark.slow
def test_the_source_distribution_holds_the_project_without_its_workshop(tmp_path: Path) -> None:
    ours = {path.relative_to(PROJECT).as_posix() for path in tracked_files()}
    pytest.importorskip("hatchling", reason="it is built with hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names - ours == {"PKG-INFO"}
    workshop = {name for name in ours if name.startswith("workshop/")}
    assert ours - names == {".ci/run", *workshop}
    assert len(workshop) > 50


def place(name: str) -> str:
    """Where the wheel has a file of the project: blis_sim at the top level, all other packages below it."""
    return name if name.startswith("blis_sim/") else f"blis_sim/packages/{name}"


def test_the_wheel_has_one_package_at_the_top_level_and_the_others_on_the_search_path(wheel: zipfile.ZipFile) -> None:
    names = {name.partition("/")[0] for name in wheel.namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"blis_sim", "blis_mockserve.pth"}
    assert wheel.read("blis_mockserve.pth") == b"blis_sim/packages\n"
    below = {name.split("/")[2] for name in wheel.namelist() if name.startswith("blis_sim/packages/")}
    assert sorted({"blis_sim", *below}) == PACKAGES


def test_the_wheel_holds_every_module(wheel: zipfile.ZipFile) -> None:
    ours = {place(file.relative_to(PROJECT).as_posix()) for file in product_files()}
    assert {name for name in wheel.namelist() if name.endswith(".py")} == ours


def test_the_wheel_holds_the_catalogue(wheel: zipfile.ZipFile) -> None:
    data = [
        path.relative_to(PROJECT).as_posix()
        for path in (PROJECT / "blis_sim" / "engine" / "latency" / "catalogue").iterdir()
        if path.suffix in (".csv", ".json", ".yaml")
    ]
    assert len(data) >= 3
    assert [name for name in data if name not in wheel.namelist()] == []


def test_the_learned_coefficients_are_where_an_installation_looks_for_them(
    wheel: zipfile.ZipFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    wheel.extractall(site)
    flags = ("--model", "qwen/qwen3-14b", "--latency-model", "fitted", "--num-requests", "3", "--json")
    installed = subprocess.run(
        [sys.executable, "-m", "blis_sim.cli", "run", *flags],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert run(["run", *flags]) == 0
    assert installed == capsys.readouterr().out != ""
    assert [name for name in wheel.namelist() if name.endswith(".coefficients.yaml")] == [
        "blis_sim/engine/latency/catalogue/qwen3-14b-h100.coefficients.yaml"
    ]


def test_every_package_has_a_py_typed_marker(wheel: zipfile.ZipFile) -> None:
    assert [package for package in PACKAGES if place(f"{package}/py.typed") not in wheel.namelist()] == []


def test_no_package_takes_the_name_of_another_project() -> None:
    """The distribution name `blis` is taken; only the command is called so."""
    assert "blis" not in PACKAGES
    assert pyproject()["project"]["name"] == "blis-mockserve"
    assert pyproject()["project"]["scripts"]["blis"] == "blis_sim.cli.main:main"


def test_containers_hold_no_code_of_their_own() -> None:
    assert list((PROJECT / "docker").rglob("*.py")) == []


def test_no_file_speaks_of_one_machine_or_of_a_package_registry() -> None:
    found = [
        f"{path.relative_to(PROJECT)}:{number} {match[0]}"
        for path in tracked_files()
        if ELSEWHERE.search(text := text_of(path))
        for number, line in enumerate(text.splitlines(), start=1)
        if (match := ELSEWHERE.search(line))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    ["see /{}/main/x".format("work"), "'/{}/.cache'".format("root"), "https://{}.org/simple".format("py" + "pi")],
)
def test_the_search_finds_such_words(text: str) -> None:
    assert ELSEWHERE.search(text)


@pytest.mark.parametrize(
    "text", ["prefill/work/decode", "./root/", "/workload/", "see ../root/x", "/{}s/".format("work")]
)
def test_innocent_words_are_not(text: str) -> None:
    assert not ELSEWHERE.search(text)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore")
