"""Made-up vectors: always the same, of length 1, and closer the more two texts share."""

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.wings.pooling.pooler import VectorSource, best_match_sum, probabilities, relevance, similarity
from blis_sim.wings.pooling.replies import Encoding

SOURCE = VectorSource(64, seed=3)
TOKENS = st.lists(st.integers(0, 200_000), min_size=1, max_size=40)


@pytest.mark.slow
@given(TOKENS)
def test_a_vector_is_the_same_each_time_and_has_length_1(tokens: list[int]) -> None:
    vector = SOURCE.of_text(tokens)
    assert np.array_equal(vector, SOURCE.of_text(tokens))
    assert float(np.linalg.norm(vector)) == pytest.approx(1, abs=1e-5)


@given(TOKENS)
def test_each_token_has_a_row_of_length_1(tokens: list[int]) -> None:
    rows = SOURCE.of_tokens(tokens)
    assert rows.shape == (len(tokens), 64)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(len(tokens)), abs=1e-5)


def test_texts_are_closer_the_more_tokens_they_share() -> None:
    source = VectorSource(1024)
    whole = source.of_text(range(100))
    likeness = [similarity(whole, source.of_text(range(start, start + 100))) for start in (0, 25, 50, 100)]
    assert likeness == sorted(likeness, reverse=True)
    assert likeness[0] == pytest.approx(1)
    assert abs(likeness[-1]) < 0.3


def test_different_seeds_give_different_vectors() -> None:
    assert not np.array_equal(SOURCE.of_text([1, 2]), VectorSource(64, seed=4).of_text([1, 2]))


def test_a_relevant_pair_has_a_higher_probability() -> None:
    source = VectorSource(1024)
    query, same, other = (source.of_text(range(start, start + 20)) for start in (0, 0, 500))
    assert 0 < relevance(query, other) < 0.5 < relevance(query, same) < 1


def test_late_interaction_finds_every_token_of_the_query_in_its_own_document() -> None:
    rows = SOURCE.of_tokens([1, 2, 3])
    assert best_match_sum(rows, rows) == pytest.approx(3, abs=1e-4)


@given(TOKENS, st.integers(2, 9))
def test_probabilities_of_several_classes_sum_to_1(tokens: list[int], num_labels: int) -> None:
    shares = probabilities(SOURCE.logits(SOURCE.of_text(tokens), num_labels))
    assert float(shares.sum()) == pytest.approx(1, abs=1e-5)
    assert float(shares.min()) > 0


@pytest.mark.parametrize(
    ("dtype", "codes"),
    [
        ("float32", "3f800000c0200000"),
        ("float16", "3c00c100"),
        ("bfloat16", "3f80c020"),
        ("fp8_e4m3", "38c2"),
        ("fp8_e5m2", "3cc1"),
    ],
)
def test_numbers_are_packed_in_every_type(dtype: str, codes: str) -> None:
    vector = np.array([1.0, -2.5], np.float32)
    assert Encoding("base64", dtype, "big").packed(vector).hex() == codes


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=50))
def test_base64_gives_the_numbers_back(values: list[float]) -> None:
    text = Encoding("base64").json_value(np.array(values, np.float32))
    assert isinstance(text, str)
    assert np.frombuffer(base64.b64decode(text), np.float32).tolist() == values


@given(st.floats(-1, 1, width=32))
def test_eight_bits_come_as_close_as_their_format_can(value: float) -> None:
    (code,) = Encoding("base64", "fp8_e4m3").packed(np.array([value], np.float32))
    exponent, mantissa = (code >> 3) & 15, code & 7
    decoded = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    step = 2.0**-9 if exponent == 0 else 2.0 ** (exponent - 10)
    assert abs(abs(value) - decoded) <= step / 2
