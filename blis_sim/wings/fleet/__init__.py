"""The wing of fleets: `blis fleet` rehearses an autoscaler, cold starts and kills."""

from blis_sim.cli.commands import CommandRow

COMMAND = CommandRow(
    "Rehearse a fleet: its autoscaler, cold starts and kills under a load, with a verdict as exit code.",
    "blis_sim.wings.fleet.command",
    "FleetOptions",
    examples=(
        "blis fleet --model qwen/qwen3-14b --count 8 --autoscaler hpa.yaml --cold-start 45s --stages 5:120s,60:300s "
        "--ttft-p99 2s",
        "blis fleet --model qwen/qwen3-14b --count 2 --kill 30s --rate 10 --real-time",
    ),
    first=(
        *("--model", "--count", "--autoscaler", "--cold-start", "--kill", "--real-time", "--min-completed"),
        *("--rate", "--stages", "--num-requests", "--workload", "--workload-spec", "--prompt-tokens"),
        *("--output-tokens", "--ttft-p99", "--itl-p99", "--e2e-p99", "--hardware", "--tp", "--flow-control"),
        *("--format", "--json", "--html"),
    ),
)
