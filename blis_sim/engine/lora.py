"""LoRA adapters on a GPU: their flags, how many fit, the time to load one, and how often each was loaded."""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros
from blis_sim.options import OptionError, check_options, option

# LoRA adapters on a GPU: how many fit, the time to load one, and how often each was loaded.


class Adapter(NamedTuple):
    """One declared adapter."""

    name: str
    rank: int
    load_us: Micros
    """Time to load it to the GPU."""


@dataclass(slots=True)
class AdapterCounters:
    """How often each adapter was loaded to the GPU, and how often it left for another one."""

    loads: Counter[str] = field(default_factory=Counter)
    evictions: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """Limits and load times of LoRA adapters. Raises EngineError for values out of bounds."""

    max_loras: int = 1
    """Adapters that one step may compute with, and slots on the GPU."""
    max_cpu_loras: int = 0
    """Adapters kept in the memory of the machine; 0 is as many as fit on the GPU."""
    load_us: Micros = 0
    """Reading an adapter into the memory of the machine."""
    swap_us: Micros = 0
    """Copying an adapter from there to the GPU."""
    adapters: tuple[Adapter, ...] = ()
    """Declared adapters, whose own load times take the place of the two above; without any all names are taken."""

    def serves(self, name: str) -> bool:
        """Whether a name can be that of an adapter: one of those declared, or any where none are."""
        return not self.adapters or any(each.name == name for each in self.adapters)

    def __post_init__(self) -> None:
        if self.max_loras < 1:
            raise EngineError(f"max_loras must be at least 1, got {self.max_loras}")
        if self.max_cpu_loras and self.max_cpu_loras < self.max_loras:
            raise EngineError(f"max_cpu_loras must be at least max_loras, {self.max_loras}, got {self.max_cpu_loras}")
        if self.load_us < 0 or self.swap_us < 0:
            raise EngineError("the time to load or swap an adapter must be at least 0")


class LoraSlots:
    """Adapters on the GPU and in the memory of the machine. The least recently used adapter is evicted first from both.

    Facts: vllm/lora/worker_manager.py, `LRUCacheWorkerLoRAManager`.
    """

    def __init__(self, settings: LoraSettings, counters: AdapterCounters) -> None:
        self._settings = settings
        self._counters = counters
        self._load_us = {each.name: each.load_us for each in settings.adapters}
        self._on_gpu: OrderedDict[str, None] = OrderedDict()
        self._in_memory: OrderedDict[str, None] = OrderedDict()

    def use(self, adapters: Iterable[str]) -> Micros:
        """Load the adapters of a step, at most `max_loras`. Returns how long the step waits for them."""
        settings, counters = self._settings, self._counters
        waited = 0
        for adapter in adapters:
            is_in_memory, _ = _touch(self._in_memory, adapter, settings.max_cpu_loras or settings.max_loras)
            is_on_gpu, evicted = _touch(self._on_gpu, adapter, settings.max_loras)
            if adapter in self._load_us:
                waited += 0 if is_on_gpu else self._load_us[adapter]
            else:
                waited += (0 if is_in_memory else settings.load_us) + (0 if is_on_gpu else settings.swap_us)
            counters.loads[adapter] += not is_on_gpu
            if evicted is not None:
                counters.evictions[evicted] += 1
        return waited


def _touch(cache: OrderedDict[str, None], adapter: str, capacity: int) -> tuple[bool, str | None]:
    """Make `adapter` the most recently used. Returns whether it was present, and the adapter that left for it."""
    found = adapter in cache
    cache[adapter] = None
    cache.move_to_end(adapter)
    return found, cache.popitem(last=False)[0] if len(cache) > capacity else None


class AdapterLoader:
    """Adapters on a GPU as BLIS loads them: one at a time, while other requests compute, for the head of the queue.

    Adapters of requests that have begun stay until these end. Of the others the least recently used leaves first.
    """

    def __init__(self, settings: LoraSettings, counters: AdapterCounters) -> None:
        self._capacity = settings.max_loras
        self._load_us = {each.name: each.load_us for each in settings.adapters}
        self._counters = counters
        self._resident: OrderedDict[str, None] = OrderedDict()
        self._num_users: Counter[str] = Counter()
        self._loading: tuple[str, Micros] | None = None

    @property
    def ready_at(self) -> Micros | None:
        """When the load under way ends; None without one."""
        return None if self._loading is None else self._loading[1]

    def has(self, adapter: str) -> bool:
        """Whether requests with `adapter`, which is empty for none, may begin."""
        return not adapter or adapter in self._resident

    def advance(self, at: Micros) -> None:
        """Let a load that has ended by `at` make its adapter resident."""
        if self._loading is not None and self._loading[1] <= at:
            self._resident[self._loading[0]] = None
            self._loading = None

    def request(self, adapter: str, at: Micros) -> None:
        """Begin to load an adapter that is not there, if no other is being loaded and room can be made."""
        if self._loading is not None or self.has(adapter):
            return
        if len(self._resident) >= self._capacity:
            unused = next((each for each in self._resident if not self._num_users[each]), None)
            if unused is None:
                return
            del self._resident[unused]
            self._counters.evictions[unused] += 1
        self._loading = adapter, at + self._load_us.get(adapter, 1)
        self._counters.loads[adapter] += 1

    def begin_use(self, adapter: str) -> None:
        """Keep a resident adapter for one more request."""
        if adapter:
            self._num_users[adapter] += 1
            self._resident.move_to_end(adapter)

    def end_use(self, adapter: str) -> None:
        """Keep an adapter for one request less."""
        if adapter:
            self._num_users[adapter] -= 1


# The flags of LoRA adapters that vLLM has, with loading times.


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraOptions:
    """Slots for LoRA adapters, and loading times."""

    enable_lora: bool = option(False, "Take LoRA adapters.", heading="LoRA adapters")
    max_loras: int = option(1, "Adapters that one step may compute with, and that fit on the GPU.", at_least=1)
    max_cpu_loras: int | None = option(
        None, "Adapters kept in the memory of the machine (default: as many as fit on the GPU).", at_least=1
    )
    lora_load_ms: float = option(0.0, "What a step waits while an adapter is read into memory.", at_least=0)
    lora_swap_ms: float = option(0.0, "What a step waits while an adapter is copied to the GPU.", at_least=0)

    def __post_init__(self) -> None:
        check_options(self)
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            least = f"--max-loras, {self.max_loras}"
            raise OptionError(f"--max-cpu-loras must be at least {least}, got {self.max_cpu_loras}")

    @property
    def settings(self) -> LoraSettings | None:
        """The adapter slots; None if LoRA is disabled."""
        if not self.enable_lora:
            return None
        return LoraSettings(
            max_loras=self.max_loras,
            max_cpu_loras=self.max_cpu_loras or 0,
            load_us=round(self.lora_load_ms * 1000),
            swap_us=round(self.lora_swap_ms * 1000),
        )
