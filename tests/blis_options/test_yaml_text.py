"""YAML as all files of ours are read."""

import pytest
import yaml

from blis_options.yaml_text import load_yaml


def test_a_key_may_stand_only_once_in_a_mapping() -> None:
    with pytest.raises(yaml.MarkedYAMLError) as mistake:
        load_yaml("a: 1\nb: {c: 1, d: 2}\nb: 3\n")
    assert mistake.value.problem == "the key 'b' stands twice"
    assert mistake.value.problem_mark is not None
    assert mistake.value.problem_mark.line == 2


def test_mappings_may_share_their_keys_and_be_merged() -> None:
    text = "one: &one {a: 1, b: 2}\nother: {<<: *one, b: 3}\nlist: [{a: 1}, {a: 2}]\n"
    assert load_yaml(text) == {
        "one": {"a": 1, "b": 2}, "other": {"a": 1, "b": 3}, "list": [{"a": 1}, {"a": 2}]
    }  # fmt: skip


def test_brackets_without_end_are_too_deep_and_no_crash() -> None:
    with pytest.raises(RecursionError):
        load_yaml("[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize("text", ["a: [", "a: *b", "a: !!python/name:os.system", "\x00"])
def test_what_is_no_yaml_is_an_error_of_yaml(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml(text)
