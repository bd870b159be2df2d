"""BLIS's KV cache with a mirror in CPU memory, written down literally: token by token, blocks known by hashes.

Slow and plain, a reference for the product's, which identifies contents by their places in a request.
"""

from collections import OrderedDict
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from blis_sim.engine.kv_cache.blis_cache import MAX_PREEMPTIONS
from blis_sim.engine.offloading import CpuTierConfig
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Sequence

Chain = tuple[object, ...]
"""All tokens of a block and of those it was hashed after: a hash that never collides."""


@dataclass(slots=True)
class Block:
    references: int = 0
    hash: Chain = ()
    tokens: list[object] = field(default_factory=list)


class LiteralTiers:
    """Offers the methods of a cache that BLIS's scheduler calls."""

    def __init__(self, num_blocks: int, block_size_tokens: int, config: CpuTierConfig) -> None:
        self.size = block_size_tokens
        self.blocks = [Block() for _ in range(num_blocks)]
        self.free = list(range(num_blocks))
        self.owned: dict[str, list[int]] = {}
        self.found: dict[Chain, int] = {}
        self.cpu: OrderedDict[Chain, None] = OrderedDict()
        self.cpu_capacity = config.num_blocks
        self.transfer_us = config.transfer_us(block_size_tokens)
        self.pending_us = self.now = 0
        self.num_hit_blocks = self.num_missed_blocks = self.num_cpu_misses = 0
        self.num_stored = self.num_evicted = self.num_fetched = 0

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def num_used_blocks(self) -> int:
        return len(self.blocks) - len(self.free)

    @property
    def hit_tokens(self) -> int:
        return self.num_hit_blocks * self.size

    @property
    def queried_tokens(self) -> int:
        return (self.num_hit_blocks + self.num_missed_blocks + self.num_cpu_misses) * self.size

    def check(self) -> None:
        assert sorted(self.free) == [i for i, block in enumerate(self.blocks) if not block.references]

    def take_transfer_us(self) -> int:
        pending, self.pending_us = self.pending_us, 0
        return pending

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        found: list[int] = []
        for chain in self._prompt_chains(sequence.request, (), 0):
            if chain not in self.found:
                break
            found.append(self.found[chain])
        return found

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        is_prompt = sequence.num_computed_tokens < sequence.input_tokens
        return self.allocate_prompt(sequence, num_tokens) if is_prompt else self.allocate_token(sequence)

    def allocate_prompt(self, sequence: Sequence, num_tokens: int, cached: SequenceOf[int] = ()) -> bool:
        start = sequence.num_computed_tokens if sequence.running else len(cached) * self.size
        end = start + num_tokens
        if not self._reload(sequence, cached):
            return self._counted(self._store(sequence, start, end, cached))
        prefix = self.cached_prefix(sequence)[: -(-end // self.size)]
        if len(prefix) * self.size <= start:
            return self._store(sequence, start, end, cached)
        more = prefix[len(self._blocks_of(sequence)) :]
        self._claim(sequence, more)
        return len(prefix) * self.size >= end or self._store(sequence, len(prefix) * self.size, end, ())

    def allocate_token(self, sequence: Sequence) -> bool:
        start = sequence.num_computed_tokens
        reloaded = self._reload(sequence, ())
        stored = self._store(sequence, start, start + 1, ())
        return stored if reloaded else self._counted(stored)

    def release(self, sequence: Sequence) -> None:
        for number in reversed(self.owned.pop(sequence.request.id, [])):
            self.blocks[number].references -= 1
            if not self.blocks[number].references:
                self.free.append(number)

    def evict(self, sequence: Sequence) -> None:
        self.release(sequence)

    def step_executed(self, running: SequenceOf[Sequence]) -> None:
        for sequence in running:
            for number in self._blocks_of(sequence):
                chain = self.blocks[number].hash
                if not chain:
                    continue
                if chain in self.cpu:
                    self.cpu.move_to_end(chain)
                    continue
                if len(self.cpu) == self.cpu_capacity:
                    self.cpu.popitem(last=False)
                    self.num_evicted += 1
                self.cpu[chain] = None
                self.num_stored += 1

    def _counted(self, allocated: bool) -> bool:
        self.num_cpu_misses += not allocated
        return allocated

    def _blocks_of(self, sequence: Sequence) -> list[int]:
        return self.owned.setdefault(sequence.request.id, [])

    def _tokens(self, request: Request, start: int, end: int) -> list[object]:
        return [(request.blocks.identity(at // self.size), at) for at in range(start, end)]

    def _prompt_chains(self, request: Request, seed: Chain, first: int) -> list[Chain]:
        chains = []
        for index in range(first, request.input_tokens // self.size):
            seed = (*seed, *self._tokens(request, index * self.size, (index + 1) * self.size))
            chains.append(seed)
        return chains

    def _reload(self, sequence: Sequence, cached: SequenceOf[int]) -> bool:
        if sequence.num_preemptions >= MAX_PREEMPTIONS:
            return False
        owned = self._blocks_of(sequence)
        known = cached if len(cached) > len(owned) else owned
        seed = self.blocks[known[-1]].hash if known else ()
        most, count = len(self.free), 0
        for chain in self._prompt_chains(sequence.request, seed, len(known)):
            if chain in self.found:
                continue
            if chain not in self.cpu or count == most:
                break
            number = self._pop()
            self.blocks[number].tokens = list(chain[-self.size :])
            self._register(number, chain)
            self.free.append(number)
            self.cpu.move_to_end(chain)
            self.pending_us += self.transfer_us
            self.num_fetched += 1
            count += 1
        return count > 0

    def _store(self, sequence: Sequence, start: int, end: int, cached: SequenceOf[int]) -> bool:
        owned, is_prompt = self._blocks_of(sequence), start < sequence.request.input_tokens
        tokens = self._tokens(sequence.request, start, end)
        spare = self.size - len(self.blocks[owned[-1]].tokens) if owned else 0
        needed = -(-max(0, len(tokens) - spare) // self.size)
        if needed + sum(not self.blocks[number].references for number in cached) > len(self.free):
            return False
        if tokens and not owned:
            self._claim(sequence, cached)
        while tokens:
            block = self.blocks[owned[-1]] if owned else None
            if block is not None and len(block.tokens) < self.size:
                room = self.size - len(block.tokens)
                block.tokens += tokens[:room]
                tokens = tokens[room:]
                self._hash_last(owned)
                continue
            owned.append(self._pop())
            self.blocks[owned[-1]].references = 1
            self.blocks[owned[-1]].tokens = tokens[: self.size]
            tokens = tokens[self.size :]
            self.num_missed_blocks += 1
            if is_prompt:
                self._hash_last(owned)
        return True

    def _claim(self, sequence: Sequence, numbers: SequenceOf[int]) -> None:
        for number in numbers:
            if not self.blocks[number].references:
                self.free.remove(number)
            self.blocks[number].references += 1
            self._blocks_of(sequence).append(number)
        self.num_hit_blocks += len(numbers)

    def _hash_last(self, owned: list[int]) -> None:
        block = self.blocks[owned[-1]]
        if len(block.tokens) == self.size:
            before = self.blocks[owned[-2]].hash if len(owned) > 1 else ()
            self._register(owned[-1], (*before, *block.tokens))

    def _register(self, number: int, chain: Chain) -> None:
        self.blocks[number].hash = chain
        self.found[chain] = number

    def _pop(self) -> int:
        number = self.free.pop(0)
        block = self.blocks[number]
        self.found.pop(block.hash, None)
        block.hash, block.tokens = (), []
        return number
