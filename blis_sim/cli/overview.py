"""`blis` by itself, and the first words that commands share: their list, the version, scripts for shells."""

import sys

from blis_sim.cli.completion import SCRIPTS
from blis_sim.cli.help import overview_page
from blis_sim.options import OptionError

_VERSION, _COMPLETION, _HELP = "--version", "--completion", "--help"


def show_overview(group: str, arguments: list[str], program: str) -> int:
    """Print what the flags of `blis` or of a group ask for, by default its help. Returns the exit code.

    Raises OptionError for other arguments.
    """
    flag, equals, value = (arguments or [_HELP])[0].partition("=")
    words = [value] if equals else arguments[1:]
    if flag == _HELP:
        text = overview_page(group, program)
    elif flag == _VERSION and not words:
        text = f"{_version()}\n"
    elif flag == _COMPLETION and len(words) <= 1:
        text = _script(*words)
    else:
        known = ", ".join((_VERSION, f"{_COMPLETION} SHELL", _HELP))
        raise OptionError(f"no such option: {' '.join(arguments)}, known are {known}")
    sys.stdout.write(text)
    return 0


def _script(shell: str = "bash") -> str:
    if shell not in SCRIPTS:
        raise OptionError(f"--completion must be one of {', '.join(SCRIPTS)}, got {shell!r}")
    return SCRIPTS[shell]


def _version() -> str:
    from importlib.metadata import version
    from importlib.util import find_spec

    core = find_spec("blis_sim.engine.core")
    is_compiled = core is not None and core.origin is not None and not core.origin.endswith(".py")
    return f"{version('blis-mockserve')}{' (compiled engine)' if is_compiled else ''}"
