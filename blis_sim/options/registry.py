"""Tables of policies by name, open to those of other packages: `module:Class`, or an entry point."""

import importlib
import os
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from blis_sim.options.option import OptionError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Row = TypeVar("Row")

_ATTRIBUTE = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")


class Registry(dict[str, Row], Generic[Row]):
    """A table with built-in rows; other names are looked up in other packages.

    `Registry[Router]("blis.routers") | {"first": First()}` has one row. `table["my_package.routing:ByPrompt"]` is
    that attribute of that module, and `table["by-prompt"]` what a package installed with an entry point of this name in
    `group`. Iteration gives only the built-in rows, `names` all of them. With a `method` rows are callables, and
    classes among them have this method.
    """

    def __init__(self, group: str, method: str = "") -> None:
        super().__init__()
        self.group, self.method = group, method

    def __or__(self, rows: dict[str, Row]) -> "Registry[Row]":  # type: ignore[override]
        """Return the table with further rows."""
        table: Registry[Row] = Registry(self.group, self.method)
        table.update(self)
        table.update(rows)
        return table

    def names(self) -> tuple[str, ...]:
        """The built-in names, then those of installed packages, for help and error texts."""
        return (*self, *(name for name in sorted(_installed(self.group)) if name not in self.keys()))

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and self._load(name) is not None)

    def __missing__(self, name: str) -> Row:
        found = self._load(name)
        if found is None:
            raise KeyError(name)
        return found

    def _load(self, name: str) -> Row | None:
        found: Row | None = _load_external(self.group, name)
        if found is None or not self.method:
            return found
        if not callable(found):
            raise OptionError(f"{name} must be a class or a function, got {type(found).__name__}")
        if isinstance(found, type) and not hasattr(found, self.method):
            raise OptionError(f"{name} must have a method {self.method}, got a class without it")
        return found


@cache
def _load_external(group: str, name: str) -> Any | None:
    """Return the object of a name from another package, None if there is none. Raises OptionError if loading fails."""
    if _ATTRIBUTE.fullmatch(name):
        return _checked(name, _attribute(name))
    found = _installed(group).get(name)
    if found is None:
        return None
    try:
        return _checked(name, found.load())
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(f"the entry point {name} of {group} cannot be loaded: {_line(error)}") from error


def _checked(name: str, found: Any) -> Any:
    """Return the object of a name. Raises OptionError for an engine in place of a scheduler, and for a class whose
    parent is compiled and allows no subclass."""
    parents = found.__mro__[1:] if isinstance(found, type) else ()
    compiled = [each for each in parents if "__mypyc_attrs__" in vars(each)]
    if not compiled:
        return found
    try:
        found.__new__(found)
    except TypeError as error:
        if "cannot inherit from compiled" in str(error):
            raise OptionError(
                f"{name} inherits from {compiled[0].__name__}, which is compiled to C here: inherit from "
                "VllmScheduler, BlisScheduler, BatchScheduler or LatencyModel, or install blis with BLIS_COMPILE=0"
            ) from None
    return found


@cache
def _installed(group: str) -> "dict[str, EntryPoint]":
    """The entry points of a group by name. Few commands need these, and reading them takes 10 ms."""
    from importlib.metadata import entry_points

    return {each.name: each for each in reversed(tuple(entry_points(group=group)))}  # of equal names the first counts


def _attribute(name: str) -> Any:
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)  # as for a script in this folder
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise OptionError(f"{name} cannot be imported: {_line(error)}") from error
    finally:
        if added:
            sys.path.remove(here)
    return found


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
