"""vLLM's engine without weights, behind vLLM's own frontend."""

from blis_sim.cli.commands import CommandRow

ENGINE_CORE = CommandRow(
    "Be the engine of a frontend of vLLM 0.33 that was started with --data-parallel-size-local 0: the simulated "
    "engine of blis serve, over vLLM's own messages.",
    "blis_sim.wings.engine_core.command",
    "EngineCoreOptions",
    has_other_syntax=True,
    has_own_config=True,
    has_exit_codes=True,
    examples=(
        "blis engine-core qwen/qwen3-14b --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 29550",
        "blis engine-core ./model --data-parallel-size 2 --data-parallel-rpc-port 29550 --speed 10",
    ),
    first=(
        "--data-parallel-address",
        "--data-parallel-rpc-port",
        "--data-parallel-size",
        "--data-parallel-rank",
        "--hardware",
        "--tp",
        "--max-model-len",
        "--max-num-seqs",
        "--gpu-memory-utilization",
        "--speed",
        "--seed",
    ),
)
