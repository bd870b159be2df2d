"""The entry point: finds the command, runs it, and turns the user's mistakes into one line and exit code 2."""

import errno
import importlib
import os
import sys
from typing import Any

import typer

from blis_cli.commands import COMMANDS, GROUPS, PROGRAMS, CommandRow
from blis_cli.flags import command_function
from blis_options import BlisError, OptionError

DESCRIPTION = """Test everything around LLM inference without a GPU, and prove the fake is true.

serve a vLLM look-alike, observe any server, replay the recording in virtual time, calibrate one against the other.
"""

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run `blis`. Exit codes: 0 done, 1 it ran but failed, 2 bad input, 130 interrupted."""
    sys.exit(run(sys.argv[1:]))


def inference_sim() -> None:
    """Run `llm-d-inference-sim`, with the same exit codes."""
    sys.exit(run(sys.argv[1:], "llm-d-inference-sim"))


def run(arguments: list[str], program: str = "blis") -> int:
    """Run `blis`, or a program that is one command by itself, with these arguments and return the exit code."""
    if sys.stdout is None:  # started with standard output closed: what is printed goes nowhere
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (it lives as long as the process)
    name, given = ("", arguments) if program in PROGRAMS else _split(arguments)
    row = PROGRAMS.get(program) or COMMANDS.get(name)
    program = f"{program} {name}" if name else program
    try:
        if row is not None:
            rest = _in_our_syntax(row, given)
            command = _command(name, row, rest)
        elif given and not given[0].startswith("-"):
            known = (each.removeprefix(f"{name} ") for each in _members(name))
            raise OptionError(f"unknown command {given[0]!r}, known are {', '.join(known)}")
        else:
            command, rest = _overview(name), given or ["--help"]
        result = command.main(args=rest, prog_name=program, standalone_mode=False)
        sys.stdout.flush()
    except BlisError as error:
        return _complain(program, str(error))
    except typer.TyperException as error:
        return _complain(program, error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except OSError as error:
        if sys.stdout is None or not _is_about_stdout(error):
            raise
        return _cannot_print(program, error)
    return result if isinstance(result, int) else 0


def _split(arguments: list[str]) -> tuple[str, list[str]]:
    """The command that is meant, of one word or two, and what it is given; or as much of its name as there is."""
    for num_words in (2, 1):
        name = " ".join(arguments[:num_words])
        if name in COMMANDS or name in GROUPS:
            return name, arguments[num_words:]
    return "", arguments


def _members(group: str) -> list[str]:
    """The commands whose names begin with this word; all of them without one."""
    return [name for name in COMMANDS if not group or name.startswith(f"{group} ")]


def _is_about_stdout(error: OSError) -> bool:
    """Errors that name no file come from the stream we print to."""
    return error.filename is None and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO)


def _cannot_print(program: str, error: OSError) -> int:
    # Python would try to flush what is left once more at exit, and complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):  # a reader that has gone, as `| head` does, wants no complaint
        sys.stderr.write(f"{program}: error: cannot write to standard output: {error.strerror}\n")
    return 1


def _complain(program: str, message: str) -> int:
    if message.startswith("Invalid value for "):  # typer's preface; our messages name the flag themselves
        message = message.partition(": ")[2]
    one_line = " ".join(message.split())
    sys.stderr.write(f"{program}: error: {one_line}\n")
    return EXIT_BAD_INPUT


def _command(name: str, row: CommandRow, arguments: list[str]) -> Any:
    """The one command that is wanted, to be called with these arguments; only its module is imported."""
    module = importlib.import_module(row.module)
    app = _new_app()
    app.command(name=name, help=row.help)(command_function(getattr(module, row.options), module.run, arguments))
    return typer.main.get_command(app)


def _in_our_syntax(row: CommandRow, arguments: list[str]) -> list[str]:
    if not row.has_other_syntax:
        return arguments
    found: list[str] = importlib.import_module(row.module).rewritten(arguments)
    return found


def _overview(group: str) -> Any:
    """The list of commands, or of those of a group, none of them imported."""
    app = _new_app()

    @app.callback(help=GROUPS.get(group, DESCRIPTION), invoke_without_command=True)
    def overview(
        version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
    ) -> None:
        if version:
            from importlib.metadata import version as installed_version

            typer.echo(installed_version("blis-mockserve"))
            raise typer.Exit

    for name in _members(group):
        app.command(name=name.removeprefix(f"{group} "), help=COMMANDS[name].help)(_never_called)
    return typer.main.get_command(app)


def _never_called() -> None:
    """Stands for a command in the list; `run` dispatches to the real one before typer could."""


def _new_app() -> typer.Typer:
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
