"""`blis` by itself, and the first words that commands share: what there is."""

from typing import Any

import typer
from typer.core import TyperGroup

from blis_sim.cli.commands import COMMANDS, GROUPS, members
from blis_sim.cli.completion import SCRIPTS
from blis_sim.cli.flags import CONTEXT, answer, new_app
from blis_sim.options import OptionError

DESCRIPTION = """Test everything around LLM inference without a GPU, and prove the fake is true.

Serve a vLLM look-alike, observe any server, replay the recording in virtual time, calibrate one against the other.
"""


class Overview(TyperGroup):
    """A list of commands that says all of each, on as many lines as that takes."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Typer's own list cuts what is longer than a line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, str(command.help)) for name, command in self.commands.items()])


def show_overview(group: str, arguments: list[str], program: str) -> int:
    """List the commands, or those of a group, none of them imported. Returns the exit code. Raises OptionError."""
    app = new_app()

    @app.callback(
        cls=Overview,
        help=GROUPS.get(group, DESCRIPTION),
        epilog=f"`{program} COMMAND --help` tells the flags of a command.",
        invoke_without_command=True,
        context_settings=CONTEXT,
    )
    def overview(
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),
        completion: str = typer.Option(
            "",
            "--completion",
            metavar="SHELL",
            show_default=False,
            help='Print what completes commands and flags in bash, zsh or fish: eval "$(blis --completion bash)".',
        ),
    ) -> None:
        if version:
            typer.echo(_version())
        if completion:
            typer.echo(_script(completion), nl=False)

    for name in members(group):
        app.command(name=name.removeprefix(f"{group} "), help=COMMANDS[name].help)(_never_called)
    asked = ["--completion", "bash"] if arguments == ["--completion"] else arguments
    return answer(app, asked or ["--help"], program)


def _script(shell: str) -> str:
    if shell not in SCRIPTS:
        raise OptionError(f"--completion must be one of {', '.join(SCRIPTS)}, got {shell!r}")
    return SCRIPTS[shell]


def _version() -> str:
    from importlib.metadata import version
    from importlib.util import find_spec

    core = find_spec("blis_sim.engine.core")
    is_compiled = core is not None and core.origin is not None and not core.origin.endswith(".py")
    return f"{version('blis-mockserve')}{' (compiled engine)' if is_compiled else ''}"


def _never_called() -> None:
    """Stands for a command in the list; `run` dispatches to the real one before typer could."""
