"""The commands of `blis`. Adding one is adding its row."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommandRow:
    """Registration of a command. Its module is imported only when the command is used.

    The module offers the options class under `options` and `run(options) -> int`, the exit code. With
    `has_other_syntax` it also offers `rewritten(arguments) -> arguments`, for command lines of another program.
    """

    help: str
    module: str
    options: str
    has_other_syntax: bool = False


PROGRAMS: dict[str, CommandRow] = {
    "llm-d-inference-sim": CommandRow(
        "The mock server of `blis serve` with the command line of llm-d-inference-sim.",
        "mockserve.inference_sim.command",
        "InferenceSimOptions",
        has_other_syntax=True,
    ),
}
"""Programs of other names with one command each."""

GROUPS: dict[str, str] = {
    "bench": "The benchmarks of vLLM, with their flags and results.",
    "kernels": "The kernel times that steps are made of.",
    "playback": "Recorded replies, which blis serve --playback answers with.",
}
"""First words that several commands share."""

COMMANDS: dict[str, CommandRow] = {
    "serve": CommandRow(
        "Serve a model that is not there: an OpenAI- and vLLM-compatible server timed by a simulated vLLM engine. "
        "Takes any command line of vllm serve, --config FILE included.",
        "mockserve.command",
        "ServeOptions",
        has_other_syntax=True,
    ),
    "observe": CommandRow(
        "Put load on any OpenAI-compatible server and record what it did as a trace.",
        "observe.command",
        "ObserveOptions",
    ),
    "playback check": CommandRow(
        "Send recorded requests to a server and name the replies that differ in shape from the recorded ones.",
        "observe.drift.command",
        "DriftOptions",
    ),
    "top": CommandRow(
        "Show what a vLLM server is doing, from its metrics page: load, rates, latencies.",
        "observe.top.command",
        "TopOptions",
    ),
    "run": CommandRow(
        "Simulate a synthetic workload straight through the engine, in virtual time.",
        "replay.run_command",
        "RunOptions",
    ),
    "replay": CommandRow(
        "Run a recorded trace through the simulated engine, in virtual time.",
        "replay.command",
        "ReplayOptions",
        has_other_syntax=True,
    ),
    "fit": CommandRow(
        "Learn the coefficients of a latency model from recordings of a real server.",
        "calibrate.fit.command",
        "FitOptions",
        has_other_syntax=True,
    ),
    "convert": CommandRow(
        "Convert workloads and recordings of other programs into specs and traces of ours.",
        "traces.convert_command",
        "ConvertOptions",
    ),
    "compose": CommandRow(
        "Merge several workload specs, or several traces, into one.",
        "traces.compose_command",
        "ComposeOptions",
    ),
    "bench serve": CommandRow(
        "Put the load of a benchmark on a server, as vllm bench serve does, at one rate or several.",
        "blis_sim.bench.serve.command",
        "BenchServeOptions",
        has_other_syntax=True,
    ),
    "bench throughput": CommandRow(
        "Simulate an engine to which all requests are given at once, as vllm bench throughput measures it.",
        "blis_sim.bench.offline.throughput",
        "ThroughputOptions",
        has_other_syntax=True,
    ),
    "bench latency": CommandRow(
        "Simulate one batch on an engine with nothing else to do, as vllm bench latency measures it.",
        "blis_sim.bench.offline.latency",
        "LatencyOptions",
        has_other_syntax=True,
    ),
    "bench tune": CommandRow(
        "Find the engine settings that serve most within latency limits, on the simulator, as vLLM's auto_tune does.",
        "blis_sim.bench.tune.command",
        "TuneOptions",
        has_other_syntax=True,
    ),
    "vidur": CommandRow(
        "Simulate as the simulators Vidur and SimAI do: their command line, their schedulers, their output folder.",
        "blis_sim.bench.vidur.command",
        "VidurOptions",
        has_other_syntax=True,
    ),
    "sweep": CommandRow(
        "Repeat a simulation with other settings, all combinations on all cores, and find the best of them.",
        "blis_sim.bench.sweep.command",
        "SweepOptions",
        has_other_syntax=True,
    ),
    "plan": CommandRow(
        "Find the cheapest deployment of a model that meets latency targets under a load: GPU type, shape, counts.",
        "blis_sim.bench.capacity.command",
        "PlanOptions",
        has_other_syntax=True,
    ),
    "compare": CommandRow(
        "Simulate the same requests with two or more configurations, side by side.",
        "blis_sim.bench.compare.command",
        "CompareOptions",
        has_other_syntax=True,
    ),
    "models": CommandRow(
        "Plan a model's memory as vLLM does: weights per GPU, KV cache groups, blocks and their capacity in tokens. "
        "Without a model, list those of the catalogue.",
        "blis_sim.cli.models_command",
        "ModelsOptions",
    ),
    "gpus": CommandRow(
        "List the GPUs of the catalogue, or describe one: peak rates, memory, links, and where they were published.",
        "blis_sim.cli.gpus_command",
        "GpusOptions",
    ),
    "kernels bake": CommandRow(
        "Write the kernel times of one deployment to a file, for computers without the tables they are looked up in.",
        "blis_sim.cli.kernels_bake_command",
        "KernelsBakeOptions",
    ),
    "kernels exchanges": CommandRow(
        "Print the bytes that the GPUs of a model with experts exchange in each layer, as a table of AICB.",
        "blis_sim.cli.kernels_exchanges_command",
        "KernelsExchangesOptions",
    ),
    "calibrate": CommandRow(
        "Compare a recording with a simulation of it: errors, correlation, grades.",
        "calibrate.command",
        "CalibrateOptions",
    ),
}


def members(group: str) -> list[str]:
    """The commands whose names begin with this word; all of them without one."""
    return [name for name in COMMANDS if not group or name.startswith(f"{group} ")]
