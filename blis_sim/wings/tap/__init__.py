"""A recorder on the link between a frontend of vLLM and a real engine, and a check of what it recorded."""

from blis_sim.cli.commands import CommandRow

TAP = CommandRow(
    "Record the steps of a real engine of vLLM 0.33. The command sits between it and its frontend, passes every byte "
    "on, and writes what each step computed and how long it took.",
    "blis_sim.wings.tap.command",
    "TapOptions",
    examples=("blis tap --data-parallel-rpc-port 29550 --listen-port 29551 --output real",),
)

STEP_CHECK = CommandRow(
    "Compare the recorded steps of a real engine with those that our scheduler composes for the same requests, and "
    "name the first that differs.",
    "blis_sim.wings.tap.step_check",
    "StepCheckOptions",
    examples=("blis tap-check real.link.jsonl",),
)
