"""The settings of `blis engine-core`: those of `blis serve`, and where the frontend is."""

from dataclasses import dataclass, replace

from blis_sim.options import OptionError, check_options, option
from mockserve.options.serve import ServeOptions

DEFAULT_RPC_PORT = 29550


def tcp_address(host: str, port: int) -> str:
    """Return an address as ZeroMQ writes it."""
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCoreOptions(ServeOptions):
    """Settings of `blis engine-core`. Those of HTTP and of the text of replies have no effect.

    With `--enable-logging-iteration-details` the frontend, and a tap before it, learn the batch of each step.
    """

    data_parallel_address: str = option(
        "127.0.0.1",
        "The host of the frontend: its --data-parallel-address.",
        heading="Frontend",
        metavar="HOST",
    )
    data_parallel_rpc_port: int = option(
        DEFAULT_RPC_PORT, "The port of its handshake: its --data-parallel-rpc-port.", at_least=1, at_most=65535
    )
    data_parallel_size_local: int | None = option(
        None,
        "Ranks of this process, from --data-parallel-rank on (default: all of --data-parallel-size).",
        at_least=1,
    )
    headless: bool = option(False, "Nothing to turn on: an engine has no API server.", hidden=True)
    parallel_config_hash: str = option(
        "",
        "The hash by which a frontend of a model with experts compares the settings of its ranks. It is needed where "
        "flags of the frontend change it, other than --tensor-parallel-size, --pipeline-parallel-size, "
        "--data-parallel-size and --enable-expert-parallel. The frontend's error names it.",
        metavar="HASH",
    )
    handshake_timeout_s: float = option(
        300.0,
        "How long to wait for the frontend before giving up, in seconds; inf waits for ever.",
        above=0,
        infinity="inf",
    )
    once: bool = option(False, "End when the frontend has gone, instead of waiting for the next one.")

    def __post_init__(self) -> None:
        ServeOptions.__post_init__(self)
        check_options(self)
        if self.serves_cluster:
            raise OptionError("blis engine-core is one deployment: --num-instances must be 1, without a router")
        if self.network.num_api_servers > 1:
            raise OptionError("--api-server-count is a flag of the frontend, got it here")

    @property
    def first_rank(self) -> int:
        """The first data-parallel rank of this process."""
        return self.kv_sharing.data_parallel_rank

    @property
    def num_local_ranks(self) -> int:
        """Data-parallel ranks of this process."""
        if self.data_parallel_size_local is not None:
            return self.data_parallel_size_local
        return max(1, self.deployment.dp - self.first_rank)

    @property
    def handshake_address(self) -> str:
        """Where the frontend waits for HELLO."""
        return tcp_address(self.data_parallel_address, self.data_parallel_rpc_port)

    @property
    def of_local_ranks(self) -> "EngineCoreOptions":
        """Return these settings for the ranks of this process alone. Raises OptionError for ranks that do not exist."""
        size, num_local = self.deployment.dp, self.num_local_ranks
        if self.first_rank + num_local > max(size, self.first_rank + 1 if self.data_parallel_size_local is None else 0):
            raise OptionError(
                f"--data-parallel-rank {self.first_rank} with {num_local} ranks here goes beyond "
                f"--data-parallel-size {size}"
            )
        deployment = replace(self.deployment, dp=num_local)
        return replace(self, cluster=replace(self.cluster, deployment=deployment))
