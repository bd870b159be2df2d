"""Whose scheduling an engine follows. A new one is one file and one row here."""

from collections.abc import Callable

from engine.instance import Instance
from engine.scheduler.blis import BlisStepping
from engine.scheduler.stepping import Stepping
from engine.scheduler.vllm import VllmStepping

SCHEDULINGS: dict[str, Callable[[Instance], Stepping]] = {
    "vllm": VllmStepping,
    "blis": BlisStepping,
}
