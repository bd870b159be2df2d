"""The commands of `blis`. Adding one is adding its row; a package adds one by an entry point of `blis.commands`."""

from typing import NamedTuple

from blis_sim.options.option import OptionError
from blis_sim.options.registry import Registry


class CommandRow(NamedTuple):
    """Registration of a command. Its module is imported only when the command is used.

    The module offers the options class under `options` and `run(options) -> int`, the exit code. With
    `has_other_syntax` it also offers `rewritten(arguments) -> arguments`, for command lines of another program. With
    `takes_settings` it also offers `locate_invalid_setting(arguments, message)`, which returns the file and key of the
    setting that an error message is about, or None. With `has_exit_codes` it also offers `exit_code_of(error)`, for an
    error after the command line was read. `examples` are command lines for the help. `first` are the flags that people
    look for first: where there are some, `--help` shows these alone, and `--help-all` all of them. A command that
    `passes_flags_on` takes those that it does not know as arguments, for another command. `has_own_config` says that
    its `--config` names a file of another kind than one of settings.
    """

    help: str
    module: str
    options: str
    has_other_syntax: bool = False
    takes_settings: bool = False
    has_exit_codes: bool = False
    examples: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    passes_flags_on: bool = False
    has_own_config: bool = False


_DEPLOYMENT = ("--hardware", "--tp", "--max-model-len", "--max-num-seqs", "--gpu-memory-utilization")
"""Flags of a simulated deployment."""
_LOAD = ("--rate", "--num-requests", "--workload", "--workload-spec", "--prompt-tokens", "--output-tokens", "--seed")
_PRINTED = ("--format", "--json", "--html")

FIRST_STEPS = (
    "blis serve qwen/qwen3-14b",
    "blis run --model qwen/qwen3-14b --rate 4",
    "blis plan --model llama-3.3-70b --rate 30 --prompt-tokens 2000 --ttft-p99 1s --itl-p99 40ms",
    "blis doctor",
)
"""Command lines for the help of `blis` itself."""

GROUPS: dict[str, str] = {
    "bench": "The benchmarks of vLLM, with their flags and results.",
    "kernels": "The kernel times that steps are made of.",
    "playback": "Recorded replies, which blis serve --playback answers with.",
}
"""First words that several commands share."""

COMMANDS = Registry[CommandRow]("blis.commands") | {
    "serve": CommandRow(
        "Serve a model that is not there: an OpenAI- and vLLM-compatible server timed by a simulated vLLM engine. "
        "Takes any command line of vllm serve, --config FILE included.",
        "mockserve.command",
        "ServeOptions",
        has_other_syntax=True,
        has_own_config=True,
        takes_settings=True,
        has_exit_codes=True,
        examples=(
            "blis serve qwen/qwen3-14b",
            "blis serve llama-3.1-8b --port 8001 --speed 10 --max-num-seqs 64",
            "blis serve qwen/qwen3-14b --num-instances 4 --routing-policy least-loaded",
        ),
        first=(
            "--host",
            "--port",
            "--api-key",
            "--served-model-name",
            *_DEPLOYMENT,
            "--num-instances",
            "--speed",
            "--seed",
            "--fault-rates",
            "--playback",
        ),
    ),
    "observe": CommandRow(
        "Put load on any OpenAI-compatible server and record what it did as a trace.",
        "observe.command",
        "ObserveOptions",
        has_other_syntax=True,
        examples=(
            "blis observe --url http://localhost:8000",
            "blis observe --url http://localhost:8000 --rate 5 --num-requests 100 --record-itl -o trace",
            "blis observe --url http://localhost:8000 --workload-spec workload.yaml -o trace",
            "blis observe --url http://localhost:8000 --trace trace.yaml -o again",
        ),
        first=(
            "--url",
            "--model",
            "--api-key",
            *_LOAD,
            "--max-concurrency",
            "--output",
            "--record-itl",
            "--format",
            "--html",
        ),
    ),
    "playback check": CommandRow(
        "Send recorded requests to a server and name the replies that differ in shape from the recorded ones.",
        "observe.drift",
        "DriftOptions",
        examples=("blis playback check trace.yaml --url http://localhost:8000",),
    ),
    "top": CommandRow(
        "Show what a vLLM server is doing, from its metrics page: load, rates, latencies.",
        "observe.top_command",
        "TopOptions",
        examples=("blis top http://localhost:8000",),
    ),
    "run": CommandRow(
        "Simulate a synthetic workload straight through the engine, in virtual time.",
        "replay.run_command",
        "RunOptions",
        examples=(
            "blis run --model qwen/qwen3-14b --rate 4",
            "blis run --model llama-3.3-70b --tp 4 --workload chatbot --rate 10 --goodput ttft:500ms",
            "blis run --model qwen/qwen3-14b --num-instances 4 --routing-policy least-loaded --rate 30",
        ),
        first=("--model", *_LOAD, *_DEPLOYMENT, "--num-instances", *_PRINTED, "--results-path"),
    ),
    "replay": CommandRow(
        "Run a recorded trace through the simulated engine, in virtual time.",
        "replay.command",
        "ReplayOptions",
        has_other_syntax=True,
        takes_settings=True,
        examples=(
            "blis replay trace.yaml --model qwen/qwen3-14b --results-path results.json",
            "blis replay trace.yaml --model qwen/qwen3-14b --num-instances 2 --json",
        ),
        first=(
            "--model",
            *_DEPLOYMENT,
            "--num-instances",
            "--latency-model",
            "--coefficients",
            *_PRINTED,
            "--results-path",
        ),
    ),
    "fit": CommandRow(
        "Learn the coefficients of a latency model from recordings of a real server.",
        "calibrate.fit.command",
        "FitOptions",
        has_other_syntax=True,
        takes_settings=True,
        examples=("blis fit trace.yaml --model qwen/qwen3-14b --output coefficients.yaml",),
        first=("--output", "--model", *_DEPLOYMENT, "--check"),
    ),
    "convert": CommandRow(
        "Convert workloads and recordings of other programs into specs and traces of ours.",
        "traces.convert_command",
        "ConvertOptions",
        examples=(
            "blis convert azure AzureLLMInferenceTrace_conv.csv --num-requests 1000 --output azure",
            "blis convert preset chatbot --rate 5 --output workload.yaml",
        ),
    ),
    "compose": CommandRow(
        "Merge several workload specs, or several traces, into one.",
        "traces.compose_command",
        "ComposeOptions",
        examples=("blis compose --from a.yaml --from b.yaml --output both.yaml",),
    ),
    "bench serve": CommandRow(
        "Put the load of a benchmark on a server, as vllm bench serve does, at one rate or several.",
        "blis_sim.bench.serve_command",
        "BenchServeOptions",
        has_other_syntax=True,
        has_own_config=True,
        examples=("blis bench serve --model qwen/qwen3-14b --port 8000 --num-prompts 100 --request-rate 5",),
        first=(
            "--model",
            "--host",
            "--port",
            "--base-url",
            "--dataset-name",
            "--num-prompts",
            "--request-rate",
            "--max-concurrency",
            "--random-input-len",
            "--random-output-len",
            "--goodput",
            "--save-result",
        ),
    ),
    "bench throughput": CommandRow(
        "Simulate an engine to which all requests are given at once, as vllm bench throughput measures it.",
        "blis_sim.bench.throughput_command",
        "ThroughputOptions",
        has_other_syntax=True,
        has_own_config=True,
        examples=("blis bench throughput --model qwen/qwen3-14b --input-len 512 --output-len 128 --num-prompts 200",),
        first=(
            "--model",
            "--input-len",
            "--output-len",
            "--num-prompts",
            "--dataset-name",
            *_DEPLOYMENT,
            "--output-json",
        ),
    ),
    "bench latency": CommandRow(
        "Simulate one batch on an engine with nothing else to do, as vllm bench latency measures it.",
        "blis_sim.bench.latency_command",
        "LatencyOptions",
        has_other_syntax=True,
        has_own_config=True,
        examples=("blis bench latency --model qwen/qwen3-14b --input-len 512 --output-len 128 --batch-size 8",),
        first=("--model", "--input-len", "--output-len", "--batch-size", *_DEPLOYMENT, "--output-json"),
    ),
    "bench tune": CommandRow(
        "Find the engine settings that serve most within latency limits, on the simulator, as vLLM's auto_tune does.",
        "blis_sim.bench.tune_command",
        "TuneOptions",
        examples=("blis bench tune --model qwen/qwen3-14b --e2e-p99 5s",),
        passes_flags_on=True,
        has_own_config=True,
    ),
    "sweep": CommandRow(
        "Repeat a simulation with other settings, all combinations on all cores, and find the best of them.",
        "blis_sim.bench.sweep_command",
        "SweepOptions",
        examples=(
            "blis sweep --model qwen/qwen3-14b --vary rate=1,2,4,8 --vary tp=1,2 --num-requests 200 --plot sweep.png",
            "blis sweep replay trace.yaml --model qwen/qwen3-14b --vary max_num_seqs=32,64,128",
        ),
        passes_flags_on=True,
        has_own_config=True,
    ),
    "plan": CommandRow(
        "Find the cheapest deployment of a model that meets latency targets under a load: GPU type, shape, counts.",
        "blis_sim.bench.plan_command",
        "PlanOptions",
        examples=(
            "blis plan --model llama-3.3-70b --rate 30 --prompt-tokens 2000 --ttft-p99 1s --itl-p99 40ms",
            "blis plan --model qwen/qwen3-14b --workload-spec workload.yaml --ttft-p99 500ms --gpus H100,H200",
        ),
        passes_flags_on=True,
    ),
    "compare": CommandRow(
        "Simulate the same requests with two or more configurations, side by side.",
        "blis_sim.bench.compare_command",
        "CompareOptions",
        has_other_syntax=True,
        examples=("blis compare --names few,many --workload burst -- --max-num-seqs 32 -- --max-num-seqs 128",),
    ),
    "models": CommandRow(
        "Plan a model's memory as vLLM does: weights per GPU, KV cache groups, blocks and their capacity in tokens. "
        "Without a model, list those of the catalogue.",
        "blis_sim.cli.models_command",
        "ModelsOptions",
        examples=("blis models", "blis models llama-3.3-70b --hardware H200 --tp 2"),
    ),
    "gpus": CommandRow(
        "List the GPUs of the catalogue, or describe one: peak rates, memory, links, and where they were published.",
        "blis_sim.cli.gpus_command",
        "GpusOptions",
        examples=("blis gpus", "blis gpus H100"),
    ),
    "kernels exchanges": CommandRow(
        "Print the bytes that the GPUs of a model with experts exchange in each layer, as a table of AICB.",
        "blis_sim.cli.kernels_exchanges_command",
        "KernelsExchangesOptions",
        examples=("blis kernels exchanges qwen3-235b-a22b --tp 8",),
    ),
    "doctor": CommandRow(
        "Look at this host: timers, cores, limits, optional libraries, and whether it can hold a given load.",
        "blis_sim.cli.doctor_command",
        "DoctorOptions",
        examples=("blis doctor", "blis doctor --rate 20 --streams 100"),
    ),
    "calibrate": CommandRow(
        "Compare a recording with a simulation of it: errors, correlation, grades.",
        "calibrate.command",
        "CalibrateOptions",
        has_other_syntax=True,
        examples=(
            "blis calibrate trace.yaml",
            "blis calibrate trace.yaml --hardware H100 --coefficients coefficients.yaml",
            "blis calibrate trace.yaml --sim-results results.json --itl-data trace.itl.csv --html calibration.html",
        ),
    ),
    "loop": CommandRow(
        "Put load on a server, record it, replay the recording and grade the replay.",
        "blis_sim.bench.loop_command",
        "LoopOptions",
        has_other_syntax=True,
        examples=(
            "blis loop --url http://localhost:8000",
            "blis loop --url http://localhost:8000 --rate 4 --num-requests 200 --hardware H100 --fail-over e2e=5",
        ),
        first=("--url", *_LOAD, "--output", "--fail-over"),
    ),
    "calibrate --watch": CommandRow(
        "Compare the last minutes of a live server with a prediction of them, every minute, until they differ.",
        "blis_sim.bench.watch_command",
        "WatchOptions",
        examples=(
            "blis calibrate --watch --url http://localhost:8000/metrics --model qwen/qwen3-14b --html drift.html",
        ),
        first=("--url", "--model", *_DEPLOYMENT, "--html"),
    ),
}


def commands_in(group: str) -> list[str]:
    """Return the commands whose names begin with this word; all commands for an empty word.

    Those of other packages come last, without those that cannot be loaded.
    """
    return [name for name in COMMANDS.names() if (not group or name.startswith(f"{group} ")) and _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        return name in COMMANDS
    except OptionError:
        return False
