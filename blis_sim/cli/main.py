"""The entry points. The rest is imported inside, where an interrupt or a lack of memory ends in one line."""

import os
import sys
from typing import NoReturn

_EXIT_FAILED = 1
_EXIT_INTERRUPTED = 130


def main() -> None:
    """Run `blis`. Exit codes: 0 done, 1 it ran but failed, 2 bad input, 130 interrupted."""
    _start("blis")


def inference_sim() -> None:
    """Run `llm-d-inference-sim`, with the same exit codes."""
    _start("llm-d-inference-sim")


def run(arguments: list[str], program: str = "blis") -> int:
    """Run `blis`, or a program that is one command by itself, with these arguments and return the exit code."""
    from blis_sim.cli.running import run_program

    return run_program(arguments, program)


def _start(program: str) -> NoReturn:
    # OpenBLAS takes 32 MB for each of its threads, and raises SIGINT where it cannot start one. No matrix here is large
    # enough for a second thread, and with one the last digits do not depend on the machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        import gc

        from blis_sim.cli.search_path import put_foreign_folders_last

        put_foreign_folders_last(sys.path)
        code = run(sys.argv[1:], program)
        # The process gives back all of its memory: to search that for garbage first takes as long as a simulation.
        gc.freeze()
    except KeyboardInterrupt:
        code = _EXIT_INTERRUPTED
    except MemoryError:
        sys.stderr.write(f"{program}: error: out of memory\n")
        code = _EXIT_FAILED
    sys.exit(code)
