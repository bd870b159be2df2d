"""Which errors vLLM finds with a command line that its parser accepts, and so ends with exit code 1 instead of 2."""

from blis_sim.engine.errors import EngineError
from blis_sim.options import BlisError, StartError
from blis_sim.options.option import options_of
from mockserve.options.serve import ServeOptions
from mockserve.vllm_arguments.table import members_of, read_table

_READ_BY_PARSER = ("--lora-modules",)
"""Flags whose values vLLM's parser reads, besides the configuration objects."""
_MODEL_FILE = "config.json: "
"""Part of an error about the model and its deployment, which names the model's file first."""


def is_refused_by_configuration(error: BlisError) -> bool:
    """Whether an error is about a value of vLLM's that its parser accepts.

    vLLM's parser reads types, choices and configuration objects; bounds, and what fits together, come later.
    """
    if isinstance(error, StartError):
        return True
    message = str(error)
    if isinstance(error, EngineError) and _MODEL_FILE in message:
        return True
    label = message.partition(" ")[0].rstrip(":")
    flags = next((each.flags for each in options_of(ServeOptions) if label in (each.label, *each.flags)), (label,))
    table = read_table()
    known = next((table[each] for each in flags if each in table), None)
    return known is not None and known.name not in (*members_of(), *_READ_BY_PARSER)
