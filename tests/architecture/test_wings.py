"""The wings: registered as a stranger's package is, and nothing else needs them."""

import json
import re
import subprocess
import sys
from http.client import HTTPConnection
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.architecture.project import PROJECT, pyproject
from tests.patience import PATIENCE_S
from tests.wire.plain_http import call_on

WINGS = "blis_sim.wings"
WITHOUT_WINGS = f"""
import sys

class NoWings:
    def find_spec(self, name, path=None, target=None):
        if name == "{WINGS}" or name.startswith("{WINGS}."):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NoWings())
from blis_sim.cli.main import main
main()
"""
"""A program in which the folder of the wings might as well have been moved away."""


def blis(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", WITHOUT_WINGS, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def test_the_entry_points_that_are_installed_are_those_of_the_project() -> None:
    groups = pyproject()["project"]["entry-points"]
    installed = {(each.group, each.name, each.value) for each in distribution("blis-mockserve").entry_points}
    missing = {(group, *row) for group, rows in groups.items() for row in rows.items()} - installed
    assert missing == set(), "install again: pip install -e . --no-deps"


@pytest.mark.slow
def test_every_wing_can_be_loaded_by_its_entry_points_alone() -> None:
    own = [each for each in distribution("blis-mockserve").entry_points if each.value.startswith(WINGS)]
    named = {re.split("[.:]", each.value.removeprefix(f"{WINGS}."))[0] for each in own}
    folders = {path.stem for path in (PROJECT / "blis_sim/wings").iterdir() if not path.name.startswith("_")}
    assert named == folders
    for each in own:
        each.load()


@pytest.mark.slow
def test_a_run_and_a_replay_need_no_wing(tmp_path: Path) -> None:
    simulated = blis(tmp_path, "run", "--model", "qwen/qwen3-14b", "--num-requests", "5", "--rate", "9", "--json")
    assert simulated.returncode == 0, simulated.stderr
    assert json.loads(simulated.stdout)["completed_requests"] == 5
    (tmp_path / "requests.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,9,3\n")
    converted = blis(tmp_path, "convert", "azure", "requests.csv", "--output", "trace")
    assert converted.returncode == 0, converted.stderr
    replayed = blis(tmp_path, "replay", "trace.yaml", "--model", "qwen/qwen3-14b", "--json")
    assert replayed.returncode == 0, replayed.stderr
    assert json.loads(replayed.stdout)["completed_requests"] == 1


@pytest.mark.slow
def test_a_server_without_wings_answers() -> None:
    words = ("serve", "qwen/qwen3-14b", "--host", "127.0.0.1", "--port", "0", "--speed", "100")
    with subprocess.Popen([sys.executable, "-c", WITHOUT_WINGS, *words], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        port = next(found[1] for line in server.stderr if (found := re.search(r"http://127.0.0.1:(\d+)", line)))
        body = {"model": "qwen/qwen3-14b", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        connection = HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE_S)
        try:
            reply = call_on(connection, "POST", "/v1/chat/completions", body)
        finally:
            connection.close()
            server.terminate()
    assert (reply.status, reply.json["usage"]["completion_tokens"]) == (200, 3)


@pytest.mark.slow
def test_a_feature_whose_wing_is_missing_is_one_line(tmp_path: Path) -> None:
    refused = blis(tmp_path, "run", "--model", "qwen/qwen3-14b", "--num-requests", "5", "--engine", "adaptive")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "the entry point adaptive of blis.schedulers cannot be loaded: ModuleNotFoundError" in refused.stderr
