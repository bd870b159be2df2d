"""The addresses of a host, resolved on one thread of our own.

The fast event loop resolves names on four threads of libuv, which aborts the process where it cannot start them, as
under a limit of memory.
"""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import TypeAlias

Address: TypeAlias = tuple[str, int]


async def addresses_of(host: str, port: int) -> Sequence[Address]:
    """All addresses of a host, in the order to try them. Raises OSError for a name that has none."""
    with suppress(socket.gaierror, UnicodeError):
        return _resolved(host, port, socket.AI_NUMERICHOST)
    found: asyncio.Future[Sequence[Address]] = asyncio.get_running_loop().create_future()
    try:
        # A name server may be silent for long, and an interrupted program does not wait for it.
        Thread(target=_resolve, args=(host, port, found), name="resolving", daemon=True).start()
    except RuntimeError as error:  # the system starts no further thread
        raise MemoryError(str(error)) from None
    return await found


def _resolve(host: str, port: int, found: "asyncio.Future[Sequence[Address]]") -> None:
    addresses: Sequence[Address] = ()
    failure: OSError | None = None
    try:
        addresses = _resolved(host, port, 0)
    except OSError as error:
        failure = error
    except UnicodeError:  # no name of a host
        failure = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    with suppress(RuntimeError):  # the loop has ended
        found.get_loop().call_soon_threadsafe(_settle, found, addresses, failure)


def _settle(found: "asyncio.Future[Sequence[Address]]", addresses: Sequence[Address], failure: OSError | None) -> None:
    if found.done():
        return
    if failure is None:
        found.set_result(addresses)
    else:
        found.set_exception(failure)


def _resolved(host: str, port: int, flags: int) -> Sequence[Address]:
    # The codec for other names is a module that is not loaded for nothing.
    name = host.encode() if host.isascii() else host
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys((str(address[0]), int(address[1])) for *_, address in found))
