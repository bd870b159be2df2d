"""The module search path: packages of `blis` win over modules of the user with equal names."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import PathFinder

from blis_sim.options import BlisError

PACKAGES = ("blis_sim", "calibrate", "mockserve", "observe", "replay", "traces")

_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_INSTALLED_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "packages")
"""Folder of a wheel for the packages beside blis_sim: other distributions have some of their names at the top level."""


class BrokenInstallationError(BlisError):
    """A module of `blis` is missing, or another module has its name."""


def move_foreign_folders_last(path: list[str]) -> None:
    """Move folders of a search path that hide our packages behind the one that ours are in.

    `python -m` puts the working folder first and PYTHONPATH any folder. What else is in them can still be imported. The
    folder of an installation that has nothing but our packages goes first.
    """
    is_installed = os.path.isdir(_INSTALLED_FOLDER)
    if is_installed:
        path[:] = [_INSTALLED_FOLDER, *(each for each in path if each != _INSTALLED_FOLDER)]
    if _OWN_FOLDER in path:
        names = ("blis_sim",) if is_installed else PACKAGES
        hiding = [each for each in path[: path.index(_OWN_FOLDER)] if any(_has_module(each, name) for name in names)]
        path[:] = [*(each for each in path if each not in hiding), *hiding]


def load_own_packages() -> None:
    """Import our packages whatever else is on the search path, which stays as it is.

    A script's own folder comes first there, and may have a `replay.py`. Raises BrokenInstallationError where a module
    of such a name has been imported before.
    """
    before = list(sys.path)
    move_foreign_folders_last(sys.path)
    try:
        with explain_import_errors():
            for name in PACKAGES:
                import_module(name)
    finally:
        sys.path[:] = before
    own = (_OWN_FOLDER, _INSTALLED_FOLDER)
    for name in PACKAGES:
        place = os.path.dirname(os.path.dirname(sys.modules[name].__file__ or ""))
        if place not in own:
            raise BrokenInstallationError(
                f"the module {name} is {sys.modules[name].__file__}, which is not that of blis"
            )


@contextmanager
def explain_import_errors() -> Iterator[None]:
    """Turn the ImportError of a module of `blis` into BrokenInstallationError, whose message is one line."""
    try:
        yield
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        if name not in PACKAGES:
            raise
        place = getattr(sys.modules.get(name), "__file__", None)
        found = f"{name} is {place}, which is not that of blis or not all of it" if place else "blis is incomplete"
        raise BrokenInstallationError(f"{error}: {found}; install it in a virtual environment of its own") from error


def _has_module(folder: str, name: str) -> bool:
    """Whether a module is imported from a folder; a mere folder of that name has no origin and hides nothing."""
    spec = PathFinder.find_spec(name, [folder])
    return spec is not None and spec.origin is not None
