"""The blocks of one request in one group of layers."""

NULL = 0
"""Stands in block tables for a block that is not needed any more, or has never been. Block 0 is never handed out."""
PLAIN = -1
"""Stands for a block that nothing can find, where blocks are counted."""


class BlockTable:
    """Blocks by position; those no longer needed are `NULL`."""

    __slots__ = ("blocks", "is_allocated", "last_state", "left", "num_cached", "num_retired", "reserved")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.num_cached = 0
        """Leading blocks that have been made findable, or passed over because no hit can need them."""
        self.left: list[tuple[int, int]] = []
        """Blocks given back that only this request could find again: how the pool calls them, and their places."""
        self.is_allocated = False
        """Whether a step has been granted blocks for its states. Groups of states alone, as the following."""
        self.last_state = -1
        """The place of the state that the step before the latest allocation wrote; -1 without."""
        self.num_retired = 0
        """Leading places from which states have been given back."""
        self.reserved: tuple[int, int] | None = None
        """Where the latest chunk keeps a state inside of itself: after how many tokens, and its place."""
