"""Settings that vary together."""

import pytest

from blis_sim.bench.points import plan_of
from blis_sim.options import BlisError

MODEL = ("--model", "qwen3-14b")


def varied(*vary: str) -> list[dict[str, object]]:
    return [dict(point.varied) for point in plan_of(MODEL, vary, None).points()]


def test_a_sum_gives_all_splits_into_counts() -> None:
    assert varied("prefill_instances+decode_instances=4") == [
        {"prefill_instances": 1, "decode_instances": 3},
        {"prefill_instances": 2, "decode_instances": 2},
        {"prefill_instances": 3, "decode_instances": 1},
    ]
    assert len(varied("prefill-instances+decode-instances=2,4")) == 4
    assert len(varied("prefill_instances+decode_instances+prefill_decode_instances=5")) == 6


def test_lists_side_by_side_give_no_other_combinations() -> None:
    expected = [
        {"tp": 1, "max_num_seqs": 64, "max_num_batched_tokens": 2048},
        {"tp": 1, "max_num_seqs": 128, "max_num_batched_tokens": 8192},
        {"tp": 2, "max_num_seqs": 64, "max_num_batched_tokens": 2048},
        {"tp": 2, "max_num_seqs": 128, "max_num_batched_tokens": 8192},
    ]
    assert varied("tp=1,2", "max_num_seqs,max_num_batched_tokens=64:2048,128:8192") == expected
    assert varied("tp=1,2", "max_num_seqs,max_num_batched_tokens=[[64, 2048], [128, 8192]]") == expected


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        (("prefill_instances+decode_instances=1",), "must be at least 2, one of each, got 1"),
        (("prefill_instances+decode_instances=many",), "must be the sum of counts from 1 on"),
        (("prefill_instances+decode_instances+prefill_decode_instances=9999",), "must give at most 100000 points"),
        (("prefill_instances+prefill_instances=4",), "each once, got 'prefill_instances.prefill_instances'"),
        (("max_num_seqs,tp=64",), "must have 2 values side by side, such as 1:2, got .'64'."),
        (("max_num_seqs,tp=[64",), "must have values such as 1:2,3:4, or JSON"),
        (("max_num_seqs,tp=64:1,64:1",), "names values twice"),
        (("max_num_seqs,tp=64:1", "tp=1,2"), "names tp twice"),
        (("max_num_seqs,tp=",), "must be NAME=VALUE"),
        (("max_num_seqs,nothing=1:2",), "nothing"),
    ],
)
def test_an_invalid_coupling_is_refused_in_one_line(vary: tuple[str, ...], message: str) -> None:
    with pytest.raises(BlisError, match=message):
        varied(*vary)


def test_a_setting_is_coupled_or_given() -> None:
    with pytest.raises(BlisError, match="--vary tp and one value for it exclude each other"):
        plan_of((*MODEL, "--tp", "2"), ("max_num_seqs,tp=64:1",), None)
