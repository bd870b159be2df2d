"""A command as any package could add one: a setting of each kind, and an end of each kind."""

import errno
import sys
from dataclasses import dataclass

from blis_sim.options import OptionError, check_options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyOptions:
    """One setting of each kind that the command line has."""

    source: str = option(help="Where to read from.", positional=True, metavar="SOURCE")
    max_num_seqs: int = option(help="Requests in a step.", at_least=1)
    rate: float = option(1.5, "Requests per second.", above=0)
    horizon: int | None = option(None, "When to stop.")
    label: str | None = option(None, "What to call it (default: nothing).", heading="Taste")
    streaming: bool = option(True, "Whether to stream.")
    quiet: bool = option(False, "Whether to print less.")
    weights: tuple[float, ...] = option((1.0, 2.5), "Coefficients.")
    names: tuple[str, ...] = option((), "Names.")
    order: str = option("fcfs", "Order of the queue.", choices=("fcfs", "sjf"))
    tp: int = option(0, "GPUs.", flags=("--tp", "--tensor-parallel-size"))
    secret: str = option("", "A special setting.", hidden=True)
    end: str = option("done", "How to end.", choices=("done", "failed", "bad", "interrupted", "too many", "bug"))

    def __post_init__(self) -> None:
        check_options(self)


def run(options: ToyOptions) -> int:
    """Print the settings, then end as they demand."""
    sys.stdout.write(f"{options}\n")
    match options.end:
        case "too many":
            raise OSError(errno.EMFILE, "Too many open files")
        case "failed":
            return 1
        case "bad":
            raise OptionError(f"{options.source}:\nthis\tcannot be used")
        case "interrupted":
            raise KeyboardInterrupt
        case "bug":
            raise ZeroDivisionError("a bug is not the user's mistake")
        case _:
            return 0
