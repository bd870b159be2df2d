"""The steps of an engine: the file beside a recording, and the lines of vLLM's log that tell of them."""

import json
from pathlib import Path

import pytest

from traces import TraceError
from traces.steps import Step, StepTotals, StepWriter, read_steps, step_of_line, step_totals, steps_beside

WHOLE = Step(
    step=7,
    duration_us=10_230,
    prefill_requests=1,
    prefill_tokens=100,
    decode_requests=3,
    decode_tokens=3,
    engine=1,
    started_us=1_780_000_000_000_000,
    prefill_context_tokens=16,
    decode_context_tokens=900,
    prefill_tokens_squared=10_000,
    prefill_context_work=1_600,
    prefill_prompt_work=11_600,
    kv_usage=0.012,
)
LOGGED = Step(0, 20, 0, 0, 2, 4, kv_usage=1.0)
LINE = (
    "(APIServer pid=3) INFO 11-30 05:00:00 [loggers.py:201] Engine 001: Iteration(7): 1 context requests, "
    "100 context tokens, 3 generation requests, 3 generation tokens, iteration elapsed time: 10.23 ms, "
    "GPU KV cache usage: 1.2%"
)


@pytest.mark.parametrize("name", ["a.steps.csv", "a.steps.csv.gz"])
def test_steps_are_read_as_they_were_written(tmp_path: Path, name: str) -> None:
    writer = StepWriter(tmp_path / name)
    writer.write([WHOLE])
    writer.write([LOGGED, WHOLE])
    writer.close()
    assert read_steps(tmp_path / name) == [WHOLE, LOGGED, WHOLE]
    assert steps_beside(tmp_path / "a.yaml") == tmp_path / name


def test_a_resumed_file_keeps_its_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.steps.csv"
    first = StepWriter(path)
    first.write([WHOLE])
    first.close()
    with path.open("a") as file:
        file.write("8,10")  # killed while writing
    second = StepWriter(path, resume=True)
    second.write([LOGGED])
    second.close()
    assert read_steps(path) == [WHOLE, LOGGED]


def test_columns_in_any_order_with_others_between_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.steps.csv"
    path.write_text(
        "num_running,decode_tokens,decode_requests,prefill_tokens,prefill_requests,duration_us,step\n9,4,2,0,0,20,0\n"
    )
    assert read_steps(path) == [LOGGED._replace(kv_usage=None)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,x,0,0,2,4", "line 2 column duration_us: expected a whole number between 0 and 9007199254740992, got 'x'"),
        ("0,20,-1,0,2,4", "line 2 column prefill_requests: expected a whole number between 0 and 100000000, got '-1'"),
    ],
)
def test_an_unusable_cell_is_named(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "a.steps.csv"
    path.write_text(f"step,duration_us,prefill_requests,prefill_tokens,decode_requests,decode_tokens\n{row}\n")
    with pytest.raises(TraceError, match=message):
        read_steps(path)


def test_a_line_of_vllm_tells_of_a_step() -> None:
    assert step_of_line(LINE) == Step(7, 10_230, 1, 100, 3, 3, engine=1, kv_usage=0.012)


def test_a_line_about_encoder_inputs_tells_of_a_step_too() -> None:
    assert step_of_line(f"{LINE}, encoder inputs: 2, encoder output embeddings: 50") is not None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "INFO 11-30 05:00:00 [loggers.py:335] Engine 000: Avg prompt throughput: 0.0 tokens/s",
        LINE.replace(" ms,", " ms (dummy),"),
        LINE.replace("10.23", "9" * 400 + ".00"),
        LINE.replace("100 context tokens", "999999999 context tokens"),
    ],
    ids=["empty", "other", "dummy", "hostile", "too many"],
)
def test_other_lines_and_dummy_steps_tell_of_none(line: str) -> None:
    assert step_of_line(line) is None


def reading(count: float, tokens: float, engine: int = 0) -> dict[str, float]:
    labels = f'{{engine="{engine}",model_name="m"}}'
    return {f"vllm:iteration_tokens_total{end}{labels}": at for end, at in (("_count", count), ("_sum", tokens))}


def metrics(path: Path, *samples: dict[str, float]) -> Path:
    lines = [{"server": {}}, *({"at_us": 1, "phase": "during", "samples": each} for each in samples)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def test_metrics_of_all_engines_tell_of_the_steps_between_the_readings(tmp_path: Path) -> None:
    before = reading(10, 100) | reading(5, 50, engine=1)
    after = reading(30, 500) | reading(25, 450, engine=1)
    path = metrics(tmp_path / "a.metrics.jsonl", before, reading(20, 200), after)
    assert step_totals(path) == StepTotals(num_steps=40, num_tokens=800)


@pytest.mark.parametrize(
    "samples", [(), (reading(1, 2),), ({}, {}), (reading(9, 90), reading(3, 30))], ids=["none", "one", "other", "anew"]
)
def test_metrics_without_two_ascending_readings_tell_of_none(
    tmp_path: Path, samples: tuple[dict[str, float], ...]
) -> None:
    assert step_totals(metrics(tmp_path / "a.metrics.jsonl", *samples)) is None


@pytest.mark.parametrize("line", ["[]", "{", '{"samples": {"vllm:iteration_tokens_total_sum": null}}'])
def test_a_line_that_is_no_reading_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.metrics.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(TraceError, match=r"a\.metrics\.jsonl line 1: expected a reading of metrics"):
        step_totals(path)
