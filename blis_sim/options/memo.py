"""Results that are kept for a while, so that equal work is not done again."""

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Memo(dict[Key, Value]):
    """At most `most` results by what they were made from; the next one after these takes the place of all.

    Looking one up costs what it costs in a dict, which matters more here than which results are kept.
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
