"""The server that most wire tests share."""

from collections.abc import Iterator

import pytest

from tests.wire.serving import TestServer, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[TestServer]:
    """One fast server for all tests that leave nothing behind in it."""
    with running_server() as running:
        yield running
