"""YAML as all files of ours are read."""

import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.options import yaml_text
from blis_sim.options.yaml_text import YamlError, dump_yaml, load_yaml


def test_a_key_may_stand_only_once_in_a_mapping() -> None:
    with pytest.raises(YamlError) as mistake:
        load_yaml("a: 1\nb: {c: 1, d: 2}\nb: 3\n")
    assert mistake.value.problem == "the key 'b' stands twice"
    assert mistake.value.line == 3


def test_mappings_may_share_their_keys_and_be_merged() -> None:
    text = "one: &one {a: 1, b: 2}\nother: {<<: *one, b: 3}\nlist: [{a: 1}, {a: 2}]\n"
    assert load_yaml(text) == {
        "one": {"a": 1, "b": 2}, "other": {"a": 1, "b": 3}, "list": [{"a": 1}, {"a": 2}]
    }  # fmt: skip


@pytest.mark.parametrize("start", ["[", "{a: ", "- ", "? ", "[a: b, "])
def test_refuses_deep_nesting_with_its_line_and_without_delay(start: str) -> None:
    begun = time.process_time()
    with pytest.raises(YamlError) as mistake:
        load_yaml(start * 100_000)
    assert mistake.value.problem == "values nest deeper than 100 levels"
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("piece", ["1,", "{},", "a: b,"])
def test_bounds_the_number_of_values_of_a_flow_list(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_text, "_MOST_EVENTS", 1000)
    with pytest.raises(YamlError, match="more than 1,000 values"):
        load_yaml("[" + piece * 1001 + "]")


def test_bounds_the_length_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_text, "MOST_CHARACTERS", 10)
    assert load_yaml("0123456789") == "0123456789"
    with pytest.raises(YamlError, match="11 characters, allowed are 10"):
        load_yaml("0123456789a")


AS_WRITTEN = {
    "010": "010",
    "-007": "-007",
    "1:30": "1:30",
    "1:30:00": "1:30:00",
    "1:30.5": "1:30.5",
    "2026-01-31": "2026-01-31",
    "2026-01-31T23:59:59Z": "2026-01-31T23:59:59Z",
    "1.2.3": "1.2.3",
    "0": 0,
    "10": 10,
    "-5": -5,
    "1_000": 1000,
    "0x1F": 31,
    "0o17": 15,
    "0b11": 3,
    "1e6": 1e6,
    "1.5E-3": 0.0015,
    ".5": 0.5,
    "5.": 5.0,
    "-.inf": -math.inf,
    "yes": True,
    "off": False,
    "~": None,
    "'10'": "10",
}


@pytest.mark.parametrize("text", AS_WRITTEN)
def test_reads_a_scalar_by_its_text(text: str) -> None:
    found = load_yaml(f"a: {text}")["a"]
    assert (found, type(found)) == (AS_WRITTEN[text], type(AS_WRITTEN[text]))


@pytest.mark.parametrize("text", ["1e400", "1" + "0" * 400, "1" * 5000, "0x" + "f" * 400])
def test_refuses_a_number_that_no_float_holds(text: str) -> None:
    with pytest.raises(YamlError, match="no number between -1e300 and 1e300"):
        load_yaml(f"a: {text}")


@pytest.mark.parametrize("text", ["a: 1\n'a': 2", "10: a\n1e1: b", "true: 1\nyes: 2"])
def test_refuses_equal_keys_however_they_are_written(text: str) -> None:
    with pytest.raises(YamlError, match="stands twice"):
        load_yaml(text)


@pytest.mark.parametrize("text", ["a: 1\n--- \nb: 2", "? [a]\n: 1", "<<: a", "a: &a {b: *a}"])
def test_refuses_what_has_no_place_in_one_value(text: str) -> None:
    with pytest.raises(YamlError) as mistake:
        load_yaml(text)
    assert mistake.value.line is not None


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats(-1e300, 1e300)
        | st.sampled_from([*AS_WRITTEN, "<<", "=", "1e5", "null", ""])
        | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab01e:", max_size=3), inner, max_size=3),
        max_leaves=8,
    )
)
def test_reads_back_whatever_was_written(value: Any) -> None:
    assert load_yaml(dump_yaml(value)) == value


@pytest.mark.parametrize(
    "text", ["a: &a [*a]", "- " * 200 + "a", "\n".join(f"- &a{n + 1} [*a{n}]" for n in range(200))]
)
def test_values_that_no_message_could_show_are_refused(text: str) -> None:
    with pytest.raises(YamlError, match="deep"):
        load_yaml("- &a0 b\n" + text if text.startswith("- &") else text)


def test_aliases_that_multiply_are_refused_before_anything_counts_what_they_stand_for() -> None:
    lines = ["- &a0 [b]", *(f"- &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]" for n in range(20))]
    with pytest.raises(YamlError, match="10,000,000 in all"):
        load_yaml("\n".join(lines))


@pytest.mark.parametrize(
    "value", ["!!bool maybe", "!!timestamp no", '!!int ""', '!!float ""', "!!int a", "!!int 010", "!!set x"]
)
def test_a_value_that_does_not_fit_its_tag_has_a_line(value: str) -> None:
    with pytest.raises(YamlError, match=" is no ") as mistake:
        load_yaml(f"a: 1\nb: {value}\n")
    assert mistake.value.line == 2


@pytest.mark.parametrize("text", ["!!map [a]", "a: !!map x", '"\\UFFFFFFFF"'])
def test_errors_of_pyyaml_are_mistakes_like_others(text: str) -> None:
    with pytest.raises(YamlError):
        load_yaml(text)


@pytest.mark.parametrize("text", ["a: [", "a: *b", "a: !!python/name:os.system", "\x00"])
def test_a_text_that_is_no_yaml_is_an_error_of_yaml(text: str) -> None:
    with pytest.raises(YamlError):
        load_yaml(text)


@pytest.mark.parametrize(
    "text", [r'a: "\ud800"', r'"\udfff": 1', r'- !!str "x\uD83D"', r'"\ud83d\ude00"', r'! "\udc00"']
)
def test_refuses_half_a_surrogate_pair_with_its_line(text: str) -> None:
    with pytest.raises(YamlError, match="half of a surrogate pair") as mistake:
        load_yaml(f"\n{text}")
    assert mistake.value.line == 2
    assert load_yaml(r'"\U0001f600"') == "\U0001f600"
    assert load_yaml(r"a: \ud800") == {"a": r"\ud800"}
