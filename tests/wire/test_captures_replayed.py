"""Captured requests to a genuine vLLM are repeated on our server: every difference must be an expected one.

Each capture file is one test, because its requests build on each other: caches fill, adapters come and go, a server is
paused. Ids, times, fingerprints, floats and the model's words are not compared. `-s` prints every difference.
"""

import sys
from pathlib import Path

import pytest

from tests.wire.captured.expected import outdated, unexpected
from tests.wire.captured.expected_table import TABLE
from tests.wire.captured.open_cases import case_of, read_open_cases
from tests.wire.captured.replay import found_differences
from tests.wire.captured.setups import SETUPS, Setup

LARGE = ("golden1", "golden4")
"""Captures that take more than a second to repeat."""


@pytest.mark.parametrize(
    "setup",
    [pytest.param(each, id=each.name, marks=pytest.mark.slow if each.name in LARGE else ()) for each in SETUPS],
)
def test_a_captured_conversation_is_answered_as_vllm_did(reference: Path, setup: Setup) -> None:
    found = found_differences(setup, reference)
    sys.stdout.writelines(f"{each}\n" for each in found)
    not_meant = unexpected(found, TABLE)
    listed = {line for line in read_open_cases() if line.startswith(f"{setup.name} / ")}
    assert [str(each) for each in not_meant if case_of(each) not in listed] == []
    assert sorted(listed - {case_of(each) for each in not_meant}) == []
    assert [str(row) for row in outdated(found, TABLE, setup.name)] == []
