"""Whose scheduling an engine follows. A new one is one file and one row here."""

from collections.abc import Callable

from engine.instance import Instance
from engine.scheduler.blis import BlisStepping
from engine.scheduler.blis_fast import FastBlisStepping
from engine.scheduler.blis_tiered import TieredBlisStepping
from engine.scheduler.slots import SlotStepping
from engine.scheduler.stepping import Stepping
from engine.scheduler.vllm_fast import FastVllmStepping
from engine.scheduler.vllm_leaps import LeapingVllmStepping
from engine.scheduler.vllm_speculative import SpeculativeStepping


def new_vllm(instance: Instance, reports_steps: bool) -> Stepping:
    """vLLM's: step by step, or as fast as the changes allow. How many drafts hold is only known step by step."""
    if instance.config.speculation is not None:
        return SpeculativeStepping(instance)
    config = instance.config
    if config.timing is not None:
        return SlotStepping(instance)
    plain = reports_steps or config.reports_kv_changes or config.lora is not None
    return LeapingVllmStepping(instance) if plain else FastVllmStepping(instance)


def new_blis(instance: Instance, reports_steps: bool) -> Stepping:
    """BLIS's, likewise; a KV cache with a CPU tier is only known step by step."""
    if instance.config.cpu_tier is not None:
        return TieredBlisStepping(instance, instance.config.cpu_tier)
    return BlisStepping(instance) if reports_steps else FastBlisStepping(instance)


SCHEDULINGS: dict[str, Callable[[Instance, bool], Stepping]] = {
    "vllm": new_vllm,
    "blis": new_blis,
}
