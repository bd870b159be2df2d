"""Whole benchmarks against a server whose answers follow from the name of its model."""

import json
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from blis_sim.bench.serve_command import run
from blis_sim.bench.serve_options import BenchServeOptions
from blis_sim.options import BlisError, options_from
from tests.bench.no_server import NoServer
from tests.observe.conftest import seen, server_url

__all__ = ["seen", "server_url"]

Bench: TypeAlias = Callable[..., Any]
Seen: TypeAlias = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def bench(server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    """Run `blis bench serve` with these options; gives `code`, what was `printed` and said, and the `results`."""

    def benched(**options: Any) -> SimpleNamespace:
        given: dict[str, Any] = {
            "base_url": server_url,
            "model": "ok",
            "num_prompts": 8,
            "input_len": 20,
            "output_len": 4,
        }
        code = run(options_from(BenchServeOptions, **(given | {"result_dir": str(tmp_path / "results")} | options)))
        written = capsys.readouterr()
        files = sorted((tmp_path / "results").glob("*"))
        results = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return SimpleNamespace(code=code, printed=written.out, said=written.err, results=results, files=files)

    return benched


def test_each_request_is_sent_and_counted(bench: Bench, seen: Seen) -> None:
    found = bench(save_result=True, save_detailed=True)
    sent = [each for each in seen() if "x-request-id" in each["headers"]]
    assert found.code == 0
    assert sorted(each["headers"]["x-request-id"] for each in sent) == [f"bench-{number}" for number in range(8)]
    assert {each["body"]["max_tokens"] for each in sent} == {4}
    assert all(each["body"]["ignore_eos"] for each in sent)
    (result,) = found.results
    assert (result["completed"], result["total_output_tokens"], result["request_rate"]) == (8, 32, "inf")
    assert (len(result["ttfts"]), result["input_lens"], result["tokenizer_id"]) == (8, [20] * 8, "ok")
    assert "Successful requests:                     8" in found.printed
    load = "load: all requests at once, prompts of 20 and outputs of 4 tokens (means)"
    assert found.printed.splitlines()[-1] == load
    assert found.files[0].name.startswith("openai-infqps-ok-")


def test_without_details_the_file_has_only_the_figures(bench: Bench) -> None:
    (result,) = bench(save_result=True, metadata=("team=a",), label="mine", max_concurrency=3).results
    assert "ttfts" not in result
    assert (result["team"], result["label"], result["max_concurrency"]) == ("a", "mine", 3)


def test_short_runs_at_one_rate_have_a_file_each(bench: Bench) -> None:
    found = bench(save_result=True, request_rate=("inf",) * 4, num_prompts=1)
    assert len(found.files) == len(found.results) == 4


@contextmanager
def full_after(num_bytes: int) -> Iterator[None]:
    """No file can become larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_results_that_do_not_fit_leave_those_before_as_they_are(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "results" / "all.json"
    given: dict[str, Any] = {"append_result": True, "result_filename": "all.json"}
    bench(**given)
    before = path.read_bytes()
    with full_after(len(before) + 20), pytest.raises(BlisError, match=r"cannot write .*all\.json: file too large"):
        bench(**given)
    assert path.read_bytes() == before
    assert len(bench(**given).results) == 2


def test_earlier_results_of_that_name_move_away(bench: Bench, tmp_path: Path) -> None:
    path, given = tmp_path / "all.json", {"save_result": True, "result_dir": str(tmp_path)}
    bench(**given, result_filename="all.json", label="first")
    said = bench(**given, result_filename="all.json", label="second").said
    assert f"note: the earlier results at {path} are now in {tmp_path}/all.earlier-1\n" in said
    assert json.loads((tmp_path / "all.earlier-1" / "all.json").read_text())["label"] == "first"
    said = bench(**given, result_filename="all.json", label="third", overwrite=True).said
    assert "note: " not in said
    assert json.loads(path.read_text())["label"] == "third"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["all.earlier-1", "all.json"]


def test_results_are_saved_beside_earlier_ones_that_cannot_move(bench: Bench, tmp_path: Path) -> None:
    name = "r" * 247  # with .earlier-1 too long for a file system
    given = {"save_result": True, "result_dir": str(tmp_path), "result_filename": f"{name}.json"}
    bench(**given, label="first")
    assert "warning: " in bench(**given, label="second").said
    labels = {path.name: json.loads(path.read_text())["label"] for path in tmp_path.iterdir()}
    assert labels == {f"{name}.json": "first", f"{name}-2.json": "second"}


def test_results_that_do_not_fit_leave_no_half_file(bench: Bench, tmp_path: Path) -> None:
    given = {"save_result": True, "result_dir": str(tmp_path), "result_filename": "all.json"}
    bench(**given)
    with full_after(100), pytest.raises(BlisError, match=r"cannot write .*all\.json: file too large"):
        bench(**given)
    assert [path.name for path in tmp_path.iterdir()] == ["all.earlier-1"]
    assert json.loads((tmp_path / "all.earlier-1" / "all.json").read_text())["completed"] == 8


def test_details_that_go_nowhere_are_pointed_out(bench: Bench) -> None:
    found = bench(save_detailed=True)
    assert (found.code, found.files) == (0, [])
    assert "--save-detailed writes nothing without --save-result" in found.said


def test_results_are_saved_although_standard_output_is_closed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", NoServer())
    with pytest.raises(BrokenPipeError):
        bench(save_result=True)
    (path,) = (tmp_path / "results").iterdir()
    assert json.loads(path.read_text())["completed"] == 8


def test_several_rates_are_compared(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "rates.svg"
    found = bench(
        request_rate=("100", "inf"), append_result=True, result_filename="all.json", goodput=("ttft:9000",),
        plot=str(plot),
    )  # fmt: skip
    assert [each["request_rate"] for each in found.results] == [100, "inf"]
    rows = found.printed.splitlines()[-3:]
    assert " ".join(rows[0].split()) == "rate req/s good req/s tok/s p99 TTFT ms p99 ITL ms failed"
    assert [row.split()[0] for row in rows[1:]] == ["100", "inf"]
    assert plot.read_text().startswith("<?xml")


def test_the_highest_rate_within_limits_is_searched_for(bench: Bench) -> None:
    found = bench(find_rate=True, goodput=("e2el:60000",))
    assert found.printed.splitlines()[-1].startswith("Highest rate within the limits: inf (")
    assert found.printed.count("Serving Benchmark Result") == 1
    never = bench(find_rate=True, goodput=("e2el:0",), tolerance=0.5, num_prompts=2)
    assert never.printed.splitlines()[-1] == "Highest rate within the limits: none"
    rows = [line.split() for line in never.printed.rpartition("failed\n")[2].splitlines()]
    rates = [row[0] for row in rows if len(row) == 7]
    assert rates[0] == "inf"
    assert [float(each) for each in rates[1:]] == sorted(map(float, rates[1:]), reverse=True)


@pytest.mark.slow
def test_one_rate_is_drawn_over_time(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert bench(plot=str(tmp_path / "run.png")).code == 0
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_prompts_differ_between_rates_so_that_no_cache_has_them(bench: Bench, seen: Seen) -> None:
    bench(request_rate=("inf", "inf"))
    prompts = [each["body"]["prompt"] for each in seen() if "x-request-id" in each["headers"]]
    assert len(set(prompts)) == 16


@pytest.mark.parametrize(("assignment", "expected"), [("round-robin", {"ok-1": 4, "ok-2": 4}), ("random", None)])
def test_adapters_are_assigned(
    bench: Bench,
    seen: Seen,
    assignment: str,
    expected: dict[str, int] | None,
) -> None:
    bench(lora_modules=("ok-1", "ok-2"), lora_assignment=assignment)
    models = [each["body"]["model"] for each in seen() if "x-request-id" in each["headers"]]
    assert set(models) == {"ok-1", "ok-2"}
    assert expected is None or {name: models.count(name) for name in expected} == expected


def test_warm_up_and_ready_check_send_the_first_prompt_beforehand(bench: Bench, seen: Seen) -> None:
    found = bench(num_warmups=2, ready_check_timeout_sec=5, backend="openai-chat", save_result=True)
    sent = [each for each in seen() if each["headers"].get("x-request-id") == "bench-0"]
    assert len(sent) == 4
    assert found.results[0]["completed"] == 8


def test_failures_are_counted_and_all_of_them_are_a_failure(bench: Bench) -> None:
    some = bench(model="flaky", save_result=True)
    assert (some.code, some.results[0]["completed"], some.results[0]["failed"]) == (0, 4, 4)
    assert "warning: 4 requests failed: HTTP 500" in some.said
    everything = bench(model="error500")
    assert everything.code == 1
    assert "all requests failed" in everything.said


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"result_dir": "taken/results"}, "cannot write to "),
        ({"result_dir": ".", "result_filename": "folder"}, "--result-filename must be a file, got the folder"),
    ],
)
def test_results_without_a_place_are_refused_before_anything_is_sent(
    bench: Bench, seen: Seen, tmp_path: Path, result: dict[str, str], message: str
) -> None:
    (tmp_path / "taken").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(BlisError, match=message):
        bench(save_result=True, **{**result, "result_dir": str(tmp_path / result["result_dir"])})
    assert seen() == []


def test_a_server_that_is_not_ready_is_given_up(bench: Bench) -> None:
    with pytest.raises(Exception, match="the server is not ready after 1 s: HTTP 500"):
        bench(model="error500", ready_check_timeout_sec=1)


def test_a_server_that_is_not_there_is_one_line(bench: Bench) -> None:
    found = bench(base_url="http://127.0.0.1:1")
    assert found.code == 1
    assert "cannot reach http://127.0.0.1:1" in found.said


def test_the_load_has_the_rate_and_the_shared_prefix(bench: Bench) -> None:
    found = bench(request_rate=("40",), random_prefix_len=30)
    load = r"load: \d+(\.\d+)? requests/s, prompts of 50 and outputs of 4 tokens \(means\)"
    assert re.fullmatch(load, found.printed.splitlines()[-1])


def test_requests_wait_in_line_under_a_cap(bench: Bench) -> None:
    found = bench(model="ok-20-5", max_concurrency=2, percentile_metrics=("client_queue_time",), save_result=True)
    assert found.results[0]["max_concurrent_requests"] <= 8
    assert found.results[0]["mean_client_queue_time_ms"] > 20
    assert "Maximum request concurrency:             2" in found.printed
