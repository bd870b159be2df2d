"""`blis bench serve`: put the load of a benchmark on a server, print and save the results."""

from blis_sim.bench.serve_options import BenchServeOptions

__all__ = ["BenchServeOptions", "rewritten", "run"]

_LISTS = ("--goodput", "--header", "--metadata", "--lora-modules")
_SINGLE = ("--request-rate", "--percentile-metrics", "--metric-percentiles")
"""Lists of which `vllm bench serve` takes one text, so that of several texts the last one counts."""
_SWITCHES = ("--disable-tqdm", "--trust-remote-code", "--skip-tokenizer-init", "--skip-chat-template", "--no-stream")
_VALUED = ("--tokenizer-mode", "--chat-template-kwargs", "--timeline-itl-thresholds")


def rewritten(arguments: list[str]) -> list[str]:
    """A command line of `vllm bench serve` in our syntax. Raises OptionError."""
    from blis_sim.bench.vllm_syntax import lists, texts, without_effect
    from blis_sim.bench.vllm_syntax import rewritten as in_our_syntax

    flags = [*lists(*_LISTS), *texts(*_SINGLE), *without_effect(_SWITCHES, _VALUED)]
    return in_our_syntax("bench serve", arguments, BenchServeOptions, flags)


def run(options: BenchServeOptions) -> int:
    """Run each rate, print its table, save requested files. Exit codes: 0 done, 1 no request succeeded."""
    from blis_sim.bench.datasets import samples_of
    from blis_sim.bench.serve_load import Reporter, benchmark, check_result_folder
    from observe.errors import RunError, print_message
    from observe.event_loop import allow_many_connections, run_loop

    samples = samples_of(options.dataset)
    if options.save_result or options.append_result:
        check_result_folder(options)
    reporter = Reporter(options)
    allow_many_connections()
    try:
        run_loop(benchmark(options, samples, reporter.measured))
    except RunError as error:
        print_message(f"blis bench serve: error: {error}")
        return 1
    return reporter.end()
