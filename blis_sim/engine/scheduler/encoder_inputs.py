"""Choice of media to encode in the next step, and of encoded media to keep, by the rules of vLLM 0.33's scheduler.

Facts: vllm/v1/core/sched/scheduler.py, `_try_schedule_encoder_inputs` and `_free_encoder_inputs`;
vllm/v1/core/encoder_cache_manager.py, `EncoderCacheManager`.
"""

from bisect import bisect_left

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.request import EncoderLimits, Medium
from blis_sim.engine.sequence import Sequence


class EncoderCache:
    """Encoded media by identity, with the sequences that refer to each. Those without any are evicted, oldest first."""

    def __init__(self, num_tokens: int) -> None:
        self._holders: dict[object, set[Sequence]] = {}
        self._sizes: dict[object, int] = {}
        self._free: dict[object, int] = {}
        """Encoded media to which no sequence refers, oldest first, with their tokens."""
        self._places: dict[Sequence, set[int]] = {}
        """Numbers of the media of a sequence that it refers to."""
        self.num_unused_tokens = self.num_free_tokens = num_tokens

    def add_reference(self, sequence: Sequence, number: int, identity: object) -> bool:
        """Let a sequence refer to an encoded medium. False where it is not encoded."""
        holders = self._holders.get(identity)
        if holders is None:
            return False
        if not holders:
            self.num_free_tokens -= self._free.pop(identity)
        holders.add(sequence)
        self._places.setdefault(sequence, set()).add(number)
        return True

    def has_references(self, sequence: Sequence) -> bool:
        return sequence in self._places

    def grow(self, num_tokens: int) -> None:
        self.num_unused_tokens += num_tokens
        self.num_free_tokens += num_tokens

    def make_room(self, num_tokens: int) -> bool:
        """Evict media to which no sequence refers until `num_tokens` tokens fit. Returns whether they fit."""
        if num_tokens <= self.num_unused_tokens:
            return True
        if num_tokens > self.num_free_tokens:
            return False
        while num_tokens > self.num_unused_tokens:
            identity = next(iter(self._free))
            self.num_unused_tokens += self._free.pop(identity)
            del self._holders[identity], self._sizes[identity]
        return True

    def add(self, sequence: Sequence, number: int, medium: Medium) -> None:
        self._holders.setdefault(medium.identity, set()).add(sequence)
        self._sizes[medium.identity] = medium.num_tokens
        self._places.setdefault(sequence, set()).add(number)
        self.num_unused_tokens -= medium.num_tokens
        self.num_free_tokens -= medium.num_tokens

    def release_until(self, sequence: Sequence, num_tokens: int) -> None:
        """Let a sequence refer no more to media that lie within its first `num_tokens` tokens."""
        places = self._places.get(sequence)
        if not places:
            return
        media = sequence.request.media
        for number in list(places):
            if media[number].end <= num_tokens:
                self._release(sequence, places, number, media)

    def release(self, sequence: Sequence) -> None:
        """Let a sequence refer to no medium any more."""
        places = self._places.get(sequence)
        if places:
            for number in list(places):
                self._release(sequence, places, number, sequence.request.media)

    def _release(self, sequence: Sequence, places: set[int], number: int, media: tuple[Medium, ...]) -> None:
        places.discard(number)
        if not places:
            del self._places[sequence]
        identity = media[number].identity
        holders = self._holders.get(identity)
        if not holders or any(media[other].identity == identity for other in places):
            return
        holders.discard(sequence)
        if not holders:
            self._free[identity] = self._sizes[identity]
            self.num_free_tokens += self._sizes[identity]


class MediaEncoder:
    """Shortens what a sequence computes in a step where its media cannot be encoded in time."""

    def __init__(self, limits: EncoderLimits, num_ahead_tokens: int) -> None:
        """`num_ahead_tokens` are the tokens after those of a step that a drafter reads."""
        self._step_tokens, self._cache_tokens = limits.step_tokens, limits.cache_tokens
        self._longest_whole = 0 if limits.splits_media else limits.step_tokens
        """Most tokens of a medium whose prompt is not split between steps."""
        self._ahead = num_ahead_tokens
        self._cache = EncoderCache(limits.cache_tokens)
        self._budget = 0
        self._chosen: list[int] = []
        self._repeated: list[int] = []
        self._taken: dict[Sequence, int] = {}
        """Tokens of media to be encoded in the step being composed, by sequence."""

    def new_step(self) -> None:
        """Begin the composition of a step."""
        self._budget = self._step_tokens
        self._taken.clear()

    def clip(self, sequence: Sequence, computed: int, num_tokens: int) -> int:
        """Return how many of the next `num_tokens` tokens can be computed after `computed`, and choose what to encode
        for them."""
        self._chosen, self._repeated = [], []
        if num_tokens < 1:
            return num_tokens
        media, cache = sequence.request.media, self._cache
        identities: set[object] = set()
        num_chosen = 0
        window_end = computed + num_tokens + self._ahead
        first = bisect_left(media, computed + 1, key=lambda medium: medium.end)
        for number in range(first, bisect_left(media, window_end, key=lambda medium: medium.offset)):
            medium = media[number]
            start = medium.offset
            if medium.num_tokens <= self._longest_whole and computed <= start and computed + num_tokens < medium.end:
                num_tokens = max(0, start - (computed + self._ahead))
                break
            if medium.identity in identities:
                self._repeated.append(number)
                continue
            if cache.add_reference(sequence, number, medium.identity):
                continue
            size = medium.num_tokens
            if size > self._step_tokens or size > self._cache_tokens:
                self._grow(size)
            if size > self._budget - num_chosen or not cache.make_room(size + num_chosen):
                num_tokens = min(num_tokens, start - computed) if computed < start else 0
                break
            num_chosen += size
            identities.add(medium.identity)
            self._chosen.append(number)
        return num_tokens

    def _grow(self, size: int) -> None:
        """Raise the limits to the size of a medium: vLLM's are at least that of the largest medium of a model."""
        if size > self._step_tokens:
            self._budget += size - self._step_tokens
            self._step_tokens = size
        if size > self._cache_tokens:
            self._cache.grow(size - self._cache_tokens)
            self._cache_tokens = size

    def take(self, sequence: Sequence) -> None:
        """Encode what `clip` has just chosen: the sequence computes in this step."""
        media = sequence.request.media
        if not media:
            return
        for number in self._chosen:
            self._cache.add(sequence, number, media[number])
        for number in self._repeated if self._chosen else ():
            self._cache.add_reference(sequence, number, media[number].identity)
        if self._chosen:
            taken = sum(media[number].num_tokens for number in self._chosen)
            self._taken[sequence] = taken
            self._budget -= taken

    def give_back(self, sequence: Sequence) -> None:
        """Give the encoder's tokens back that a sequence took in this step, before it lost its place."""
        self._budget += self._taken.pop(sequence, 0)

    def processed(self, sequence: Sequence) -> None:
        """Let a sequence refer no more to media that its KV cache holds for good: one of its steps has ended."""
        self._cache.release_until(sequence, sequence.num_computed_tokens - sequence.num_placeholders)

    def release(self, sequence: Sequence) -> None:
        self._cache.release(sequence)

    def has_references(self, sequence: Sequence) -> bool:
        return self._cache.has_references(sequence)


def new_encoder(config: EngineConfig) -> MediaEncoder:
    """Return the encoder of an engine. By default it computes and keeps as many tokens as a step may have."""
    most = config.max_num_batched_tokens
    limits = config.encoder or EncoderLimits(step_tokens=most, cache_tokens=most)
    reads_ahead = config.speculation is not None and config.speculation.reads_ahead
    return MediaEncoder(limits, int(reads_ahead))
