"""BLIS's steps with a KV cache that has CPU memory behind it: transfers make a step longer."""

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.context import EngineContext
from blis_sim.engine.cpu_tier_config import CpuTierConfig
from blis_sim.engine.kv_cache.tiered_cache import OFFLOAD_POLICIES
from blis_sim.engine.sequence import Sequence
from blis_sim.engine.units import Micros
from tests.oracle_scheduler.blis import PlainBlisScheduler


class PlainTieredBlisScheduler(PlainBlisScheduler):
    """Steps as its parent takes them, one by one."""

    def __init__(self, instance: EngineContext, tier: CpuTierConfig) -> None:
        config = instance.config
        self._tiered = OFFLOAD_POLICIES[tier.policy](config.total_kv_blocks, config.block_size_tokens, tier)
        super().__init__(instance, self._tiered)

    def _schedule_batch(self, at: Micros) -> None:
        self._tiered.now = at
        super()._schedule_batch(at)

    def _step_time(self, shape: BatchShape) -> Micros:
        return super()._step_time(shape) + self._tiered.take_transfer_us()

    def _execute_batch(self, at: Micros) -> tuple[Micros, list[Sequence]]:
        executed = super()._execute_batch(at)
        self._tiered.step_executed(self._running)
        return executed
