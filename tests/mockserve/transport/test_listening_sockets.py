"""Sockets that a server listens on."""

import errno
import os
import socket
from typing import Any

import pytest

from mockserve.http.sockets import listening_sockets

FREE: Any = 0


def addresses(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Have a name stand for these hosts."""
    known = socket.getaddrinfo

    def resolve(_: object, port: int, **hints: int) -> object:
        return [found for host in hosts for found in known(host, port, **hints)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def listened_on(*arguments: Any) -> list[tuple[str, int]]:
    """The addresses of all sockets, which are closed."""
    made = listening_sockets(*arguments)
    try:
        assert all(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for each in made)
        return [each.getsockname()[:2] for each in made]
    finally:
        for each in made:
            each.close()


def test_an_address_has_one_socket() -> None:
    [(host, port)] = listened_on("127.0.0.1", FREE, 10, False)
    assert host == "127.0.0.1"
    assert port > 0


def test_a_name_has_a_socket_for_each_address(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses(monkeypatch, "127.0.0.1", "127.0.0.2", "127.0.0.1")
    assert [host for host, _ in listened_on("two", FREE, 10, False)] == ["127.0.0.1", "127.0.0.2"]


def test_an_address_that_the_machine_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses(monkeypatch, "192.0.2.1", "127.0.0.1")
    assert [host for host, _ in listened_on("two", FREE, 10, False)] == ["127.0.0.1"]


def test_a_name_without_an_address_of_the_machine_is_an_error() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EADDRNOTAVAIL)):
        listening_sockets("192.0.2.1", FREE, 10, False)


def test_an_address_in_use_is_an_error_that_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        addresses(monkeypatch, "127.0.0.1", "127.0.0.2")
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            listening_sockets("two", port, 10, False)
        with socket.socket() as again:
            again.bind(("127.0.0.1", port))


def test_processes_share_a_port() -> None:
    (first,) = listening_sockets("127.0.0.1", FREE, 10, True)
    with first:
        port = first.getsockname()[1]
        assert listened_on("127.0.0.1", port, 10, True) == [("127.0.0.1", port)]
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            listening_sockets("127.0.0.1", port, 10, False)
