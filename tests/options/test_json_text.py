"""JSON as flags and files hold it."""

import pytest

from blis_sim.options.option import OptionError, load_json, load_model_json


def test_reads_a_value() -> None:
    assert load_json('{"a": [1, 2.5, "b"]}') == {"a": [1, 2.5, "b"]}


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[1", "9" * 10_000])
def test_refuses_text_that_no_parser_follows_with_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"nest too deep|Expecting|Exceeds the limit"):
        load_json(text)


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 3}', '[{"c": {"a": 1, "a": 1}}]'])
def test_refuses_a_key_that_stands_twice_but_in_files_of_models(text: str) -> None:
    with pytest.raises(OptionError, match="the key 'a' stands twice in "):
        load_json(text)
    assert load_model_json('{"a": 1, "a": 3}') == {"a": 3}
