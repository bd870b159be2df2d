"""Step times from AICB's tables: the tables read, values between and beyond them, and exchanges of experts."""

from pathlib import Path

import pytest

from blis_sim.cli.main import run
from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.choice import NetworkOptions
from blis_sim.engine.latency.model import LatencyModel
from tests.engine.latency.operators.aicb_folder import (
    LAYERS,
    MODEL,
    as_json,
    exchanged_bytes,
    name_of,
    write_tables,
)

NETWORK_B_S, NVLINK_B_S = 50e9, 450e9
"""Rates of H200's links, in bytes per second."""


def latency(source: str, tp: int = 1, collectives: str = "tables", model: str = MODEL) -> LatencyModel:
    options = DeploymentOptions(
        model=model,
        hardware="H200",
        tp=tp,
        latency_model="operators",
        operators=source,
        network=NetworkOptions(collectives=collectives),
    )
    return resolve(options).latency


def prompt(tokens: int) -> BatchShape:
    return BatchShape(1, tokens, tokens**2, 0, 0, tokens**2)


def decodes(number: int, context: int) -> BatchShape:
    return BatchShape(0, 0, 0, 0, 0, 0, number, number * context)


def prompt_us(compute_ns: float, tokens: int) -> float:
    return LAYERS * (compute_ns / 1e3 + exchanged_bytes(tokens) / NETWORK_B_S * 1e6)


def decodes_us(compute_ns: float, number: int) -> float:
    return LAYERS * (compute_ns / 1e3 + exchanged_bytes(number) / NVLINK_B_S * 1e6)


@pytest.mark.parametrize(
    ("tokens", "compute_ns"),
    [(100, 3000), (200, 5500), (300, 8000), (400, 10500), (50, 3000)],
    ids=["first", "between", "last", "beyond", "before"],
)
def test_prompts_lie_on_lines_between_tables_and_exchange_between_nodes(
    tmp_path: Path, tokens: int, compute_ns: float
) -> None:
    model = latency(write_tables(tmp_path))
    assert model.step_time(prompt(tokens)) == pytest.approx(prompt_us(compute_ns, tokens), abs=1)


@pytest.mark.parametrize(
    ("number", "context", "compute_ns"),
    [(1, 100, 120), (1, 150, 125), (1, 900, 130), (3, 200, 170), (2, 200, 150), (9, 200, 170)],
)
def test_decodes_lie_on_lines_between_tables_and_exchange_over_nvlink(
    tmp_path: Path, number: int, context: int, compute_ns: float
) -> None:
    model = latency(write_tables(tmp_path))
    assert model.step_time(decodes(number, context)) == pytest.approx(decodes_us(compute_ns, number), abs=1)


def test_a_step_of_both_phases_computes_attention_apart_and_experts_together(tmp_path: Path) -> None:
    model = latency(write_tables(tmp_path))
    both = prompt(199)._replace(decode_requests=1, decode_context_tokens=100)
    attention_ns, experts_ns = 1990 + 50, 3500
    assert model.step_time(both) == pytest.approx(prompt_us(attention_ns + experts_ns, 200), abs=1)


def test_many_decode_steps_take_what_each_takes_alone(tmp_path: Path) -> None:
    model = latency(write_tables(tmp_path))
    alone = [model.step_time(BatchShape(0, 0, 0, 0, 0, 0, 2, 2 * 90 + 2 * step)) for step in range(60)]
    assert model.decode_times(decodes(2, 90), 60).tolist() == alone


def test_one_table_of_prompts_goes_on_in_proportion(tmp_path: Path) -> None:
    source = write_tables(tmp_path)
    (tmp_path / name_of("prefill", 1, 300)).unlink()
    assert latency(source).step_time(prompt(250)) == pytest.approx(prompt_us(7500, 250), abs=1)


def test_the_json_of_a_cache_is_read_as_the_rows_are(tmp_path: Path) -> None:
    source = write_tables(tmp_path)
    before = latency(source).step_time(decodes(2, 150))
    for path in tmp_path.glob("*decode.csv"):
        size, tokens = path.stem.split("-bs")[1].split("-")[0], path.stem.split("-seq")[1].split("-")[0]
        cached = f"aicb-Qwen3-30B-ws2-tp1-pp1-ep2-bs{size}-seq{tokens}-decode.json"
        (tmp_path / cached).write_text(as_json(path.read_text()))
        path.unlink()
    assert latency(source).step_time(decodes(2, 150)) == before


def test_tables_of_the_instance_come_before_those_of_larger_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tables(tmp_path, world=8)
    source = write_tables(tmp_path)
    (tmp_path / name_of("decode", 1, 100, world=8)).write_text("broken")
    flags = f"--model {MODEL} --hardware H200 --num-requests 1 --prompt-tokens 700 --output-tokens 3"
    assert run(["run", *flags.split(), "--latency-model", "operators", "--operators", source]) == 0
    said = capsys.readouterr().err
    assert "prefill times are those of AICB's tables of Qwen3-30B world_size 2 tp 1 pp 1 ep 2" in said
    assert "outside the tables of --operators, prompts go on with the last slope, decodes with the last time" in said


def test_a_network_times_dispatch_combine_and_all_reduces(tmp_path: Path) -> None:
    source = write_tables(tmp_path, tp=2, world=2)
    busbw = tmp_path / "busbw.yaml"
    busbw.write_text("TP:\n  allreduce: 100\nEP:\n  alltoall: 10\n")
    found = latency(source, 2, f"busbw:{busbw}").step_time(prompt(300))
    reduced_us = 300 * 2 * 2048 / 100e9 * 1e6
    exchanged_us = exchanged_bytes(300, 2) / 2 / 10e9 * 1e6
    assert found == pytest.approx(LAYERS * (8 + reduced_us + exchanged_us), rel=1e-4)
    without = latency(source, 2).step_time(prompt(300))
    assert without == pytest.approx(LAYERS * (8 + exchanged_bytes(300, 2) / NETWORK_B_S * 1e6), rel=1e-4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0\tattention\t-1\t0\n", "line 1 column comp_time: expected a number of at least 0, got '-1'"),
        ("0\tattention\t1\n", "line 1: expected layer_id, layer_name, comp_time, comm_size separated by tabs"),
        ("0,attention,1,2\n", "line 1: expected layer_id, layer_name, comp_time, comm_size separated by tabs"),
        ("0\tnorm\t1\t2\n", "column layer_name: expected one of attention, mlp, moe, got 'norm'"),
        ("0\tmoe\t1\t2\n0\tmoe\t1\t2\n", "line 2: layer 0 has moe twice"),
        ("", "expected rows of layer_id"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    source = write_tables(tmp_path)
    (tmp_path / name_of("decode", 1, 200)).write_text(text)
    with pytest.raises(EngineError) as refused:
        latency(source)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("tp", "model", "said"),
    [
        (2, MODEL, "expected prefill tables of Qwen3-30B with tp 2 and pp 1, found Qwen3-30B world_size 2 tp 1"),
        (1, "qwen/qwen3-14b", "expected tables of qwen3-14b with 40 layers, found those of Qwen3-30B"),
        (4, "deepseek-ai/deepseek-v2.5", "expected tables of deepseek-v2.5 with 60 layers"),
    ],
)
def test_a_deployment_without_tables_is_refused(tmp_path: Path, tp: int, model: str, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        latency(write_tables(tmp_path), tp, model=model)


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="expected files such as vidur-MODEL-world_size8-tp1"):
        latency(f"aicb:{tmp_path}")


def test_the_layers_of_measured_tables_add_up(reference: Path) -> None:
    """SimAI has 11,051 us for 100 tokens, of which 61 stand for parts that layers do not have."""
    folder = reference / "golden" / "vidur-data" / "aicb"
    options = DeploymentOptions(
        model="deepseek-ai/deepseek-v3", hardware="H20", tp=8, latency_model="operators", operators=f"aicb:{folder}"
    )
    exchanged = 58 * 21_728  # SimAI's cache has the bytes of a decode here
    compute_us = 11051.12 - 61 - exchanged / (800 * 2**30 / 8) * 1e6
    found = resolve(options).latency.step_time(prompt(100))
    assert found == pytest.approx(compute_us + exchanged / NETWORK_B_S * 1e6, abs=1)
