"""Rarer formats of `blis convert`, as rows of the group `blis.formats`."""

from traces.importers.registry import Format

_MODULES = "blis_sim.wings.trace_formats"

AIPERF = Format(f"{_MODULES}.nvidia:convert_records", "records of aiperf", "profile_export.jsonl")
AIPERF_DAG = Format(
    f"{_MODULES}.nvidia:convert_dag",
    "sessions of aiperf that fork, spawn and join (dag_jsonl)",
    "dag.jsonl",
    flags=("rate", "seed", "num_requests", "tokenizer"),
)
GENAI_PERF = Format(
    f"{_MODULES}.nvidia:convert_profile",
    "a profile of genai-perf",
    "profile_export.json",
    flags=("num_requests", "tokenizer"),
)
SERVEGEN = Format(
    f"{_MODULES}.servegen:convert",
    "a folder of ServeGen chunks",
    "FOLDER",
    gives_spec=True,
    flags=("time", "window_duration_seconds", "drain_timeout_seconds", "seed"),
)
BAILIAN = Format(
    f"{_MODULES}.agents:convert_bailian",
    "a trace of Alibaba's Bailian",
    "qwen_traceA_blksz_16.jsonl",
    flags=("num_requests", "block_tokens"),
)
WEKA = Format(
    f"{_MODULES}.agents:convert_weka",
    "agentic traces of Weka's KV-cache tester, a file or a folder of them",
    "trace.json",
    flags=("rate", "seed", "num_requests"),
)
OTEL = Format(
    f"{_MODULES}.agents:convert_spans",
    "OpenTelemetry spans of generative AI, OTLP's JSON or flat spans, a file or a folder of them",
    "spans.jsonl",
    flags=("num_requests", "tokenizer"),
)
SGLANG_AGENTIC = Format(
    f"{_MODULES}.sglang:convert_agentic",
    "conversations of agents as SGLang's agentic-trace has them",
    "openhands.json",
    flags=("rate", "seed", "num_requests", "tokenizer"),
)
TAP = Format(f"{_MODULES}.tap:convert", "requests that blis tap recorded at an engine", "real.link.jsonl")
SGLANG_BENCH = Format(
    f"{_MODULES}.sglang:convert_bench",
    "results of sglang.bench_serving with output details",
    "sglang_1123_100_random.jsonl",
    flags=("num_requests", "seed", "rate"),
)
