"""Raising the limit of open files: as many connections as the system allows, up to vLLM's number."""

import resource
from collections.abc import Iterator

import pytest

from mockserve.http.sockets import raise_file_limit


@pytest.fixture
def low_limit() -> Iterator[int]:
    """A process that may have more files open than it has asked for; the hard limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_is_raised_to_the_requested_number(low_limit: int) -> None:
    assert raise_file_limit(400) == 400
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (400, low_limit)


def test_the_limit_is_raised_as_far_as_allowed(low_limit: int) -> None:
    wanted = low_limit + 1 if low_limit > 0 else 1000
    assert raise_file_limit(wanted) == min(wanted, low_limit if low_limit > 0 else wanted)


def test_the_limit_is_never_lowered(low_limit: int) -> None:
    assert raise_file_limit(100) == 256
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 256
