"""LoRA adapters on a GPU: how many fit, and the time to load one."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros


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

    def __init__(self, settings: LoraSettings) -> None:
        self._settings = settings
        self._on_gpu: OrderedDict[str, None] = OrderedDict()
        self._in_memory: OrderedDict[str, None] = OrderedDict()

    def use(self, adapters: Iterable[str]) -> Micros:
        """Load the adapters of a step, at most `max_loras`. Returns how long the step waits for them."""
        settings = self._settings
        waited = 0
        for adapter in adapters:
            if not _touch(self._in_memory, adapter, settings.max_cpu_loras or settings.max_loras):
                waited += settings.load_us
            if not _touch(self._on_gpu, adapter, settings.max_loras):
                waited += settings.swap_us
        return waited


def _touch(cache: OrderedDict[str, None], adapter: str, capacity: int) -> bool:
    """Make `adapter` the most recently used. Returns whether it was present."""
    found = adapter in cache
    cache[adapter] = None
    cache.move_to_end(adapter)
    if len(cache) > capacity:
        cache.popitem(last=False)
    return found
