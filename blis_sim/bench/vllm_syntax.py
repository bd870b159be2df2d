"""Command lines of `vllm bench` in our own syntax: lists after a flag, underscores, flags that mean nothing here."""

import sys
from collections.abc import Iterable, Sequence

from blis_sim.options.command_line import flags_in_environment, flags_of
from mockserve.options.vllm_command_line import NO_EFFECT_FLAG
from mockserve.options.vllm_command_line import rewritten as from_vllm
from mockserve.options.vllm_flags import VllmFlag, read_table


def lists(*names: str) -> list[VllmFlag]:
    """Flags that take several values, one after the other."""
    return [VllmFlag((name,), "text", "+", (), "") for name in names]


def texts(*names: str) -> list[VllmFlag]:
    """Flags that take one value."""
    return [VllmFlag((name,), "text", "", (), "") for name in names]


def without_effect(switches: Sequence[str], valued: Sequence[str]) -> list[VllmFlag]:
    """Flags of vLLM that are accepted and named, and change nothing."""
    return [
        VllmFlag((name,), kind, "", (), "")
        for kind, names in (("switch", switches), ("text", valued))
        for name in names
    ]


def rewritten(
    command: str, arguments: list[str], options: type, flags: Iterable[VllmFlag], *, with_engine: bool = False
) -> list[str]:
    """The arguments in our syntax; flags without effect are named on standard error. Raises OptionError.

    `with_engine` takes the flags of vLLM's engine, too.
    """
    table = {**(read_table() if with_engine else {}), **{flag.name: flag for flag in flags}}
    ours = from_vllm(arguments, flags_of(options), table, flags_in_environment(options))
    if NO_EFFECT_FLAG in ours:
        place = ours.index(NO_EFFECT_FLAG)
        names = ours[place + 1].replace(",", ", ")
        sys.stderr.write(f"blis {command}: without effect: {names}\n")
        del ours[place : place + 2]
    return ours
