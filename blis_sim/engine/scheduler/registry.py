"""The engines that can be simulated, by the scheduler that each has. A new one is one file and one row here.

An engine has one scheduler, and only its module is imported.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from blis_sim.engine.scheduler.interface import Scheduler
from blis_sim.options.registry import Registry

if TYPE_CHECKING:
    from blis_sim.engine.context import EngineContext


def new_vllm(context: "EngineContext", reports_steps: bool) -> Scheduler:
    """Return vLLM's scheduler; where times are set request by request, the fixed-timing scheduler."""
    config = context.config
    if config.timing is not None:
        from blis_sim.engine.scheduler.fixed_timing import FixedTimingScheduler

        return FixedTimingScheduler(context)
    from blis_sim.engine.scheduler.vllm import VllmScheduler

    return VllmScheduler(context, reports_steps)


def new_blis(context: "EngineContext", reports_steps: bool) -> Scheduler:
    """Return BLIS's scheduler, with adapters or a CPU tier if there are any."""
    if context.config.offload_chain is not None:
        from blis_sim.engine.scheduler.blis import ChainedBlisScheduler

        return ChainedBlisScheduler(context, reports_steps, context.config.offload_chain)
    if context.config.lora is not None:
        from blis_sim.engine.scheduler.blis import AdapterBlisScheduler

        return AdapterBlisScheduler(context, reports_steps, context.config.lora)
    if context.config.cpu_tier is not None:
        from blis_sim.engine.scheduler.blis import TieredBlisScheduler

        return TieredBlisScheduler(context, reports_steps, context.config.cpu_tier)
    from blis_sim.engine.scheduler.blis import BlisScheduler

    return BlisScheduler(context, reports_steps)


ENGINES = Registry[Callable[["EngineContext", bool], Scheduler]]("blis.schedulers", "step") | {
    "vllm": new_vllm,
    "blis": new_blis,
}
