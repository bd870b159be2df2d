"""The KV cache by counting gives the answers of the one with every block: which request finds room, and what can be
found."""

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.kv_cache.vllm_cache import CountingKVCache, VllmKVCache
from blis_sim.engine.request import HashedBlocks, Request
from blis_sim.engine.sequence import Sequence
from tests.examples import examples

SIZE = 2
MOST_TOKENS = 14
"""Blocks of one request, as many as the smallest cache holds."""
PROMPTS = ((1, 2), (1, 2, 3), (1, 4), (5,), (6, 7, 8))


@dataclass(slots=True)
class Both:
    """The two caches, and each request's lives in them."""

    plain: VllmKVCache
    counting: CountingKVCache
    running: list[tuple[Sequence, Sequence]] = field(default_factory=list)
    waiting: list[tuple[Sequence, Sequence]] = field(default_factory=list)

    def submit(self, number: int, hashes: tuple[int, ...], extra_tokens: int) -> None:
        request = Request(f"{number}", SIZE * len(hashes) + extra_tokens, 20, HashedBlocks(f"{number}", hashes), 20)
        self.waiting.append((Sequence(request, 0), Sequence(request, 0)))

    def admit(self) -> None:
        """The next in line, if there is room; it has its first token then."""
        one, other = self.waiting[0]
        hits, names = self.plain.cached_prefix(one), self.counting.cached_prefix(other)
        assert len(hits) == len(names)
        num_tokens = one.num_tokens - len(hits) * SIZE
        fits = self.plain.admit(one, num_tokens, hits, True, bool(self.running))
        assert self.counting.admit(other, num_tokens, names, True, bool(self.running)) == fits
        if fits:
            self.plain.count_lookup(one, len(hits))
            self.counting.count_lookup(other, len(names))
            for each in self.waiting.pop(0):
                each.num_computed_tokens = each.num_tokens
                each.num_output_tokens += 1
            self.running.append((one, other))

    def grow(self, place: int) -> None:
        """Store one token more for a running request; one without room goes back to the queue."""
        one, other = self.running[place]
        if one.num_tokens >= MOST_TOKENS:
            self.end(place)
            return
        fits = self.plain.allocate(one, 1)
        assert self.counting.allocate(other, 1) == fits
        if not fits:
            self.evict(place)
            return
        for each in (one, other):
            each.num_computed_tokens += 1
            each.num_output_tokens += 1

    def evict(self, place: int) -> None:
        one, other = self.running.pop(place)
        self.plain.evict(one)
        self.counting.evict(other)
        for each in (one, other):
            each.restart()
        self.waiting.insert(0, (one, other))

    def grow_unseen_and_end(self, place: int, num_tokens: int) -> None:
        """Store so many tokens more, which the counting cache gets at the end only, as a number."""
        one, other = self.running[place]
        if self.counting.will_share(other):
            self.end(place)
            return
        for _ in range(min(num_tokens, MOST_TOKENS - one.num_tokens)):
            held = self.counting.blocks_for(one.num_computed_tokens)
            if not self.plain.allocate(one, 1):
                break
            one.num_computed_tokens += 1
            one.num_output_tokens += 1
            self.counting.take(self.counting.blocks_for(one.num_computed_tokens) - held)
        del self.running[place]
        self.plain.release(one)
        self.counting.release_grown(other, one.num_computed_tokens, one.num_computed_tokens)

    def end(self, place: int) -> None:
        one, other = self.running.pop(place)
        self.plain.release(one)
        self.counting.release(other)

    def check(self) -> None:
        self.plain.check()
        self.counting.check()
        plain, counting = self.plain, self.counting
        assert counting.num_used_blocks == plain.num_used_blocks
        assert (counting.hit_tokens, counting.queried_tokens) == (plain.hit_tokens, plain.queried_tokens)
        for hashes in PROMPTS:
            probe = Sequence(Request("probe", SIZE * len(hashes) + 1, 1, HashedBlocks("probe", hashes), 1), 0)
            assert len(counting.cached_prefix(probe)) == len(plain.cached_prefix(probe))


ENDS = [("s", 3, 0), ("a", 0, 0), ("u", 0, 0), ("s", 0, 0), ("a", 0, 0)]
"""A prompt of a block has come and gone; one of two blocks runs."""
LARGE = [("s", 4, 0), ("a", 0, 0)]


# What an answer leaves behind is reused after what was there before it.
@example(8, True, [*ENDS, ("u", 0, 2), *LARGE])
@example(8, True, [*ENDS, ("u", 0, 4), *LARGE])
@given(
    num_blocks=st.integers(8, 16),
    caches=st.sampled_from([True, True, True, False]),
    steps=st.lists(st.tuples(st.sampled_from("sssaaagguuue"), st.integers(0, 9), st.integers(0, 6)), max_size=60),
)
@settings(max_examples=examples(300))
def test_counting_answers_as_blocks_do(num_blocks: int, caches: bool, steps: list[tuple[str, int, int]]) -> None:
    config = EngineConfig(num_blocks, SIZE, max_model_len=MOST_TOKENS, enable_prefix_caching=caches)
    both = Both(VllmKVCache(config), CountingKVCache(config))
    for number, (step, which, amount) in enumerate(steps):
        place = which % len(both.running) if both.running else None
        if step == "s":
            both.submit(number, PROMPTS[which % len(PROMPTS)], 1 + amount % 3)
        elif step == "a" and both.waiting:
            both.admit()
        elif step == "g" and place is not None:
            both.grow(place)
        elif step == "u" and place is not None:
            both.grow_unseen_and_end(place, amount)
        elif step == "e" and place is not None:
            both.evict(place)
        both.check()
