"""Workloads that need no file: one client at a rate or a number of users, with lengths from a bell curve."""

from collections.abc import Mapping
from dataclasses import dataclass

from traces.workload.spec import Arrival, Client, Distribution, WorkloadSpec

DISTRIBUTION = "distribution"
SHARED_PREFIX = "shared"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts from a normal distribution, kept within bounds."""

    mean: int
    stdev: int
    least: int
    most: int

    def distribution(self) -> Distribution:
        """Return the distribution in the form of a spec."""
        params = {"mean": self.mean, "std_dev": self.stdev, "min": self.least, "max": self.most}
        return Distribution(type="gaussian", params={name: float(value) for name, value in params.items()})


@dataclass(frozen=True, slots=True)
class Preset:
    """The requests of one kind of application."""

    prompt: Lengths
    output: Lengths


# BLIS's defaults.yaml.
PRESETS: Mapping[str, Preset] = {
    "chatbot": Preset(Lengths(256, 100, 2, 800), Lengths(256, 100, 1, 1024)),
    "summarization": Preset(Lengths(4096, 500, 100, 8192), Lengths(512, 150, 10, 2048)),
    "contentgen": Preset(Lengths(1024, 150, 10, 2048), Lengths(1024, 200, 10, 2048)),
    "multidoc": Preset(Lengths(10240, 1200, 500, 20480), Lengths(1536, 300, 50, 4096)),
}


def rate_spec(
    lengths: Preset,
    *,
    rate: float,
    num_requests: int,
    seed: int,
    arrival: Arrival,
    prefix_tokens: int = 0,
    client_id: str = DISTRIBUTION,
) -> WorkloadSpec:
    """One client that sends at `rate` requests per second."""
    client = Client(
        id=client_id,
        rate_fraction=1.0,
        arrival=arrival,
        input_distribution=lengths.prompt.distribution(),
        output_distribution=lengths.output.distribution(),
        prefix_group=SHARED_PREFIX if prefix_tokens else "",
        prefix_length=prefix_tokens,
    )
    return _spec(client, num_requests=num_requests, seed=seed, rate=rate)


def users_spec(
    lengths: Preset,
    *,
    num_users: int,
    think_time_us: int,
    num_requests: int,
    seed: int,
    prefix_tokens: int = 0,
    client_id: str = DISTRIBUTION,
) -> WorkloadSpec:
    """Return the spec of a number of users, each of which waits for the reply and thinks before the next request."""
    client = Client(
        id=client_id,
        concurrency=num_users,
        think_time_us=think_time_us,
        input_distribution=lengths.prompt.distribution(),
        output_distribution=lengths.output.distribution(),
        prefix_group=SHARED_PREFIX if prefix_tokens else "",
        prefix_length=prefix_tokens,
    )
    return _spec(client, num_requests=num_requests, seed=seed)


def _spec(client: Client, *, num_requests: int, seed: int, rate: float = 0.0) -> WorkloadSpec:
    return WorkloadSpec(
        version="2",
        seed=seed,
        category="language",
        clients=(client,),
        aggregate_rate=rate,
        num_requests=num_requests,
    )
