"""The schedulers of Vidur and SimAI as engines, and `blis vidur` with their command line and output folder."""

from blis_sim.cli.commands import CommandRow

COMMAND = CommandRow(
    "Simulate as the simulators Vidur and SimAI do: their command line, their schedulers, their output folder.",
    "blis_sim.wings.vidur.command",
    "VidurOptions",
    has_other_syntax=True,
    examples=("blis vidur --replica_config_model_name meta-llama/Llama-2-7b-hf --replica_config_device a100",),
    first=(
        "--replica_config_model_name",
        "--replica_config_device",
        "--replica_config_tensor_parallel_size",
        "--cluster_config_num_replicas",
        "--replica_scheduler_config_type",
        "--request_generator_config_type",
        "--operators",
    ),
)
