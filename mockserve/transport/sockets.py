"""Sockets that a server listens on, TCP and unix; TLS; and the number of files that the system lets it open."""

import errno
import fcntl
import logging
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from blis_sim.options import OptionError
from mockserve.options.server import TlsOptions

_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""The system's error numbers for an address that the machine does not have."""


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


USUAL_OPEN_FILES = 65_535
"""vLLM's limit of open files."""

_logger = logging.getLogger(__name__)


def raise_file_limit(requested: int = USUAL_OPEN_FILES) -> int | None:
    """Raise the limit of this process to `requested` open files, or as far as is allowed. Returns the limit, None if
    unknown."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = requested if hard == resource.RLIM_INFINITY else min(requested, hard)
    if soft == resource.RLIM_INFINITY or soft >= possible:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    except (OSError, ValueError) as error:
        _logger.warning("only %d files may be open, connections included: %s; see ulimit -n", soft, error)
        return soft
    return possible


def server_context(options: TlsOptions) -> ssl.SSLContext | None:
    """The TLS settings to listen with, or None for plain HTTP. Raises OptionError for files that cannot be used."""
    if not options.ssl_certfile:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key = options.ssl_keyfile or None
    try:
        context.load_cert_chain(options.ssl_certfile, key)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"--ssl-certfile {options.ssl_certfile} cannot be used: {_reason(error)}") from error
    if options.ssl_ca_certs:
        try:
            context.load_verify_locations(options.ssl_ca_certs)
        except (OSError, ssl.SSLError) as error:
            raise OptionError(f"--ssl-ca-certs {options.ssl_ca_certs} cannot be used: {_reason(error)}") from error
    context.verify_mode = ssl.VerifyMode(options.ssl_cert_reqs)
    if options.ssl_ciphers:
        try:
            context.set_ciphers(options.ssl_ciphers)
        except ssl.SSLError as error:
            raise OptionError(f"--ssl-ciphers {options.ssl_ciphers} names no cipher that is known here") from error
    return context


def _reason(error: OSError) -> str:
    """Errors of files have a text, errors of OpenSSL a reason."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A socket that listens at `path`, and the identity of the file that stands for it."""

    path: str
    listening: socket.socket
    file_id: tuple[int, int]

    def remove(self) -> None:
        """Remove the file, unless another one has taken its place."""
        with suppress(OSError):
            if _file_id(self.path) == self.file_id:
                os.unlink(self.path)


def listen_at(path: str, backlog: int) -> UnixSocket:
    """Listen at `path`. A socket that a server left behind is replaced.

    Raises OSError when a server listens there, when there is a file of another kind, or when the system refuses.
    """
    with _alone_in(os.path.dirname(path) or "."):
        _remove_left_behind(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(path)
            listening.listen(backlog)
            listening.setblocking(False)
            return UnixSocket(path, listening, _file_id(path))
        except BaseException:
            listening.close()
            raise


def _remove_left_behind(path: str) -> None:
    """Remove a socket that refuses connections. Raises OSError for any other file."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # a server with many connections to accept
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


@contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Keep other servers from looking at sockets in this folder: one that is about to listen refuses connections."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _file_id(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino
