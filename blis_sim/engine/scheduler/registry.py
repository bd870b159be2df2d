"""The engines that can be simulated, by the scheduler that each has. A new one is one file and one row here.

An engine has one stepping, and only that is imported.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from blis_sim.engine.scheduler.stepping import Stepping

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
    from blis_sim.engine.scheduler.vllm import VllmScheduler

    return VllmScheduler(instance, reports_steps)


def new_blis(instance: "Instance", reports_steps: bool) -> Stepping:
    """BLIS's, likewise; a KV cache with a CPU tier is only known step by step."""
    if instance.config.cpu_tier is not None:
        from blis_sim.engine.scheduler.blis_tiered import TieredBlisStepping

        return TieredBlisStepping(instance, instance.config.cpu_tier)
    if reports_steps:
        from blis_sim.engine.scheduler.blis import BlisStepping

        return BlisStepping(instance)
    from blis_sim.engine.scheduler.blis_fast import FastBlisStepping

    return FastBlisStepping(instance)


ENGINES: dict[str, Callable[["Instance", bool], Stepping]] = {
    "vllm": new_vllm,
    "blis": new_blis,
}
