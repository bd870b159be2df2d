"""Sockets that a server is to listen on, one for each address of a host.

The fast event loop resolves a host on threads of its own, four at once, and aborts the process where it cannot start
them, as under a limit of memory. Here the sockets are made without a thread.
"""

import errno
import os
import socket
from typing import Any

_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""What the system says of an address that the machine does not have."""


def listening_sockets(host: str, port: int, backlog: int, shares_port: bool) -> list[socket.socket]:
    """Sockets that listen. With `shares_port` other processes may listen there, too. Raises OSError if one cannot.

    Addresses that the machine does not have, as those of a family that is switched off, are left out where others are
    left.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    absent: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            made.append(_listening(socket.socket(family, kind, protocol), address, backlog, shares_port))
        except OSError as error:
            if error.errno not in _ABSENT:
                for each in made:
                    each.close()
                raise
            absent = error
    if not made and absent is not None:
        raise absent
    return made


def _listening(made: socket.socket, address: Any, backlog: int, shares_port: bool) -> socket.socket:
    try:
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if made.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(address)
        made.listen(backlog)
    except BaseException:
        made.close()
        raise
    return made
