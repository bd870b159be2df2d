"""A unix socket to listen on, taken from no server that is running."""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


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
