"""Changes of the content of prefix caches, as vLLM publishes them and as ours reports them, in one form.

Contents have numbers in the order in which they are first named, so that hashes of different kinds can be compared.
"""

from collections.abc import Hashable, Iterable
from typing import Any, TypeAlias

from blis_sim.engine.kv_cache.changes import (
    AllBlocksCleared,
    BlocksStored,
    CacheChange,
    CpuBlocksRemoved,
    CpuBlockStored,
    DeviceBlockStored,
)

Change: TypeAlias = tuple[Any, ...]


class Contents:
    """Numbers of contents, and the changes so far."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._numbers: dict[Hashable, int] = {}

    def published(self, batch: Any) -> None:
        """Note the events of a batch of vLLM's."""
        for event in batch.events:
            kind = type(event).__name__
            if kind == "BlockStored" and not event.block_size:
                self._came(event.medium, event.locality or "", event.group_idx, event.block_hashes[0])
            elif kind == "BlockRemoved" and event.medium == "CPU":
                self._left_cpu_memory(event.group_idx, event.block_hashes)
            elif kind == "BlockStored":
                stored = [self._number(each) for each in event.block_hashes]
                parent = None if event.parent_block_hash is None else self._number(event.parent_block_hash)
                places = (event.group_idx, event.block_size, len(event.token_ids))
                self.changes.append((kind, *places, parent, *stored))
            elif kind == "BlockRemoved":
                self.changes.append((kind, event.group_idx, *map(self._number, event.block_hashes)))
            else:
                self.changes.append((kind,))

    def reported(self, change: CacheChange, hash_tokens: int) -> None:
        """Note one change of ours."""
        if isinstance(change, AllBlocksCleared):
            self.changes.append(("AllBlocksCleared",))
        elif isinstance(change, BlocksStored):
            blocks, span = change.request.blocks, change.span
            kept = range(change.first + span - 1, change.end, span) if change.kept is None else change.kept
            stored = [self._number(blocks.identity(index)) for index in kept]
            parent = self._number(blocks.identity(change.first - 1)) if change.first else None
            places = (change.group, span * hash_tokens, (change.end - change.first) * hash_tokens)
            self.changes.append(("BlockStored", *places, parent, *stored))
        elif isinstance(change, CpuBlockStored):
            self._came("CPU", "", change.group, change.identity)
        elif isinstance(change, DeviceBlockStored):
            self._came("STORAGE", change.locality, change.group, change.identity)
        elif isinstance(change, CpuBlocksRemoved):
            self._left_cpu_memory(change.group, change.identities)
        else:
            self.changes.append(("BlockRemoved", change.group, self._number(change.identity)))

    def _came(self, medium: str, locality: str, group: int, content: Hashable) -> None:
        """Note a block of a transfer, whose blocks vLLM names in no particular order: by groups, each sorted."""
        kind, block = ("CameTogether", medium, locality), (group, self._numbers.get(content, -1))
        if self.changes and self.changes[-1][:3] == kind:
            self.changes[-1] = (*kind, *sorted([*self.changes[-1][3:], block]))
        else:
            self.changes.append((*kind, block))

    def _left_cpu_memory(self, group: int, contents: Iterable[Hashable]) -> None:
        numbers = [self._numbers.get(each, -1) for each in contents]
        self.changes.append(("CpuBlocksRemoved", group, *numbers))

    def _number(self, content: Hashable) -> int:
        return self._numbers.setdefault(content, len(self._numbers))
