"""The entry points. All other modules are imported inside, where an interrupt or a lack of memory is one line."""

import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType

    from blis_sim.cli.commands import CommandRow

_EXIT_FAILED = 1
_EXIT_INTERRUPTED = 130
_NEW_OBJECTS_BEFORE_A_COLLECTION = 50_000
"""More than all modules of a command make while they are imported; with Python's 700 looking at these takes 7 ms."""
_IMPORTING = "<frozen importlib._bootstrap>"
"""The file of the functions that import a module."""


def main() -> None:
    """Run `blis`. Exit codes: 0 done, 1 it ran but failed, 2 bad input, 130 interrupted."""
    start("blis")


def run(arguments: list[str], program: str = "blis", row: "CommandRow | None" = None) -> int:
    """Run `blis`, or a program that is the single command of a row, with these arguments and return the exit code."""
    from blis_sim.cli.app import run_program

    return run_program(arguments, program, row)


def start(program: str, row: "CommandRow | None" = None) -> NoReturn:
    """Run `blis`, or a program that is the single command of a row, as this process, and end it."""
    # OpenBLAS takes 32 MB for each of its threads, and raises SIGINT where it cannot start one. No matrix here is large
    # enough for a second thread, and with one the last digits do not depend on the machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        import gc
        import signal

        gc.set_threshold(_NEW_OBJECTS_BEFORE_A_COLLECTION, *gc.get_threshold()[1:])
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _on_interrupt)
        from blis_sim.cli.search_path import move_foreign_folders_last

        move_foreign_folders_last(sys.path)
        code = run(sys.argv[1:], program, row)
        # At exit the process frees all memory; searching it for garbage first takes as long as a simulation.
        gc.freeze()
        if signal.getsignal(signal.SIGINT) is _on_interrupt:
            # All is done: a late Ctrl-C must not make Python print a traceback at its exit.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        code = _EXIT_INTERRUPTED
    except MemoryError:
        sys.stderr.write(f"{program}: error: out of memory\n")
        code = _EXIT_FAILED
    sys.exit(code)


def _on_interrupt(_number: int, frame: "FrameType | None") -> None:
    """Raise KeyboardInterrupt, but end the process at once while something is imported.

    Some libraries crash when the imports of their own fail, and others raise an error in which the interrupt is lost.
    """
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            os._exit(_EXIT_INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt
