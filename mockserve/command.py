"""`blis serve` for the command line."""

from blis_sim.options import BlisError, StartError
from blis_sim.options.command_line import CONFIG_FLAG, flags_in_environment, flags_of
from mockserve.options.serve import ServeOptions

__all__ = ["ServeOptions", "exit_code_of", "locate_invalid_setting", "rewritten", "run"]


def rewritten(arguments: list[str]) -> list[str]:
    """Convert a command line with vLLM's syntax to ours. Raises BlisError for arguments that vLLM would refuse."""
    from mockserve.options.vllm_command_line import rewritten as from_vllm
    from mockserve.options.vllm_flags import check_acting, read_table

    own_flags, table = flags_of(ServeOptions), read_table()
    check_acting(table, {*own_flags, CONFIG_FLAG})
    return from_vllm(arguments, own_flags, table, flags_in_environment(ServeOptions))


def locate_invalid_setting(arguments: list[str], message: str) -> str | None:
    """Return the file and key of the setting of `--config` that an error message is about, or None."""
    from mockserve.options.vllm_command_line import place_in_file

    return place_in_file(arguments, message)


def exit_code_of(error: BlisError) -> int:
    """Return vLLM's exit code for an error after the command line was read: 1 where its configuration would fail."""
    from mockserve.options.vllm_command_line import is_refused_by_configuration

    return StartError.exit_code if is_refused_by_configuration(error) else error.exit_code


def run(options: ServeOptions) -> int:
    """Serve until a signal ends it. Returns the exit code."""
    from mockserve.server import serve

    return serve(options.endpoints)
