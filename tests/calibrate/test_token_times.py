"""Chunks that hold no token do not count as tokens."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import blis_sim
from calibrate.calibration import content_chunks, itl, itl_compat, real_itl_us, sim_itl_us
from calibrate.compare import pair
from tests.calibrate.recordings import result, row, trace

TOKENS = [10_000, 20_000, 30_000, 40_000, 50_000]


@pytest.mark.parametrize(
    ("chunks", "places"),
    [
        ([9_970, *TOKENS, 50_020], (1, 5)),
        ([9_970, *TOKENS, 53_000], (1, 5)),
        ([9_970, *TOKENS, 50_010, 50_020], (1, 5)),
        ([*TOKENS, 50_020], (0, 4)),
        ([*TOKENS, 53_000], (0, 4)),
        ([9_970, *TOKENS], (1, 5)),
        (TOKENS, (0, 4)),
        ([10_000, 30_000, 50_000], (0, 2)),
    ],
    ids=[
        "role and usage",
        "role and late usage",
        "role, finish reason and usage",
        "usage",
        "late usage",
        "role",
        "tokens only",
        "several tokens per chunk",
    ],
)
def test_role_and_usage_chunks_are_not_counted_as_tokens(chunks: list[int], places: tuple[int, int]) -> None:
    assert content_chunks(chunks, output_tokens=5) == places
    assert real_itl_us(chunks, output_tokens=5) == 10_000


@pytest.mark.parametrize("chunks", [[1_000, *TOKENS], [1_000, *TOKENS, 50_010], [1_000, 2_000, *TOKENS, 51_000]])
def test_a_recording_that_names_its_first_token_needs_no_guess_at_what_came_before(chunks: list[int]) -> None:
    first, last = content_chunks(chunks, output_tokens=5, first_token_us=10_000)
    assert chunks[first : last + 1] == TOKENS
    assert real_itl_us(chunks, 5, 10_000) == 10_000


def test_a_burst_at_the_start_is_not_taken_for_a_role_chunk() -> None:
    assert content_chunks([10_000, 10_030, 10_033, 20_000, 30_000, 33_000], output_tokens=5) == (0, 4)


def test_a_stream_of_unknown_make_is_left_as_it_is() -> None:
    assert content_chunks([*TOKENS, 60_000, 70_000, 80_000, 90_000], output_tokens=5) == (0, 8)


def test_without_a_token_count_all_chunks_are_tokens() -> None:
    assert real_itl_us([9_990, *TOKENS], output_tokens=0) == pytest.approx(40_010 / 5)


def test_without_token_times_the_first_and_the_last_chunk_are_used() -> None:
    rows = [row(0, ttft_us=50, e2e_us=150), row(1, output_tokens=1), row(2, ttft_us=70, e2e_us=70)]
    found = itl(pair(trace(rows), [result(number) for number in range(3)], 0), {})
    assert found.real_us[0] == 25
    assert math.isnan(found.real_us[1])
    assert math.isnan(found.real_us[2])


def test_two_tokens_have_one_time_between_them() -> None:
    assert real_itl_us([10_000, 30_000], output_tokens=2) == 20_000


@pytest.mark.parametrize(("chunks", "tokens"), [([], 5), ([7], 5), ([7, 9, 11], 1), ([50, 40, 30], 3)])
def test_missing_time_between_tokens_differs_from_zero(chunks: list[int], tokens: int) -> None:
    assert math.isnan(real_itl_us(chunks, tokens))


@given(
    gaps=st.lists(st.integers(2_000, 40_000), min_size=2, max_size=40),
    role_us=st.one_of(st.none(), st.integers(1, 100)),
    usage_us=st.one_of(st.none(), st.integers(1, 100)),
)
def test_the_mean_is_that_of_the_tokens_whatever_surrounds_them(
    gaps: list[int], role_us: int | None, usage_us: int | None
) -> None:
    tokens = [1_000_000 + sum(gaps[:place]) for place in range(len(gaps) + 1)]
    chunks = tokens if role_us is None else [tokens[0] - role_us, *tokens]
    chunks = chunks if usage_us is None else [*chunks, tokens[-1] + usage_us]
    assert real_itl_us(chunks, len(tokens)) == pytest.approx(sum(gaps) / len(gaps))


def test_the_simulated_mean_is_the_one_in_the_results() -> None:
    assert sim_itl_us(result(0, itl_mean_us=12.5)) == 12.5
    assert sim_itl_us(result(0, ttft_us=60, e2e_us=160, output_tokens=5)) == 25
    assert math.isnan(sim_itl_us(result(0, output_tokens=1)))


def test_pairs_without_token_times_have_no_itl() -> None:
    pairing = pair(trace([row(0), row(1), row(2)]), [result(0), result(1), result(2)], 0)
    found = itl(pairing, {0: [9_970, *TOKENS, 50_020], 2: [30, 20]})
    assert found.both().tolist() == [True, False, False]
    assert found.num_without_gaps == 1


def test_the_original_counts_every_chunk() -> None:
    pairing = pair(trace([row(0), row(1)]), [result(0, ttft_us=60, e2e_us=160), result(1, output_tokens=1)], 0)
    found = itl_compat(pairing, {0: [100, 90, 100, 120, 120], 1: [5, 4]})
    assert found.real_us[0] == pytest.approx((10 + 20 + 0) / 3)
    assert found.sim_us.tolist() == [25, 0]
    assert found.num_without_gaps == 1


def test_a_run_compared_with_its_own_token_times_has_their_mean(tmp_path: Path) -> None:
    """Under load a first token waits up to 30 ms for tokens of other requests, which its token time does not have."""
    ran = blis_sim.run(
        model="qwen/qwen3-14b",
        rate=100,
        num_requests=200,
        output_tokens=20,
        record_itl=True,
        trace_output=tmp_path / "trace",
    )
    times = str(tmp_path / "trace.itl.csv")
    found = blis_sim.calibrate(tmp_path / "trace.yaml", ran, itl_data=times)
    assert found.metrics["itl"].mape < 0.02
