"""Middleware by its import path, put around an application as vLLM does."""

import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Any

from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp

from blis_sim.options import OptionError


def wrapped(app: ASGIApp, paths: Sequence[str]) -> ASGIApp:
    """`app` inside of the middleware at these import paths, the last of which is outermost.

    A class is called with the application; a coroutine function takes a request of Starlette and what answers it.
    An exception that no middleware catches becomes status 500. Raises OptionError.
    """
    for path in paths:
        found = imported(path)
        if inspect.isclass(found):
            app = _made(path, found, app)
        elif inspect.iscoroutinefunction(found):
            app = BaseHTTPMiddleware(app, dispatch=found)
        else:
            raise OptionError(f"--middleware {path} must be a class or a coroutine function, got {found!r}")
    return ServerErrorMiddleware(app)


def imported(path: str) -> Any:
    """The object at `package.module.name` or `package.module:name`. Raises OptionError."""
    module, _, name = path.replace(":", ".").rpartition(".")
    if not module or not name:
        raise OptionError(f"--middleware must be an import path such as package.module.Class, got {path!r}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # behind all others: the console script has no folder of the user on its path
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # code of a user may raise anything
        raise OptionError(f"--middleware {path} cannot be imported: {type(error).__name__}: {error}") from error


def _made(path: str, found: Any, app: ASGIApp) -> ASGIApp:
    try:
        made: ASGIApp = found(app)
    except Exception as error:
        raise OptionError(f"--middleware {path} cannot be made: {type(error).__name__}: {error}") from error
    return made
