"""The port that API server processes share."""

import socket

import pytest

from blis_sim.options import StartError
from mockserve.api_servers.engine_process import reserved_port


def test_a_port_whose_last_connections_are_not_over_yet_is_free() -> None:
    """A server that closes a connection first keeps its port in use for a minute, without listening."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = listening.accept()
        served.close()
        assert client.recv(1) == b""
        client.close()
    reserved_port("127.0.0.1", port).close()


def test_a_port_at_which_another_server_listens_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(StartError, match="Address already in use"):
            reserved_port("127.0.0.1", port)
