"""The engines that can be simulated, by the scheduler that each has. A new one is one file and one row here.

An engine has one stepping, and only that is imported.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from blis_sim.engine.scheduler.stepping import Stepping
from blis_sim.options.registry import Registry

if TYPE_CHECKING:
    from blis_sim.engine.instance import Instance


def new_vllm(instance: "Instance", reports_steps: bool) -> Stepping:
    """vLLM's rules, step by step; or, where times are set request by request, its queue alone."""
    config = instance.config
    if config.timing is not None:
        from blis_sim.engine.scheduler.slots import SlotStepping

        return SlotStepping(instance)
    if config.speculation is not None:
        from blis_sim.engine.scheduler.vllm_speculative import SpeculativeScheduler

        return SpeculativeScheduler(instance, reports_steps)
    if config.kv_groups:
        from blis_sim.engine.scheduler.vllm_groups import GroupedScheduler

        return GroupedScheduler(instance, reports_steps)
    if config.offload is not None:
        from blis_sim.engine.scheduler.vllm_offloading import OffloadingScheduler

        return OffloadingScheduler(instance, reports_steps, config.offload)
    from blis_sim.engine.scheduler.vllm import VllmScheduler

    return VllmScheduler(instance, reports_steps)


def new_blis(instance: "Instance", reports_steps: bool) -> Stepping:
    """BLIS's rules, with a CPU tier if there is one."""
    if instance.config.cpu_tier is not None:
        from blis_sim.engine.scheduler.blis_tiered import TieredBlisScheduler

        return TieredBlisScheduler(instance, reports_steps, instance.config.cpu_tier)
    from blis_sim.engine.scheduler.blis import BlisScheduler

    return BlisScheduler(instance, reports_steps)


def new_batches(instance: "Instance", reports_steps: bool) -> Stepping:
    """The rules of a scheduler that Vidur has, by the name of the engine."""
    from blis_sim.engine.scheduler.batch_engines import new_batch_stepping

    return new_batch_stepping(instance, reports_steps)


def new_adaptive(instance: "Instance", reports_steps: bool) -> Stepping:
    """The worker of the published adaptive scheduler."""
    from blis_sim.engine.scheduler.adaptive import AdaptiveScheduler

    return AdaptiveScheduler(instance, reports_steps)


ENGINES = Registry[Callable[["Instance", bool], Stepping]]("blis.schedulers") | {
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
