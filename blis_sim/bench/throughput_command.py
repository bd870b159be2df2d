"""`blis bench throughput`: the throughput of the engine when all requests arrive at once."""

from dataclasses import dataclass
from math import inf

from blis_sim.bench.datasets import DatasetOptions
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.options import check_outputs, option, section, written_file
from blis_sim.options.option import MOST_REQUESTS
from blis_sim.options.printing import check_printed, format_option, json_option

__all__ = ["ThroughputOptions", "rewritten", "run"]

_SWITCHES = ("--async-engine", "--prequeue-requests", "--disable-detokenize", "--trust-remote-code", "--disable-tqdm")
_VALUED = ("--backend", "--tokenizer-mode")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputOptions:
    """The settings of `blis bench throughput`: the requests and the engine."""

    deployment: DeploymentOptions = section(DeploymentOptions)
    dataset: DatasetOptions = section(DatasetOptions)
    num_warmups: int = option(
        0,
        "Number of requests to compute before the measured ones.",
        at_least=0,
        at_most=MOST_REQUESTS,
        heading="Measuring",
    )
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
    """A command line of `vllm bench throughput` in our syntax. Raises OptionError."""
    from blis_sim.bench.vllm_syntax import rewritten as in_our_syntax
    from blis_sim.bench.vllm_syntax import without_effect

    flags = without_effect(_SWITCHES, _VALUED)
    return in_our_syntax("bench throughput", arguments, ThroughputOptions, flags, with_engine=True)


def run(options: ThroughputOptions) -> int:
    """Simulate, print what vLLM prints, write the results."""
    from dataclasses import replace

    from blis_sim.bench.datasets import load_of_samples, samples_of
    from blis_sim.bench.offline import check_fits, longest_s, offline_engine, report_results
    from traces.load import load_text

    offline = offline_engine("blis bench throughput", options.deployment)
    samples = samples_of(options.dataset)
    check_fits(samples, offline.config)
    if options.num_warmups:
        # Warm-up prompts differ from measured ones, which would otherwise be in the prefix cache already.
        dataset = replace(options.dataset, num_prompts=options.num_warmups, seed=options.dataset.seed + 1)
        warm_up = samples_of(dataset)
        check_fits(warm_up, offline.config)
        offline.run(warm_up, len(samples))
    elapsed_s = longest_s(offline.run(samples))
    num_prompt = sum(sample.prompt_tokens for sample in samples)
    num_output = sum(sample.output_tokens for sample in samples)
    load = load_of_samples(samples, inf)
    results = {
        "model_id": options.deployment.model,
        "elapsed_time": elapsed_s,
        "num_requests": len(samples),
        "total_num_tokens": num_prompt + num_output,
        "requests_per_second": len(samples) / elapsed_s,
        "tokens_per_second": (num_prompt + num_output) / elapsed_s,
    }
    lines = [
        f"Throughput: {len(samples) / elapsed_s:.2f} requests/s, {(num_prompt + num_output) / elapsed_s:.2f} total"
        f" tokens/s, {num_output / elapsed_s:.2f} output tokens/s",
        f"Total num prompt tokens:  {num_prompt}",
        f"Total num output tokens:  {num_output}",
        load_text(load),
    ]
    report_results("blis bench throughput", options, offline, results, lines)
    return 0
