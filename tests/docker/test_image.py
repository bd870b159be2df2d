"""The steps of the image, done here: install from the files it is built from, run its entry command, call its check."""

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docker.files import DOCKER, PROJECT, instruction
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what `pip install` makes of the build context, without the dependencies that are here already."""
    pytest.importorskip("hatchling", reason="the package is built with hatchling")
    pytest.importorskip("pip", reason="pip is not installed here")
    context, site = tmp_path_factory.mktemp("context"), tmp_path_factory.mktemp("image") / "site"
    for line in (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines():
        source = PROJECT / line.removeprefix("!")
        if line.startswith("!") and source.is_dir():
            shutil.copytree(source, context / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif line.startswith("!"):
            shutil.copy(source, context)
    plain = {**os.environ, "BLIS_COMPILE": "0"}  # to save time; tests/compiled/ has the other kind
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-compile", "--target"]
    subprocess.run([sys.executable, *install, str(site), str(context)], check=True, capture_output=True, env=plain)
    return site


def environment(image: Path) -> dict[str, str]:
    """The environment of a process in the image, and the paths of Python and the package."""
    stated = dict(pair.split("=", 1) for pair in instruction("ENV").rest.split())
    path = f"{image / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}/usr/bin"
    return {**stated, "PATH": path, "PYTHONPATH": str(image)}


@contextmanager
def running(image: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The entry command with its default arguments on a free port, in that folder."""
    command = [*instruction("ENTRYPOINT").words, *instruction("CMD").words, "--host", "127.0.0.1", "--port", "0"]
    command[0] = str(image / "bin" / command[0])
    with subprocess.Popen(command, cwd=folder, env=environment(image), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"on http://127\.0\.0\.1:(\d+) ", line)
            assert found, line + process.stderr.read()
            yield process, int(found[1])
        finally:
            process.kill()


def health_check(image: Path, port: int) -> int:
    """The exit code of the image's health check, of a server on that port."""
    command = [
        word.replace(f":{instruction('EXPOSE').rest}/", f":{port}/") for word in instruction("HEALTHCHECK").words
    ]
    done = subprocess.run(command, env=environment(image), capture_output=True, timeout=PATIENCE_S, check=False)
    return done.returncode


@pytest.mark.slow
def test_the_entry_command_serves_and_stops_and_leaves_nothing_behind(image: Path, tmp_path: Path) -> None:
    with running(image, tmp_path) as (process, port):
        assert health_check(image, port) == 0
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/dashboard", timeout=PATIENCE_S) as page:
            assert b"<!DOCTYPE html>" in page.read()  # what is no Python file has come along
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert health_check(image, port) != 0
    assert list(tmp_path.iterdir()) == []
