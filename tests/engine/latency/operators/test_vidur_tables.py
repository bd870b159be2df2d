"""Step times from Vidur's lookup tables: how operators add up, what lies between and beyond the points of a table."""

import gzip
from pathlib import Path

import pytest

from blis_sim.cli.main import run
from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.operators import LayerShape, OperatorSteps, OperatorTimes, read_lookup_tables

COMPUTE = """num_tokens,attn_pre_proj,attn_post_proj,mlp_up_proj,mlp_down_proj,mlp_act,attn_rope,attn_kv_cache_save,\
input_layernorm,post_attention_layernorm,add,all_reduce,send_recv
1,1,2,3,4,5,6,7,8,9,10,11,12
101,101,2,3,4,5,6,107,8,9,10,11,112
"""
DECODE = "batch_size,kv_cache_size,prediction\n1,0,10\n1,64,20\n3,0,30\n3,64,60\n"
PREFILL = "prefill_chunk_size,kv0,kv64\n1,1,3\n5,5,15\n"


def write(folder: Path, compute: str = COMPUTE, decode: str = DECODE, prefill: str = PREFILL) -> str:
    (folder / "t_compute.csv").write_text(compute)
    (folder / "t_attn_decode.csv.gz").write_bytes(gzip.compress(decode.encode()))
    (folder / "t_attn_prefill.csv").write_text(prefill)
    return str(folder / "t")


def times(folder: Path, *, layers: int = 2, tp: int = 1, shares: bool = False) -> OperatorTimes:
    return OperatorTimes(read_lookup_tables(write(folder)), LayerShape(layers, tp, shares_kv_heads=shares))


def test_operators_of_a_layer_add_up_with_tokens_rounded_up_to_eight(tmp_path: Path) -> None:
    by_hand_ms = 2 * (8 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10 + 10)  # pre_proj of 8 tokens, kv_cache_save of 1
    assert times(tmp_path).seconds(1, 1, 0) == pytest.approx(by_hand_ms / 1000)


def test_tensor_parallelism_adds_two_exchanges_with_their_launch(tmp_path: Path) -> None:
    more = times(tmp_path, tp=2).seconds(1, 1, 0) - times(tmp_path).seconds(1, 1, 0)
    assert more == pytest.approx(2 * 2 * 11.02 / 1000)


@pytest.mark.parametrize(("shares", "fraction"), [(False, 1.0), (True, 1.1)])
def test_batching_costs_a_tenth_of_attention_where_heads_share_keys(
    tmp_path: Path, shares: bool, fraction: float
) -> None:
    of = times(tmp_path, layers=1, shares=shares)
    two, three = of.seconds(3, 3, 0), of.seconds(3, 3, 64)
    assert three - two == pytest.approx(30 * fraction / 1000)
    assert of.seconds(1, 1, 64) - of.seconds(1, 1, 0) == pytest.approx(0.010)
    assert of.seconds(5, 0, 0, 2, 64, 5) - of.seconds(5, 0, 0, 2, 0, 5) == pytest.approx(0.010 * fraction)


def test_attention_between_and_beyond_points_lies_on_lines(tmp_path: Path) -> None:
    of = times(tmp_path, layers=1)
    base = of.seconds(2, 0, 0)
    assert of.seconds(2, 2, 32) - base == pytest.approx((10 + 20 + 30 + 60) / 4 / 1000)
    assert of.seconds(2, 1, 128) - base == pytest.approx(0.030)
    assert of.seconds(2, 5, 0) - base == pytest.approx(0.050)


def test_a_step_goes_on_to_the_next_stage_at_the_cost_of_a_transfer(tmp_path: Path) -> None:
    of = times(tmp_path)
    assert of.seconds(101, 0, 0, sends=True) - of.seconds(101, 0, 0) == pytest.approx((104 + 11) / 1000)


def test_many_decode_steps_take_what_each_takes_alone(tmp_path: Path) -> None:
    model = OperatorSteps(times(tmp_path))
    shape = BatchShape(decode_requests=3, decode_context_tokens=100)
    alone = [model.step_time(shape._replace(decode_context_tokens=100 + 3 * step)) for step in range(50)]
    assert model.decode_times(shape, 50).tolist() == alone


def test_batches_beyond_the_tables_are_named(tmp_path: Path) -> None:
    model = OperatorSteps(times(tmp_path))
    model.step_time(BatchShape(decode_requests=3, decode_context_tokens=150))
    assert model.exceeded() == []
    model.step_time(BatchShape(decode_requests=4, decode_context_tokens=150))
    assert model.exceeded() == ["up to 4 decodes in a step, the tables have up to 3"]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"compute": COMPUTE.replace("101,101", "101,x")}, "t_compute.csv line 3 column attn_pre_proj: expected a"),
        ({"compute": "num_tokens,add\n2,1\n2,1\n"}, "t_compute.csv line 3 column num_tokens: expected a whole number"),
        ({"compute": "tokens,add\n2,1\n"}, "t_compute.csv line 1: the column num_tokens is missing"),
        ({"decode": DECODE.replace("3,0,30\n", "")}, "expected a row for batch_size 3, kv_cache_size 0, got none"),
        ({"prefill": PREFILL.replace("kv64", "kvx")}, "t_attn_prefill.csv line 1: expected columns kv0, kv64"),
        ({"prefill": "prefill_chunk_size,kv0\n"}, "expected a first line with the names of columns, and rows"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(tmp_path: Path, texts: dict[str, str], said: str) -> None:
    with pytest.raises(EngineError) as refused:
        read_lookup_tables(write(tmp_path, **texts))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--latency-model operators", "--latency-model operators needs --operators with one of profiles:PATH"),
        (
            "--latency-model operators --operators x:y",
            "polynomial:PATH, vidur-tables:PATH, aicb:PATH, got 'x:y'",
        ),
        ("--latency-model operators --operators vidur-tables:/no/x", "/no/x_compute.csv.gz: no such file"),
        ("--latency-model roofline --operators vidur-tables:x", "--operators needs --latency-model operators"),
    ],
)
def test_a_wrong_source_is_refused_in_one_line(flags: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--model", "qwen/qwen3-14b", "--num-requests", "1", *flags.split()]) in (1, 2)
    assert said in capsys.readouterr().err


def test_runs_take_their_step_times_from_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = f"--latency-model operators --operators vidur-tables:{write(tmp_path)} --num-requests 2 --rate 100 --json"
    assert run(["run", "--model", "qwen/qwen3-14b", *flags.split()]) == 0
    shown = capsys.readouterr()
    assert "outside the tables of --operators, whose last slopes go on" in shown.err
    assert '"injected_requests": 2' in shown.out
