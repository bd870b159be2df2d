"""`blis engine-core` for the command line."""

import logging
from dataclasses import replace

from blis_sim.installation import install_command
from blis_sim.options import OptionError
from blis_sim.options.command_line import flags_in_environment, flags_of
from blis_sim.wings.engine_core.options import EngineCoreOptions
from mockserve.command import exit_code_of

__all__ = ["EngineCoreOptions", "exit_code_of", "rewritten", "run"]

_logger = logging.getLogger(__name__)


def rewritten(arguments: list[str]) -> list[str]:
    """Convert a command line with vLLM's syntax to ours. Raises BlisError for arguments that vLLM would refuse."""
    from mockserve.options.vllm_command_line import rewritten as from_vllm
    from mockserve.options.vllm_flags import read_table

    return from_vllm(arguments, flags_of(EngineCoreOptions), read_table(), flags_in_environment(EngineCoreOptions))


def run(options: EngineCoreOptions) -> int:
    """Be the engine of frontends until a signal. Returns the exit code."""
    try:
        import msgspec  # noqa: F401
        import zmq  # noqa: F401
    except ImportError:
        raise OptionError(f"blis engine-core needs its libraries: {install_command('engine-core')}") from None
    import asyncio

    from blis_sim.engine.latency.wrapped import EngineAlone
    from blis_sim.wings.engine_core.session import serve_frontends
    from mockserve.engines import deployment_of
    from mockserve.executor.memory import return_large_blocks
    from mockserve.listening import fastest_loop, startup_line
    from mockserve.options.environment import read_environment
    from mockserve.options.server import set_up_logging
    from mockserve.options.startup_checks import refuse_start, startup_problems

    environment = read_environment()
    local = options.of_local_ranks
    deployment = deployment_of(local)
    if deployment.model.num_experts > 1 and options.num_local_ranks < options.deployment.dp:
        raise OptionError(
            "--data-parallel-size-local must be all of --data-parallel-size for a model with experts: its ranks step "
            f"together, got {options.num_local_ranks} of {options.deployment.dp}"
        )
    deployment = replace(deployment, latency=EngineAlone(deployment.latency))
    set_up_logging(options.process.log_format)
    logging.getLogger("blis_sim.wings.engine_core").setLevel(logging.INFO)
    for problem in startup_problems(local, deployment, environment):
        refuse_start(local, problem)
    for note in deployment.notes:
        _logger.info("note: %s", note)
    _logger.info("%s", startup_line(local, deployment, f"vLLM's messages for {options.handshake_address}"))
    return_large_blocks()
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(serve_frontends(options, deployment, environment))
