"""A module of ours as a process of its own."""

import json
import sys

_PROGRAM = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def command_of(module: str) -> list[str]:
    """The command line that runs a module, which finds others where this process does.

    `python -m` would look into the working folder first, where users may have an `observe` of their own.
    """
    return [sys.executable, "-P", "-c", _PROGRAM, json.dumps(sys.path), module]
