"""BLIS's steps with a KV cache that has CPU memory behind it: transfers make a step longer."""

from blis_sim.engine.context import EngineContext
from blis_sim.engine.cpu_tier_config import CpuTierConfig
from blis_sim.engine.kv_cache.offload_policies import OFFLOAD_POLICIES
from blis_sim.engine.scheduler.blis import BlisScheduler
from blis_sim.engine.scheduler.scheduled_step import ScheduledStep
from blis_sim.engine.units import Micros


class TieredBlisScheduler(BlisScheduler):
    """Steps as its parent takes them without a cohort: the tier depends on the content of every block."""

    __slots__ = ("_tiered",)

    def __init__(self, context: EngineContext, reports_steps: bool, tier: CpuTierConfig) -> None:
        config = context.config
        self._tiered = OFFLOAD_POLICIES[tier.policy](config.total_kv_blocks, config.block_size_tokens, tier)
        super().__init__(context, reports_steps, has_cohort=False, kv=self._tiered)

    def schedule(self, at: Micros) -> bool:
        self._tiered.now = at
        return super().schedule(at)

    def begin(self, step: ScheduledStep, at: Micros) -> Micros:
        ends_at = super().begin(step, at) + self._tiered.take_transfer_us()
        self._tiered.step_executed(self.explicit)
        return ends_at
