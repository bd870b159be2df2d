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
    if config.speculation is not None:
        from blis_sim.engine.scheduler.vllm_speculative import SpeculativeScheduler

        return SpeculativeScheduler(context, reports_steps)
    if config.kv_groups:
        from blis_sim.engine.scheduler.vllm_groups import GroupedScheduler

        return GroupedScheduler(context, reports_steps)
    if config.offload is not None:
        from blis_sim.engine.scheduler.vllm_offloading import OffloadingScheduler

        return OffloadingScheduler(context, reports_steps, config.offload)
    from blis_sim.engine.scheduler.vllm import VllmScheduler

    return VllmScheduler(context, reports_steps)


def new_blis(context: "EngineContext", reports_steps: bool) -> Scheduler:
    """Return BLIS's scheduler, with a CPU tier if there is one."""
    if context.config.cpu_tier is not None:
        from blis_sim.engine.scheduler.blis import TieredBlisScheduler

        return TieredBlisScheduler(context, reports_steps, context.config.cpu_tier)
    from blis_sim.engine.scheduler.blis import BlisScheduler

    return BlisScheduler(context, reports_steps)


def new_batches(context: "EngineContext", reports_steps: bool) -> Scheduler:
    """Return the scheduler of Vidur that the name of the engine selects."""
    from blis_sim.engine.scheduler.batch_engines import new_batch_engine

    return new_batch_engine(context, reports_steps)


def new_adaptive(context: "EngineContext", reports_steps: bool) -> Scheduler:
    """Return the worker of the published adaptive scheduler."""
    from blis_sim.engine.scheduler.adaptive import AdaptiveScheduler

    return AdaptiveScheduler(context, reports_steps)


ENGINES = Registry[Callable[["EngineContext", bool], Scheduler]]("blis.schedulers") | {
    "vllm": new_vllm,
    "blis": new_blis,
    "sarathi": new_batches,
    "vidur-vllm": new_batches,
    "orca": new_batches,
    "lightllm": new_batches,
    "faster-transformer": new_batches,
    "splitwise": new_batches,
    "adaptive": new_adaptive,
    "adaptive-fifo": new_adaptive,
}
