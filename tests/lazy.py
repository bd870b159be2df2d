"""A library that takes a second to import, and that few tests use: imported when one of them begins to use it.

Each process of a test run collects all files, and runs the tests of few.
"""

from importlib import import_module
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stands for the module of its name, and imports it when an attribute is read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)
