"""Free blocks by count: reused in the same order as if each were listed by itself."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.kv_cache.block_pool import FreeBlockRuns

NUM_BLOCKS = 12
NAMELESS = 0


@dataclass
class ListedBlocks:
    """The blocks of `FreeBlockRuns` one by one: the reference for its results."""

    free: list[int] = field(default_factory=lambda: [NAMELESS] * NUM_BLOCKS)
    """In the order of reuse: names, or `NAMELESS`."""
    holders: dict[int, int] = field(default_factory=dict)

    def take(self, num_blocks: int) -> list[int]:
        taken, self.free = self.free[:num_blocks], self.free[num_blocks:]
        return [name for name in taken if name != NAMELESS]

    def hold(self, names: list[int]) -> None:
        for name in names:
            self.holders[name] += 1
            if name in self.free:
                self.free.remove(name)

    def give_back_all(self, names: list[int]) -> None:
        for name in reversed(names):
            self.holders[name] -= 1
            if not self.holders[name]:
                self.free.append(name)


@dataclass
class Held:
    """Blocks that one sequence holds: those found when it joined, its own with a name, and the number of those
    without."""

    found: list[int]
    named: list[int]
    num_nameless: int


Joining = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
"""How many leading blocks of an earlier sequence are found, and how many named and nameless ones are taken."""


@given(st.lists(Joining | st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=30))
def test_blocks_are_reused_in_the_order_in_which_a_list_of_them_would_be(
    acts: list[tuple[int, int, int] | tuple[int, int]],
) -> None:
    runs, listed = FreeBlockRuns(NUM_BLOCKS), ListedBlocks()
    sequences: list[Held] = []
    findable: list[int] = []
    for act in acts:
        if len(act) == 3:
            num_found, num_named, num_nameless = act
            found = findable[:num_found]
            num_held = runs.num_held(found)
            assert num_held == sum(listed.holders[name] > 0 for name in found)
            num_taken = num_named + num_nameless
            if num_taken + len(found) - num_held > runs.num_free:
                continue
            if found:
                runs.hold(found)
                listed.hold(found)
            lost = listed.take(num_taken)
            assert list(runs.take(num_taken)) == lost
            names = list(runs.new_names(num_named, references=1))
            listed.holders.update(dict.fromkeys(names, 1))
            findable = [name for name in findable if name not in lost] + names
            sequences.append(Held(found, names, num_nameless))
        elif sequences:
            place, num_useless = act
            held = sequences.pop(place % len(sequences))
            names = [*held.found, *held.named]
            num_findable = max(held.num_nameless - num_useless, 0)
            listed.give_back_all(names)
            runs.give_back_all(names, len(held.found))
            listed.free = [
                *[NAMELESS] * (held.num_nameless - num_findable), *listed.free, *[NAMELESS] * num_findable
            ]  # fmt: skip
            runs.free_in_part(num_findable, held.num_nameless)
        runs.check()
        assert runs.num_free == len(listed.free)
    assert list(runs.take(runs.num_free)) == [name for name in listed.free if name != NAMELESS]
