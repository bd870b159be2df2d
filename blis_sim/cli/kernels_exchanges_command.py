"""`blis kernels exchanges`: the bytes that the GPUs of a model with experts exchange in each layer, as AICB counts."""

import sys
from dataclasses import dataclass
from pathlib import Path

from blis_sim.engine.deployment_options import MODEL_NAMES
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.options import check_options, check_outputs, option

__all__ = ["KernelsExchangesOptions", "run"]

_MOST_GPUS = 1024
_PHASES = ("prefill", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsExchangesOptions:
    """A model with experts, its tensor parallelism and a batch."""

    model: str = option(
        help="Model with experts: a name of the catalogue or a local folder with a Hugging Face config.json.",
        positional=True,
        suggested=MODEL_NAMES,
    )
    tp: int = option(
        1, "GPUs that share every layer.", flags=("--tp", "--tensor-parallel-size"), at_least=1, at_most=_MOST_GPUS
    )
    phase: str = option("prefill", "Kind of batch: prompts, or requests that decode.", choices=_PHASES)
    batch_size: int = option(1, "Requests that decode; of prompts the tokens count alone.", at_least=1)
    sequence_tokens: int = option(1024, "Tokens of prompts; each request that decodes computes one.", at_least=1)
    output: str = option(
        "",
        "Write the table here (default: standard output).",
        flags=("--output", "-o"),
        metavar="FILE",
        writes={"": "layer table"},
    )

    def __post_init__(self) -> None:
        check_options(self)
        check_outputs(self)


def run(options: KernelsExchangesOptions) -> int:
    """Print or write the table. Raises EngineError for a model without experts."""
    from blis_sim.engine.latency.aicb import exchange_table
    from traces.text_file import write_text

    model = load_model(options.model)
    table = exchange_table(model, options.tp, options.phase, options.batch_size, options.sequence_tokens)
    if options.output:
        write_text(Path(options.output), table)
    else:
        sys.stdout.write(table)
    return 0
