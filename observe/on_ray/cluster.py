"""The Ray cluster that a command works on: connecting to it, or starting one on this machine."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from socket import create_connection

from blis_sim.options import OptionError

_MOST_CONNECT_S = 10.0


@contextmanager
def ray_cluster(address: str | None, packages: Sequence[str], num_cpus: int | None = None) -> Iterator[None]:
    """While open, calls go to the cluster at this address, which gets these packages of ours.

    What Ray prints on its own goes to standard error, as standard output is kept for results.
    Without an address it is one of its own on this machine, with `num_cpus` if given, else its cores. Raises
    OptionError when there is no such cluster, or it does not take this client.
    """
    import ray

    with redirect_stdout(sys.stderr):
        _connect(address, packages, num_cpus)
        try:
            yield
        finally:
            ray.shutdown()


def _connect(address: str | None, packages: Sequence[str], num_cpus: int | None) -> None:
    import ray

    if address is not None:
        _check_somebody_listens(address)
    paths = [str(Path(import_module(name).__path__[0])) for name in packages]
    try:
        ray.init(
            address=address or "local",
            num_cpus=None if address else num_cpus,
            runtime_env={"py_modules": paths},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        asked = "--ray" if address is None else f"--ray-address {address}"
        raise OptionError(f"{asked}: {' '.join(str(error).split())}") from error


def _check_somebody_listens(address: str) -> None:
    """Raise OptionError when the address of a machine has nobody; Ray itself would try for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not (colon and port.isdecimal()):
        return
    try:
        create_connection((host.strip("[]"), int(port)), _MOST_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise OptionError(f"--ray-address {address}: {reason}") from error
