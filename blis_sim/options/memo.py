"""A bounded cache of results."""

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Memo(dict[Key, Value]):
    """At most `most` results by key; a further result first empties the cache.

    A lookup is as fast as in a dict, which matters more than the choice of kept results.
    """

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: Key, value: Value) -> Value:
        """Keep a result, and return it."""
        if len(self) >= self._most:
            self.clear()
        self[key] = value
        return value
