"""`blis bench latency`: the time of one batch on an otherwise idle engine."""

from dataclasses import dataclass
from math import inf

from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.options import check_outputs, option, section, written_file
from blis_sim.options.option import MOST_REQUESTS
from blis_sim.options.printing import check_printed, format_option, json_option

__all__ = ["LatencyOptions", "rewritten", "run"]

PERCENTS = (10, 25, 50, 75, 90, 99)
_SWITCHES = ("--disable-detokenize", "--trust-remote-code", "--disable-tqdm")
_VALUED = ("--tokenizer", "--tokenizer-mode", "--seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDeploymentOptions(DeploymentOptions):
    """The engine of `blis bench latency`, which by default computes the same batch anew each time."""

    enable_prefix_caching: bool = option(
        False, "Keep a prefix cache, so each batch finds the equal prompts of the batch before it."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyOptions:
    """The settings of `blis bench latency`: the batch and the engine."""

    deployment: BatchDeploymentOptions = section(BatchDeploymentOptions)
    input_len: int = option(32, "Prompt tokens of each request.", at_least=1, heading="Batch")
    output_len: int = option(128, "Output tokens of each request.", at_least=1)
    batch_size: int = option(8, "Requests in the batch.", at_least=1, at_most=MOST_REQUESTS)
    num_iters_warmup: int = option(
        10, "Number of batches to compute before the measured ones.", at_least=0, at_most=MOST_REQUESTS
    )
    num_iters: int = option(30, "Number of batches to measure.", at_least=1, at_most=MOST_REQUESTS)
    output_json: str | None = written_file("offline results", "Write the results here (JSON).")
    format: str = format_option(
        "What standard output gets: the text that vLLM prints, or the results as JSON, CSV, Markdown or an HTML page."
    )
    json: bool = json_option()

    def __post_init__(self) -> None:
        check_printed(self)
        self.deployment.check_coefficients()
        check_outputs(self)


def rewritten(arguments: list[str]) -> list[str]:
    """A command line of `vllm bench latency` in our syntax. Raises OptionError."""
    from blis_sim.bench.vllm_syntax import rewritten as in_our_syntax
    from blis_sim.bench.vllm_syntax import without_effect

    flags = without_effect(_SWITCHES, _VALUED)
    return in_our_syntax("bench latency", arguments, LatencyOptions, flags, with_engine=True)


def run(options: LatencyOptions) -> int:
    """Simulate, print what vLLM prints, write the results."""
    import numpy as np

    from blis_sim.bench.datasets import SampleRequest, load_of_samples
    from blis_sim.bench.offline import check_fits, longest_s, offline_engine, report_results
    from traces.load import load_text

    offline = offline_engine("blis bench latency", options.deployment)
    batch = [
        SampleRequest(
            input_tokens=0,
            output_tokens=options.output_len,
            prefix_group=f"prompt-{number}",
            prefix_tokens=options.input_len,
        )
        for number in range(options.batch_size)
    ]
    check_fits(batch, offline.config)
    latencies_s = [
        longest_s(offline.run(batch, iteration * options.batch_size))
        for iteration in range(options.num_iters_warmup + options.num_iters)
    ]
    counted = np.array(latencies_s[options.num_iters_warmup :])
    percentiles = np.percentile(counted, PERCENTS)
    load = load_of_samples(batch, inf)
    results = {
        "model_id": options.deployment.model,
        "avg_latency": float(counted.mean()),
        "latencies": counted.tolist(),
        "percentiles": dict(zip(map(str, PERCENTS), percentiles.tolist(), strict=True)),
    }
    lines = [f"Avg latency: {counted.mean()} seconds"]
    lines += [
        f"{percent}% percentile latency: {value} seconds" for percent, value in zip(PERCENTS, percentiles, strict=True)
    ]
    report_results("blis bench latency", options, offline, results, [*lines, load_text(load)])
    return 0
