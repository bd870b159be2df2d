"""JSON as flags and files hold it."""

import pytest

from blis_sim.options.option import load_json


def test_reads_a_value() -> None:
    assert load_json('{"a": [1, 2.5, "b"]}') == {"a": [1, 2.5, "b"]}


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[1", "9" * 10_000])
def test_refuses_text_that_no_parser_follows_with_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"nest too deep|Expecting|Exceeds the limit"):
        load_json(text)
