"""The mock server with the command line of llm-d-inference-sim."""

from blis_sim.cli.commands import CommandRow
from blis_sim.cli.main import start

PROGRAM = CommandRow(
    "The mock server of `blis serve` with the command line of llm-d-inference-sim.",
    "blis_sim.wings.inference_sim.command",
    "InferenceSimOptions",
    has_other_syntax=True,
)


def main() -> None:
    """Run `llm-d-inference-sim`, with the exit codes of `blis`."""
    start("llm-d-inference-sim", PROGRAM)
