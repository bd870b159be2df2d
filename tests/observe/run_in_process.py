"""`blis observe` in a process of its own, with options made in a test."""

import pickle
import subprocess
import sys

from observe.options import ObserveOptions
from tests import fork_server


def code_for(made: ObserveOptions) -> str:
    """Return a line of Python that runs the command with these options."""
    given = pickle.dumps(made).hex()
    return f"import pickle, sys; from observe.command import run; sys.exit(run(pickle.loads(bytes.fromhex('{given}'))))"


def started(made: ObserveOptions) -> subprocess.Popen[str]:
    """Start the command with these options, its output in pipes."""
    program = [sys.executable, "-c", code_for(made)]
    return fork_server.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
