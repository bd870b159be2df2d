"""`llm-d-inference-sim`: the command and its registration."""

import os
from collections.abc import Mapping
from pathlib import Path

from blis_sim.options.command_line import flags_of
from mockserve.inference_sim.options import InferenceSimOptions
from mockserve.vllm_arguments.table import VllmFlag

__all__ = ["InferenceSimOptions", "rewritten", "run"]

TABLE = Path(__file__).parent / "flags.csv"
SWITCH_VALUES = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}


def rewritten(arguments: list[str]) -> list[str]:
    """A command line in that project's syntax in ours; vLLM's flags are taken, too. Raises BlisError for bad values."""
    from mockserve.vllm_arguments.rewrite import rewritten as in_our_syntax
    from mockserve.vllm_arguments.table import read_table

    table = {**read_table(), **read_table(TABLE)}
    plain = [_without_value(each) if _is_switch(each, table) else each for each in arguments]
    found = in_our_syntax(plain, flags_of(InferenceSimOptions), table)
    model = os.environ.get("SIM_MODEL")
    if model and not any(each.partition("=")[0] == "--model" for each in found):
        found += ["--model", model]
    return found


def run(options: InferenceSimOptions) -> int:
    """Serve until stopped by a signal. Returns the exit code."""
    from mockserve.inference_sim.mapping import serve_options
    from mockserve.options.environment import read_environment
    from mockserve.server import serve

    variables: Mapping[str, str] = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", **os.environ}
    if options.hash_seed:
        variables = {**variables, "PYTHONHASHSEED": options.hash_seed}
    one = options.data_parallel_rank
    ranks = range(options.data_parallel_size) if one < 0 else [one]
    return serve([serve_options(options, variables, rank) for rank in ranks], read_environment(variables))


def _is_switch(argument: str, table: Mapping[str, VllmFlag]) -> bool:
    """Whether it is a switch with a value, which that project takes and vLLM does not."""
    name, equals, value = argument.partition("=")
    flag = table.get(name.replace("_", "-"))
    return bool(equals) and flag is not None and flag.is_switch and value.lower() in SWITCH_VALUES


def _without_value(argument: str) -> str:
    name, _, value = argument.partition("=")
    return name if SWITCH_VALUES[value.lower()] else f"--no-{name.removeprefix('--')}"
