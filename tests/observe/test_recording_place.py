"""Handling of an earlier recording where a new one is written."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from blis_sim.options import BlisError, OptionError
from observe.command import run
from observe.options import ObserveOptions
from tests.observe.run_in_process import started
from traces import read_itl, read_trace

Observe: TypeAlias = Callable[..., Any]
ALL = {"record_itl": True, "scrape_metrics": True}


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def options(server_url: str, folder: Path, **more: Any) -> ObserveOptions:
    given: dict[str, Any] = {"model": "ok", "rate": 200.0, "num_requests": 5, "prompt_tokens": 20, "output_tokens": 4}
    return ObserveOptions(url=server_url, **(given | {"output": str(folder / "out")} | more))


def test_an_earlier_recording_moves_away_with_all_that_belongs_to_it(observe: Observe, tmp_path: Path) -> None:
    observe(model="ok", **ALL)
    first = files_in(tmp_path)
    assert set(first) == {"out.yaml", "out.csv", "out.server.yaml", "out.itl.csv", "out.metrics.jsonl"}
    second = observe(model="ok", num_requests=3)
    assert second.messages.count("note: ") == 1
    assert f"note: the earlier recording at {tmp_path}/out.csv is now in {tmp_path}/out.earlier-1\n" in second.messages
    assert set(files_in(tmp_path)) == {"out.yaml", "out.csv", "out.server.yaml"}
    assert files_in(tmp_path / "out.earlier-1") == first
    assert len(read_trace(tmp_path / "out.earlier-1" / "out.yaml").rows) == 10
    assert len(read_itl(tmp_path / "out.earlier-1" / "out.itl.csv")) == 10
    observe(model="ok")
    assert len(read_trace(tmp_path / "out.earlier-2" / "out.yaml").rows) == 3


def test_a_recording_without_rows_is_just_replaced(observe: Observe, tmp_path: Path) -> None:
    observe(model="ok")
    lines = (tmp_path / "out.csv").read_text().splitlines(keepends=True)
    (tmp_path / "out.csv").write_text(lines[0])
    assert "note: " not in observe(model="ok").messages
    assert set(files_in(tmp_path)) == {"out.yaml", "out.csv", "out.server.yaml"}
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_overwriting_deletes_all_of_it_without_a_note(observe: Observe, tmp_path: Path) -> None:
    observe(model="ok", **ALL)
    assert "note: " not in observe(model="ok", num_requests=3, overwrite=True).messages
    assert set(files_in(tmp_path)) == {"out.yaml", "out.csv", "out.server.yaml"}
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    assert len(read_trace(tmp_path / "out.yaml").rows) == 3


def test_a_recording_that_is_resumed_is_not_deleted() -> None:
    with pytest.raises(OptionError, match="--overwrite and --resume exclude each other"):
        ObserveOptions(url="http://x", output="out", rate=1.0, num_requests=1, overwrite=True, resume=True)


def test_a_compressed_recording_is_one_of_that_name(server_url: str, tmp_path: Path) -> None:
    compressed = {"trace_header": str(tmp_path / "out.yaml"), "trace_data": str(tmp_path / "out.csv.gz")}
    assert run(options(server_url, tmp_path, **compressed)) == 0
    assert run(options(server_url, tmp_path, num_requests=3)) == 0
    assert len(read_trace(tmp_path / "out.earlier-1" / "out.yaml").rows) == 5
    assert len(read_trace(tmp_path / "out.yaml").rows) == 3
    assert not (tmp_path / "out.csv.gz").exists()


def test_a_recording_in_two_folders_is_found_in_one(server_url: str, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    apart = {"trace_data": str(tmp_path / "rows" / "out.csv")}
    for num_requests in (5, 3):
        assert run(options(server_url, tmp_path, num_requests=num_requests, **apart)) == 0
    assert len(read_trace(tmp_path / "out.earlier-1" / "out.yaml").rows) == 5
    assert len(read_trace(tmp_path / "out.yaml", tmp_path / "rows" / "out.csv").rows) == 3


def test_a_server_out_of_reach_moves_nothing(server_url: str, unused_tcp_port: int, tmp_path: Path) -> None:
    assert run(options(server_url, tmp_path)) == 0
    before = files_in(tmp_path)
    assert run(options(f"http://127.0.0.1:{unused_tcp_port}", tmp_path)) == 1
    assert files_in(tmp_path) == before
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_where_it_cannot_move_to_it_stays_and_nothing_is_sent(
    server_url: str, seen: Callable[[], list[dict[str, Any]]], tmp_path: Path
) -> None:
    long = str(tmp_path / ("t" * 247))  # with .earlier-1 too long for a file system
    assert run(options(server_url, tmp_path, output=long)) == 0
    before = files_in(tmp_path)
    seen()
    with pytest.raises(BlisError, match=r"the earlier recording cannot be moved to .*, file name too long;"):
        run(options(server_url, tmp_path, output=long))
    assert files_in(tmp_path) == before
    assert not [each for each in seen() if "x-request-id" in each["headers"]]
    assert run(options(server_url, tmp_path, output=long, overwrite=True)) == 0


def test_a_file_that_is_read_does_not_move(server_url: str, tmp_path: Path) -> None:
    prompts = tmp_path / "out.metrics.jsonl"
    prompts.write_text('{"prompt": "one two three"}\n')
    assert run(options(server_url, tmp_path, output=str(tmp_path / "other"), prompts=str(prompts))) == 0
    with pytest.raises(BlisError, match=r"--output would write over .*out\.metrics\.jsonl, which --prompts reads"):
        options(server_url, tmp_path, prompts=str(prompts))


def test_one_of_two_runs_that_replace_a_recording_is_refused(server_url: str, tmp_path: Path) -> None:
    """The lock of the earlier header moves away with it."""
    assert run(options(server_url, tmp_path)) == 0
    long = options(server_url, tmp_path, rate=20.0, num_requests=2000)
    with started(long) as process:
        deadline = time.monotonic() + 60
        while not ((tmp_path / "out.earlier-1").exists() and (tmp_path / "out.csv").exists()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(BlisError, match=r"out\.yaml: another process is writing it"):
            run(options(server_url, tmp_path))
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["out.earlier-1"]
    assert len(read_trace(tmp_path / "out.earlier-1" / "out.yaml").rows) == 5


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_by_however_many_processes_it_was_made(server_url: str, processes: int, tmp_path: Path) -> None:
    for num_requests in (5, 3):
        assert run(options(server_url, tmp_path, num_requests=num_requests, processes=processes)) == 0
    assert len(read_trace(tmp_path / "out.earlier-1" / "out.yaml").rows) == 5
    assert len(read_trace(tmp_path / "out.yaml").rows) == 3
