"""Find the command, run it, and turn errors of the user into one line and exit code 2."""

import errno
import importlib
import os
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any

from blis_sim.cli.commands import COMMANDS, GROUPS, PROGRAMS, CommandRow, commands_in
from blis_sim.cli.search_path import explain_import_errors
from blis_sim.options import BlisError, OptionError, options_from, options_of
from blis_sim.options.text import check_required, parse_command_line

CANDIDATES_FLAG = "--complete"
"""Prints the candidates for the word after its arguments; shell scripts for completion use it."""

FORMAT_VARIABLE, BLIS_FORMAT = "BLIS_FORMAT", "blis"
"""The environment variable for what commands print, and the name of BLIS's own format and engine."""

EXIT_INTERRUPTED = 130

_STDERR = 2
_MOST_CHARACTERS = 1900
"""Most characters of an error message, which may quote a file at length."""
_OUT_OF_MEMORY_MESSAGES = ("failed to map segment", "annot allocate memory")
"""Messages of the dynamic loader when memory runs out."""
_RESOURCE_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Error numbers for a resource of the machine, or of the user's limits, that is used up."""


def run_program(arguments: list[str], program: str) -> int:
    """Run a program with these arguments and return the exit code."""
    _open_standard_streams()
    name, given = ("", arguments) if program in PROGRAMS else _split_command(_expand_help(arguments))
    row = PROGRAMS.get(program) or COMMANDS.get(name)
    program = f"{program} {name}" if name else program
    try:
        code = _run_or_show_help(row, name, given, program)
        sys.stdout.flush()
    except (BlisError, ImportError, KeyboardInterrupt, MemoryError, OSError) as error:
        failed = _exit_code_of(program, error)
        if failed is None:
            raise
        return failed
    return code


def _run_or_show_help(row: CommandRow | None, name: str, given: list[str], program: str) -> int:
    """Run the command, or print requested help, completions or an overview."""
    if row is not None:
        with explain_import_errors():
            return _run_command(row, given, program)
    if given and not given[0].startswith("-"):
        raise OptionError(
            _unknown_command_message(given[0], [each.removeprefix(f"{name} ") for each in commands_in(name)])
        )
    if given[:1] == [CANDIDATES_FLAG]:
        return _print_candidates(given[1:])
    from blis_sim.cli.help import show_overview

    return show_overview(name, given, program)


def _exit_code_of(program: str, error: BaseException) -> int | None:
    """Print one line about an error that ended a command, and return the exit code; None for a bug, which is raised."""
    if isinstance(error, BlisError):
        return _print_error(program, str(error), code=error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if _is_out_of_memory(error):
        return _print_error(program, "out of memory", code=1)
    if not isinstance(error, OSError):
        return None
    if error.errno in _RESOURCE_ERRNOS:
        return _print_error(program, os.strerror(error.errno).lower(), code=1)
    return _cannot_print(program, error) if _is_about_stdout(error) else None


def _run_command(row: CommandRow, arguments: list[str], program: str) -> int:
    """Run one command, or print its help; only its module is imported."""
    module = importlib.import_module(row.module)
    if os.environ.get(FORMAT_VARIABLE):
        arguments = _with_format(getattr(module, row.options), arguments, program)
    try:
        return _run_module(module, row, module.rewritten(arguments) if row.has_other_syntax else arguments, program)
    except BlisError as error:
        place = module.locate_invalid_setting(arguments, str(error)) if row.takes_settings else None
        if place is None:
            raise
        raise OptionError(f"{place}: {error}") from error


def _run_options(module: ModuleType, row: CommandRow, options_class: type, values: dict[str, Any]) -> int:
    """Run the command with its values. An error after the command line was read has the command's own exit code."""
    try:
        code: int = module.run(options_from(options_class, **values))
    except BlisError as error:
        if row.has_exit_codes:
            error.exit_code = module.exit_code_of(error)
        raise
    return code


def _with_format(options_class: type, arguments: list[str], program: str) -> list[str]:
    """Return a command line with the format that the environment asks for, for commands that can print BLIS's.

    BLIS's format comes with BLIS's engine. Flags of the command line win over both. Raises OptionError.
    """
    settings = {setting.name: setting for setting in options_of(options_class)}
    form, printed = os.environ[FORMAT_VARIABLE], settings.get("format")
    if printed is None or BLIS_FORMAT not in printed.option.choices or "--json" in arguments:
        return arguments
    if form not in printed.option.choices:
        if "engine" not in settings:
            return arguments  # a format of simulations
        raise OptionError(f"{FORMAT_VARIABLE} must be one of {', '.join(printed.option.choices)}, got {form!r}")
    added = [printed.flags[0], form]
    if form == BLIS_FORMAT and "engine" in settings:
        added += [settings["engine"].flags[0], BLIS_FORMAT]
    with suppress(OSError):
        sys.stderr.write(f"{program}: {' '.join(added)}, as {FORMAT_VARIABLE} says (flags win over these)\n")
    return [*added, *arguments]


def _run_module(module: ModuleType, row: CommandRow, arguments: list[str], program: str) -> int:
    options_class = getattr(module, row.options)
    found = parse_command_line(options_class, arguments)
    if found.requests_help:
        from blis_sim.cli.help import command_page

        sys.stdout.write(command_page(options_class, row, program, found.help_topic))
        return 0
    sys.stderr.writelines(f"{program}: {note}\n" for note in found.notes)
    check_required(options_class, found.values)
    return _run_options(module, row, options_class, found.values)


def _open_standard_streams() -> None:
    """Open closed standard streams on the null device; else the first opened file would take their descriptor."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (it lives as long as the process)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def _print_candidates(words: list[str]) -> int:
    from blis_sim.cli.help import candidates

    sys.stdout.write("".join(f"{each}\n" for each in candidates(words)))
    return 0


def _expand_help(arguments: list[str]) -> list[str]:
    """`blis help serve` is `blis serve --help`."""
    return [*arguments[1:], "--help"] if arguments[:1] == ["help"] else arguments


def _unknown_command_message(word: str, known: list[str]) -> str:
    from difflib import get_close_matches

    alike = get_close_matches(word.lower(), known, n=1)
    question = f", did you mean {alike[0]!r}?" if alike else ","
    return f"unknown command {word!r}{question} known are {', '.join(known)}"


def _split_command(arguments: list[str]) -> tuple[str, list[str]]:
    """Return the named command, of one word or two, and its arguments; or as much of its name as there is.

    A second word that is a flag, as in `calibrate --watch`, may stand anywhere.
    """
    for place, word in enumerate(arguments):
        name = f"{arguments[0]} {word}"
        if word.startswith("--") and name in COMMANDS:
            return name, arguments[1:place] + arguments[place + 1 :]
    for num_words in (2, 1):
        name = " ".join(arguments[:num_words])
        if name in COMMANDS or name in GROUPS:
            return name, arguments[num_words:]
    return "", arguments


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, also while a library was imported."""
    while error is not None:
        is_refused = isinstance(error, ImportError) and any(each in str(error) for each in _OUT_OF_MEMORY_MESSAGES)
        if is_refused or isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_about_stdout(error: OSError) -> bool:
    """Whether an error is of standard output: such errors name no file."""
    return error.filename is None and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO)


def _cannot_print(program: str, error: OSError) -> int:
    # At exit Python would flush the rest once more, and print an error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):  # a closed reader, as with `| head`, is no error
        _print_error(program, f"cannot write to standard output: {error.strerror}", code=1)
    return 1


def _print_error(program: str, message: str, code: int) -> int:
    one_line = " ".join(message.split())
    if len(one_line) > _MOST_CHARACTERS:
        one_line = f"{one_line[:_MOST_CHARACTERS]}..."
    with suppress(OSError):  # standard error is closed
        sys.stderr.write(f"{program}: error: {one_line}\n")
    return code
