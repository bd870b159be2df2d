"""`blis kernels exchanges`: the bytes that the GPUs of a model with experts exchange in each layer, as AICB counts."""

from dataclasses import dataclass
from pathlib import Path

from blis_sim.engine.deployment_options import MODEL_NAMES
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.options import check_outputs, option, written_file
from blis_sim.options.printing import TABLE, check_printed, format_option, json_option, printed_format
from blis_sim.options.provenance import Provenance, command_line
from blis_sim.report.report import Report, Section
from blis_sim.report.tables import TextTable

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
    output: str = written_file(
        "layer table", "Write the table here (default: standard output).", "", flags=("--output", "-o")
    )
    format: str = format_option(
        "What standard output gets: AICB's table, whose columns tabs separate, one JSON object, rows of CSV, Markdown, "
        "or an HTML page."
    )
    json: bool = json_option()

    def __post_init__(self) -> None:
        check_printed(self)
        check_outputs(self)


def run(options: KernelsExchangesOptions) -> int:
    """Print or write the table. Raises EngineError for a model without experts."""
    from blis_sim.engine.latency.aicb import COLUMNS, exchange_rows, exchange_table
    from traces.text_file import write_text

    model = load_model(options.model)
    rows = exchange_rows(model, options.tp, options.phase, options.batch_size, options.sequence_tokens)
    if options.output:
        write_text(Path(options.output), exchange_table(rows))
        return 0
    cells = [[*map(str, row.values())] for row in rows]
    report = Report(
        title="Exchanges",
        origin=lambda: Provenance(command=command_line("blis kernels exchanges", options), model=model.name),
        data=lambda: {"layers": rows},
        sections=lambda: [Section(table=TextTable(COLUMNS, cells, num_left_aligned=2))],
        rows=lambda: rows,
        texts={TABLE: lambda: exchange_table(rows)},
    )
    report.print(printed_format(options))
    return 0
