"""Loads of the kinds of servers: what `blis observe` is told to send, and specs of workloads."""

from pathlib import Path

SPEC = """version: "2"
seed: {seed}
aggregate_rate: {rate}
num_requests: {count}
clients:
"""
_LENGTHS = (
    "input_distribution: {{type: gaussian, params: {{mean: {input}, std_dev: {spread}, min: 16, max: 1500}}}}, "
    "output_distribution: {{type: gaussian, params: {{mean: {output}, std_dev: 8, min: 8, max: 200}}}}"
)


def _client(name: str, share: float, fields: str = "", *, input: int = 300, output: int = 40, cv: float = 0) -> str:
    lengths = _LENGTHS.format(input=input, spread=input // 3, output=output)
    arrival = f"{{process: gamma, cv: {cv}}}" if cv else "{process: poisson}"
    return (
        f"  - {{id: {name}, rate_fraction: {share}, arrival: {arrival}, {lengths}{', ' if fields else ''}{fields}}}\n"
    )


SPECS: dict[str, str] = {
    "plain": _client("a", 1),
    "leaving": _client("a", 1),
    "shared": _client("a", 0.6, "prefix_group: one, prefix_length: 400")
    + _client("b", 0.4, "prefix_group: two, prefix_length: 250"),
    "adapters": _client("a", 0.4, "adapter: ad1") + _client("b", 0.4, "model: ad2") + _client("c", 0.2),
    "bursts": _client("a", 1, cv=3, input=500, output=60),
    "classes": _client("chats", 0.5, "slo_class: critical") + _client("reports", 0.5, "slo_class: batch", input=600),
    "rounds": _client(
        "a", 1, "reasoning: {multi_turn: {max_rounds: 4, think_time_us: 600000, context_growth: accumulate}}"
    ),
}


FLAGS: dict[str, tuple[str, ...]] = {"leaving": ("--cancel-rate", "0.3", "--cancel-delay", "2s")}
"""Flags of `blis observe` beside the spec."""


def write_spec(folder: Path, load: str, seed: int, rate: float, count: int) -> Path:
    """Write the spec of a load with this many requests, and return its path."""
    path = folder / f"{load}.yaml"
    path.write_text(SPEC.format(seed=seed, rate=rate, count=count) + SPECS[load])
    return path
