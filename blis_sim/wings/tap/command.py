"""`blis tap` for the command line."""

import gc
import logging
import signal
from dataclasses import dataclass
from pathlib import Path

from blis_sim.installation import install_command
from blis_sim.options import OptionError, StartError, check_options, option

__all__ = ["TapOptions", "run"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TapOptions:
    """Settings of `blis tap`."""

    data_parallel_address: str = option(
        "127.0.0.1", "The host of the frontend: its --data-parallel-address.", metavar="HOST"
    )
    data_parallel_rpc_port: int = option(
        29550, "The port of the frontend's handshake: its --data-parallel-rpc-port.", at_least=1, at_most=65535
    )
    listen_host: str = option("127.0.0.1", "Where engines find the tap: their --data-parallel-address.", metavar="HOST")
    listen_port: int = option(29551, "The port for engines: their --data-parallel-rpc-port.", at_least=1, at_most=65535)
    output: str = option(
        "tap",
        "Where to write: PREFIX.link.jsonl has requests and steps, PREFIX.steps.csv the steps for blis fit.",
        flags=("--output", "-o"),
        metavar="PREFIX",
        writes=(".link.jsonl", ".steps.csv"),
    )
    redact: tuple[str, ...] = option(
        (), "Regular expressions; what they match in names of adapters is not written.", repeatable=True
    )

    def __post_init__(self) -> None:
        check_options(self)


def run(options: TapOptions) -> int:
    """Pass messages on and record them until a signal.

    Exit codes: 0 done, 1 the recording ended early, or could not be written.
    """
    try:
        import msgspec  # noqa: F401
    except ImportError:
        raise OptionError(f"blis tap needs its libraries: {install_command('engine-core')}") from None
    from blis_sim.wings.engine_core.options import tcp_address
    from blis_sim.wings.tap.forwarding import Tap
    from blis_sim.wings.tap.handover import Handover
    from blis_sim.wings.tap.recording import LinkRecorder
    from mockserve.options.server import set_up_logging

    set_up_logging("plain")
    logging.getLogger("blis_sim.wings.tap").setLevel(logging.INFO)
    signalled: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _frame: signalled.append(got))
    frontend = tcp_address(options.data_parallel_address, options.data_parallel_rpc_port)
    handover = Handover(LinkRecorder(Path(options.output), options.redact))
    try:
        tap = Tap(options.listen_host, options.listen_port, frontend, handover.put)
    except OSError as error:
        handover.close()
        raise StartError(f"cannot listen on {options.listen_host}:{options.listen_port}: {error}") from None
    _logger.info("tap on %s:%d before %s", options.listen_host, options.listen_port, frontend)
    gc.disable()  # a collection would hold up what passes, and nothing that passes makes a cycle
    try:
        tap.run(lambda: not signalled, handover.hand_over)
    finally:
        gc.enable()
        tap.close()
        is_recorded = handover.close()
    _logger.info("connections: %d", tap.num_connections)
    return int(not is_recorded)
