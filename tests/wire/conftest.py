"""The server that most wire tests share."""

from collections.abc import Iterator

import pytest

from tests.wire.serving import TestServer, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[TestServer]:
    """A fast server shared by all tests that leave its state unchanged."""
    with running_server() as running:
        yield running
