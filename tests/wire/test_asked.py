"""Requests recorded on a genuine vLLM server are repeated on our server: every difference must be an expected one.

Both servers were started with the same model folder and flags. Ids, times, floats and the model's words are not
compared.
"""

from pathlib import Path

import pytest

from tests.wire.asked.compare import found_differences
from tests.wire.asked.setups import Setup
from tests.wire.asked.table import SETUPS
from tests.wire.captured.expected import outdated, unexpected
from tests.wire.captured.expected_table import TABLE


@pytest.mark.parametrize(
    "setup",
    [pytest.param(each, id=each.name, marks=pytest.mark.slow if each.name == "prompts" else ()) for each in SETUPS],
)
def test_requests_are_answered_as_vllm_answers_them(tmp_path: Path, setup: Setup) -> None:
    found = found_differences(setup, tmp_path)
    assert [str(each) for each in unexpected(found, TABLE)] == []
    assert [str(row) for row in outdated(found, TABLE, f"asked {setup.name}")] == []
