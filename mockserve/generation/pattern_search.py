"""Search for the first repetition of a pattern of tokens, for many pattern sizes at once."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

PAIRS_AT_ONCE = 1 << 16
BASE = np.uint64(0x9E3779B97F4A7C15)

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


class PatternSearch:
    """Looks for patterns of many sizes at once.

    A pattern of `size` tokens repeated `count` times is a run of `size * (count - 1)` tokens. Each token of a run
    equals the token `size` places before it. Any `size` consecutive tokens include an index that is divisible by
    `size`. The search compares only such indexes: n / 1 + n / 2 + n / 3 ... of them. The run extends at least half a
    pattern before or after its first such index, which a comparison of hashes detects.
    """

    def __init__(self, token_ids: Sequence[int], min_count: int) -> None:
        self._ids: Ints = np.asarray(token_ids, dtype=np.int64)
        self._min_count = min_count
        self._end = len(token_ids)
        """End of the search: a repetition that ends later does not matter."""
        self._is_found = False
        self._powers = _base_powers(self._end + 1)
        self._sums: Hashes = np.zeros(self._end + 1, dtype=np.uint64)
        # Arithmetic modulo 2**64 throughout: equal stretches have equal hashes, and all others are looked at again.
        mixed = (self._ids.astype(np.uint64) + np.uint64(1)) * BASE
        np.cumsum(mixed * self._powers[:-1], out=self._sums[1:])

    def first(self, sizes: range) -> int | None:
        """Return the smallest number of tokens that end in a repeated pattern of one of the sizes."""
        for size, index in self._pairs(sizes):
            ids = self._ids
            half = (size + 1) // 2
            ahead = (ids[index] == ids[index - size]) & (index + half <= len(ids))
            behind = (ids[index - 1] == ids[np.maximum(index - size - 1, 0)]) & (index - half >= size)
            at = np.flatnonzero(ahead)
            ahead[at] = self._equal(index[at], size[at], half[at])
            at = np.flatnonzero(behind)
            behind[at] = self._equal(index[at] - half[at], size[at], half[at])
            either: npt.NDArray[np.bool_] = ahead | behind
            likely = either & (index < self._end)
            size, index = size[likely], index[likely]
            long_enough = self._equal_length(size, index, 1) + self._equal_length(size, index, -1) >= size * (
                self._min_count - 1
            )
            for each in np.flatnonzero(long_enough):
                self._measure_run(int(size[each]), int(index[each]))
        return self._end if self._is_found else None

    def _pairs(self, sizes: range) -> Iterator[tuple[Ints, Ints]]:
        """Yield sizes with the indexes that are divisible by them, in arrays of bounded length."""
        first = sizes.start
        while first < sizes.stop and first * self._min_count <= self._end:
            last = first
            num_pairs = self._end // first
            while last + 1 < sizes.stop and num_pairs + self._end // (last + 1) <= PAIRS_AT_ONCE:
                last += 1
                num_pairs += self._end // last
            size = np.arange(first, last + 1, dtype=np.int64)
            counts = (self._end - 1) // size
            which = np.repeat(size, counts)
            starts = np.repeat(np.cumsum(counts) - counts, counts)
            yield which, (np.arange(len(which), dtype=np.int64) - starts + 1) * which
            first = last + 1

    def _equal_length(self, size: Ints, index: Ints, direction: int) -> Ints:
        """Return how many tokens from an index on, or before it, equal those `size` before them; at most a whole
        run."""
        most = np.minimum(size * (self._min_count - 1), len(self._ids) - index if direction > 0 else index - size)
        low, high = np.zeros_like(most), most
        while (low < high).any():
            middle = (low + high + 1) // 2
            equal = self._equal(index if direction > 0 else index - middle, size, middle)
            low, high = np.where(equal, middle, low), np.where(equal, high, middle - 1)
        return low

    def _equal(self, start: Ints, size: Ints, length: Ints) -> npt.NDArray[np.bool_]:
        """Whether each stretch has the hash of the stretch `size` tokens before it."""
        here = self._sums[start + length] - self._sums[start]
        before = self._sums[start - size + length] - self._sums[start - size]
        equal: npt.NDArray[np.bool_] = before * self._powers[size] == here
        return equal

    def _measure_run(self, size: int, index: int) -> None:
        """Measure the run of equal tokens around an index, and record a run that is long enough."""
        if index >= self._end:
            return
        num_needed = size * (self._min_count - 1)
        first = max(size, index - num_needed)
        end = min(self._end, index + num_needed)
        differ = np.flatnonzero(self._ids[first:end] != self._ids[first - size : end - size]) + first
        before = differ[differ < index]
        after = differ[differ >= index]
        start = int(before[-1]) + 1 if len(before) else first
        stop = int(after[0]) if len(after) else end
        if stop - start >= num_needed and start + num_needed <= self._end:
            self._end = start + num_needed
            self._is_found = True


def _base_powers(count: int) -> Hashes:
    """The powers of an odd number, from the zeroth on."""
    powers: Hashes = np.ones(count, dtype=np.uint64)
    powers[1:] = BASE
    return np.multiply.accumulate(powers)
