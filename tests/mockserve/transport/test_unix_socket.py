"""Unix sockets that servers listen on, leave behind, or would take from each other."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mockserve.http.sockets import UnixSocket, listen_at


def left_behind(path: Path) -> None:
    """A socket of a server that was killed."""
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
        gone.listen()


def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    left_behind(path)
    found = listen_at(str(path), 8)
    with found.listening, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_the_socket_of_a_running_server_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    first = listen_at(path, 8)
    with first.listening:
        with pytest.raises(OSError, match="Address already in use"):
            listen_at(path, 8)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


def test_the_socket_of_a_server_that_is_too_busy_to_accept_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    first = listen_at(path, 0)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    with first.listening:
        for client in clients:
            client.setblocking(False)
            client.connect_ex(path)
        with pytest.raises(OSError, match="Address already in use"):
            listen_at(path, 8)
        assert Path(path).is_socket()
    for client in clients:
        client.close()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_file_that_is_no_socket_is_refused_and_left_alone(kind: str, tmp_path: Path) -> None:
    path, other = tmp_path / "s", tmp_path / "other"
    left_behind(other)
    if kind == "file":
        path.write_text("important")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(other)
    with pytest.raises(FileExistsError, match="there is a file that is no socket"):
        listen_at(str(path), 8)
    assert path.exists()
    assert other.is_socket()


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        listen_at(str(tmp_path / "none" / "s"), 8)


def test_one_of_many_servers_that_start_at_once_listens(tmp_path: Path) -> None:
    path = tmp_path / "s"
    left_behind(path)

    def attempt(_number: int) -> UnixSocket | None:
        try:
            return listen_at(str(path), 64)
        except OSError:
            return None

    with ThreadPoolExecutor(16) as pool:
        found = [each for each in pool.map(attempt, range(64)) if each is not None]
    (only,) = found
    only.listening.close()


def test_the_file_is_removed_unless_it_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = listen_at(str(path), 8)
    path.unlink()
    second = listen_at(str(path), 8)
    with first.listening, second.listening:
        first.remove()
        assert path.is_socket()
        second.remove()
        assert not path.exists()
        second.remove()
