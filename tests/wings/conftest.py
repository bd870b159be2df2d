"""The servers that tests of interfaces and of the load client share."""

from tests.observe.conftest import holding, observe, seen, server_url
from tests.wire.conftest import server

__all__ = ["holding", "observe", "seen", "server", "server_url"]
