"""`blis` by itself, and the first words that commands share: what there is."""

import typer

from blis_cli.commands import COMMANDS, GROUPS, members
from blis_cli.flags import answer, new_app

DESCRIPTION = """Test everything around LLM inference without a GPU, and prove the fake is true.

serve a vLLM look-alike, observe any server, replay the recording in virtual time, calibrate one against the other.
"""


def show_overview(group: str, arguments: list[str], program: str) -> int:
    """List the commands, or those of a group, none of them imported. Returns the exit code. Raises OptionError."""
    app = new_app()

    @app.callback(help=GROUPS.get(group, DESCRIPTION), invoke_without_command=True)
    def overview(
        version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
    ) -> None:
        if version:
            typer.echo(_version())
            raise typer.Exit

    for name in members(group):
        app.command(name=name.removeprefix(f"{group} "), help=COMMANDS[name].help)(_never_called)
    return answer(app, arguments or ["--help"], program)


def _version() -> str:
    from importlib.metadata import version
    from importlib.util import find_spec

    core = find_spec("engine.core")
    is_compiled = core is not None and core.origin is not None and not core.origin.endswith(".py")
    return f"{version('blis-mockserve')}{' (compiled engine)' if is_compiled else ''}"


def _never_called() -> None:
    """Stands for a command in the list; `run` dispatches to the real one before typer could."""
