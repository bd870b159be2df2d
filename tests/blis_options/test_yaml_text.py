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


@pytest.mark.parametrize("text", ["- " * 100_000 + "a", "? " * 100_000 + "a"])
def test_nor_do_indents_crash_that_are_too_deep(text: str) -> None:
    with pytest.raises(RecursionError):
        load_yaml(text)


@pytest.mark.parametrize(
    "text", ["a: &a [*a]", "- " * 200 + "a", "\n".join(f"- &a{n + 1} [*a{n}]" for n in range(200))]
)
def test_values_that_no_message_could_show_are_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="deep"):
        load_yaml("- &a0 b\n" + text if text.startswith("- &") else text)


def test_aliases_that_multiply_are_refused_before_anything_counts_what_they_stand_for() -> None:
    lines = ["- &a0 [b]", *(f"- &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]" for n in range(20))]
    with pytest.raises(yaml.YAMLError, match="10,000,000 in all"):
        load_yaml("\n".join(lines))


@pytest.mark.parametrize("value", ["!!bool maybe", "!!timestamp no", '!!int ""', '!!float ""', "!!int a", "2020-13-45"])
def test_a_value_that_is_not_what_its_tag_says_has_a_line(value: str) -> None:
    with pytest.raises(yaml.MarkedYAMLError, match=" is no ") as mistake:
        load_yaml(f"a: 1\nb: {value}\n")
    assert mistake.value.problem_mark is not None
    assert mistake.value.problem_mark.line == 1


@pytest.mark.parametrize("text", ["!!map [a]", "a: !!map x", '"\\UFFFFFFFF"'])
def test_what_pyyaml_stumbles_over_is_a_mistake_like_others(text: str) -> None:
    with pytest.raises((yaml.YAMLError, ValueError)):
        load_yaml(text)


@pytest.mark.parametrize("text", ["a: [", "a: *b", "a: !!python/name:os.system", "\x00"])
def test_what_is_no_yaml_is_an_error_of_yaml(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml(text)
