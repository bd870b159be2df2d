"""A library that takes a second to import, and that few tests use: imported when one of them begins to use it.

Each process of a test run collects all files, and runs the tests of few.
"""

from importlib import import_module
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stands for the module of its name, and imports it when a public attribute is read.

    Of every name in a file of tests, pytest asks private ones: whether it is a mock, or wraps a fixture.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)
