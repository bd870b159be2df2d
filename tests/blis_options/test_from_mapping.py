"""Settings given as YAML: the same names, the same bounds, the same errors as flags."""

from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from blis_options import OptionError, check_options, option
from blis_options.option import from_mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One setting of each type."""

    model: str = option("")
    max_num_seqs: int = option(256, at_least=1)
    rate: float = option(1.0)
    horizon: int | None = option(None)
    streaming: bool = option(True)
    coefficients: tuple[float, ...] = option(())

    def __post_init__(self) -> None:
        check_options(self)


def from_yaml(text: str) -> Options:
    return from_mapping(Options, yaml.safe_load(text))


def test_every_type_of_setting_can_be_given_in_yaml() -> None:
    text = "{model: qwen, max_num_seqs: 8, rate: 2.5, horizon: 7, streaming: false, coefficients: [1.0, 2.5]}"
    assert from_yaml(text) == Options(
        model="qwen", max_num_seqs=8, rate=2.5, horizon=7, streaming=False, coefficients=(1.0, 2.5)
    )


def test_what_is_not_mentioned_keeps_its_default() -> None:
    assert from_yaml("{model: qwen}") == Options(model="qwen")


def test_a_key_may_be_spelled_as_the_flag_is() -> None:
    assert from_yaml("{max-num-seqs: 8}").max_num_seqs == 8


def test_a_whole_number_will_do_for_a_float() -> None:
    rate = from_yaml("{rate: 2}").rate
    assert (rate, type(rate)) == (2.0, float)


def test_null_means_not_given_where_that_is_allowed() -> None:
    assert from_yaml("{horizon: null}").horizon is None


def test_an_unknown_key_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(OptionError) as raised:
        from_yaml("{max_num_sequences: 8}")
    assert str(raised.value) == (
        "unknown setting 'max_num_sequences', known are coefficients, horizon, max_num_seqs, model, rate, streaming"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{model: 3}", "--model has the wrong type: 3"),
        ("{model: null}", "--model has the wrong type: None"),
        ("{max_num_seqs: many}", "--max-num-seqs has the wrong type: 'many'"),
        ("{max_num_seqs: 2.5}", "--max-num-seqs has the wrong type: 2.5"),
        ("{rate: true}", "--rate has the wrong type: True"),
        ("{rate: fast}", "--rate has the wrong type: 'fast'"),
        ("{streaming: 1}", "--streaming has the wrong type: 1"),
        ("{streaming: 'yes'}", "--streaming has the wrong type: 'yes'"),
        ("{coefficients: 1.5}", "--coefficients has the wrong type: 1.5"),
        ("{coefficients: '1,2'}", "--coefficients has the wrong type: '1,2'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_its_setting(text: str, said: str) -> None:
    with pytest.raises(OptionError) as raised:
        from_yaml(text)
    assert str(raised.value) == said


def test_yaml_is_held_to_the_bounds_of_the_flags() -> None:
    with pytest.raises(OptionError, match="--max-num-seqs must be at least 1, got 0"):
        from_yaml("{max_num_seqs: 0}")


_plain: dict[str, st.SearchStrategy[Any]] = {
    "model": st.text(),
    "max_num_seqs": st.integers(1, 10**6),
    "rate": st.floats(allow_nan=False, allow_infinity=False),
    "horizon": st.none() | st.integers(),
    "streaming": st.booleans(),
    "coefficients": st.lists(st.floats(allow_nan=False, allow_infinity=False)).map(tuple),
}


@given(st.fixed_dictionaries({}, optional=_plain))
def test_values_arrive_as_they_were_given(values: dict[str, Any]) -> None:
    as_yaml = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    assert from_mapping(Options, as_yaml) == Options(**values)
