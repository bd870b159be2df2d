"""The formats of `blis convert`. Adding one is adding its row and its file."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blis_sim.options import OptionError
from blis_sim.options.registry import Registry
from traces.importers.imported import Imported

if TYPE_CHECKING:
    from traces.importers.settings import ConvertOptions


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of source. Its module offers `convert(options) -> Imported`; `flags` are those it heeds.

    A format of another package is a function in the place of the module, or an object with the function `convert`.
    """

    module: "str | Callable[[ConvertOptions], Imported]"
    help: str
    example: str
    gives_spec: bool = False
    flags: tuple[str, ...] = ("num_requests",)


FORMATS: Registry[Any] = Registry[Any]("blis.formats") | {
    "trace": Format("trace", "a trace of blis, for --to", "trace.yaml --to mooncake"),
    "preset": Format("preset", "a workload known by name", "chatbot", True, ("rate", "num_requests")),
    "servegen": Format(
        "servegen",
        "a folder of ServeGen chunks",
        "FOLDER",
        True,
        ("time", "window_duration_seconds", "drain_timeout_seconds", "seed"),
    ),
    "inference-perf": Format("inference_perf", "a configuration of inference-perf", "config.yaml", True, ()),
    "azure": Format("azure", "an Azure LLM inference trace", "AzureLLMInferenceTrace_conv.csv"),
    "burstgpt": Format("burstgpt", "a BurstGPT trace", "BurstGPT_1.csv"),
    "mooncake": Format("mooncake", "a Mooncake trace", "conversation_trace.jsonl"),
    "weka": Format(
        "weka",
        "agentic traces of Weka's KV-cache tester, a file or a folder of them",
        "trace.json",
        flags=("rate", "seed", "num_requests"),
    ),
    "aiperf-dag": Format(
        "aiperf_dag",
        "sessions of aiperf that fork, spawn and join (dag_jsonl)",
        "dag.jsonl",
        flags=("rate", "seed", "num_requests", "tokenizer"),
    ),
    "sglang-agentic": Format(
        "sglang_agentic",
        "conversations of agents as SGLang's agentic-trace has them",
        "openhands.json",
        flags=("rate", "seed", "num_requests", "tokenizer"),
    ),
    "otel": Format("otel", "OpenTelemetry spans of generative AI (OTLP's JSON)", "spans.jsonl"),
    "sharegpt": Format(
        "sharegpt",
        "ShareGPT conversations",
        "ShareGPT.json --rate 2",
        flags=("rate", "seed", "num_requests", "tokenizer", "think_time_ms"),
    ),
    "vidur": Format("vidur", "a trace of Vidur", "splitwise_conv.csv", flags=("rate", "seed", "num_requests")),
    "vllm-bench": Format("vllm_bench", "results of vllm bench serve --save-detailed", "openai-2qps.json"),
    "guidellm": Format("guidellm", "results of guidellm", "benchmarks.json"),
    "aiperf": Format("aiperf", "records of aiperf", "profile_export.jsonl"),
    "genai-perf": Format(
        "genai_perf", "a profile of genai-perf", "profile_export.json", flags=("num_requests", "tokenizer")
    ),
    "inference-perf-results": Format(
        "inference_perf_results", "requests of a report of inference-perf", "per_request_lifecycle_metrics.json"
    ),
    "sglang-bench": Format(
        "sglang_bench",
        "results of sglang.bench_serving with output details",
        "sglang_1123_100_random.jsonl",
        flags=("num_requests", "seed", "rate"),
    ),
}


def format_of(name: str) -> Format:
    """The format of a name. Raises KeyError for one that is not known, OptionError for one that cannot be loaded."""
    row = FORMATS[name]
    if isinstance(row, Format):
        return row
    reader = getattr(row, "convert", row)
    if not callable(reader):
        raise OptionError(f"{name}: the format has no function convert(options) to read with")
    return Format(reader, "a format of another package", "FILE", flags=tuple(flags_of()))


def flags_of() -> dict[str, list[str]]:
    """For each flag that not all formats heed those that do."""
    names = dict.fromkeys(flag for kind in FORMATS.values() for flag in kind.flags)
    return {name: [label for label, kind in FORMATS.items() if name in kind.flags] for name in names}


def import_from(options: "ConvertOptions") -> Imported:
    """Convert what the options name. Raises BlisError."""
    importer = format_of(options.format).module
    if isinstance(importer, str):
        importer = importlib.import_module(f"traces.importers.{importer}").convert
    imported: Imported = importer(options)
    return imported
