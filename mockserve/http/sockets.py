"""Listening sockets, TCP and unix; TLS; and the limit of open files."""

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
"""Error numbers for an address that the machine does not have."""


def listening_sockets(host: str, port: int, backlog: int, reuse_port: bool) -> list[socket.socket]:
    """Open listening sockets. With `reuse_port`, other processes may share the port. Raises OSError if one fails.

    Addresses that the machine lacks, such as addresses of a disabled family, are skipped if others remain.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    absent: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            made.append(_listening_socket(socket.socket(family, kind, protocol), address, backlog, reuse_port))
        except OSError as error:
            if error.errno not in _ABSENT:
                for each in made:
                    each.close()
                raise
            absent = error
    if not made and absent is not None:
        raise absent
    return made


def _listening_socket(made: socket.socket, address: Any, backlog: int, reuse_port: bool) -> socket.socket:
    try:
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
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
    """Raise the limit of this process to `requested` open files, or as far as allowed. Returns the limit, None if
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
    """Return the TLS settings of the server, or None for plain HTTP. Raises OptionError for unusable files."""
    if not options.serves_https:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if options.self_signed_certs:
        _load_self_signed(context)
    else:
        try:
            context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile or None)
        except (OSError, ssl.SSLError) as error:
            raise OptionError(
                f"--ssl-certfile {options.ssl_certfile} cannot be used: {_error_reason(error)}"
            ) from error
    if options.ssl_ca_certs:
        try:
            context.load_verify_locations(options.ssl_ca_certs)
        except (OSError, ssl.SSLError) as error:
            raise OptionError(
                f"--ssl-ca-certs {options.ssl_ca_certs} cannot be used: {_error_reason(error)}"
            ) from error
    context.verify_mode = ssl.VerifyMode(options.ssl_cert_reqs)
    if options.ssl_ciphers:
        try:
            context.set_ciphers(options.ssl_ciphers)
        except ssl.SSLError as error:
            raise OptionError(f"--ssl-ciphers {options.ssl_ciphers} names no cipher that is known here") from error
    return context


def _load_self_signed(context: ssl.SSLContext) -> None:
    """Make a key and its certificate, which leave no file behind. Raises OptionError without openssl."""
    import subprocess
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        key, certificate = f"{folder}/key.pem", f"{folder}/cert.pem"
        command = [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate),
            *("-days", "365", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            context.load_cert_chain(certificate, key)
        except (OSError, subprocess.SubprocessError, ssl.SSLError) as error:
            raise OptionError(
                "--self-signed-certs needs the program openssl, give --ssl-certfile and --ssl-keyfile instead"
            ) from error


def _error_reason(error: OSError) -> str:
    """Return the message of an error: file errors have a `strerror`, OpenSSL errors a `reason`."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A listening unix socket, and the identity of its file."""

    path: str
    listening: socket.socket
    file_id: tuple[int, int]

    def remove(self) -> None:
        """Remove the socket file, unless it was replaced by another file."""
        with suppress(OSError):
            if _file_id(self.path) == self.file_id:
                os.unlink(self.path)


def listen_at(path: str, backlog: int) -> UnixSocket:
    """Listen at `path`. A stale socket of an ended server is replaced.

    Raises OSError if a server listens at `path`, if another kind of file exists, or if the system refuses.
    """
    with _locked_folder(os.path.dirname(path) or "."):
        _remove_stale_socket(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(path)
            listening.listen(backlog)
            listening.setblocking(False)
            return UnixSocket(path, listening, _file_id(path))
        except BaseException:
            listening.close()
            raise


def _remove_stale_socket(path: str) -> None:
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
            pass  # a full backlog of a running server
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


@contextmanager
def _locked_folder(folder: str) -> Iterator[None]:
    """Lock the folder against other servers: a socket that is bound but not listening yet looks stale to them."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _file_id(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino
