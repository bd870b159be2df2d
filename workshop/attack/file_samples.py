"""Files that are mutated, and the command that reads each."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from blis_sim.engine.latency.catalogue.reader import LEARNED_COEFFICIENTS
from workshop.attack import file_contents as contents
from workshop.attack import file_recordings

MODEL = ("--model", "qwen/qwen3-14b")
RUN = ("run", *MODEL)
REPLAY = ("replay", "t.yaml", *MODEL)
CALIBRATE = ("calibrate", "t.yaml", "--sim-results", "r.json")
FEW = ("--num-requests", "4", "--output-tokens", "8", "--output-tokens-stdev", "0")
THROUGHPUT = ("bench", "throughput", *MODEL, "--num-prompts", "3")


@dataclass(frozen=True, slots=True)
class FileSample:
    """A file that is mutated, the others that belong to it, and the command that reads all of them.

    `kind` is csv, json, lines (of JSON) or yaml, which is how the file is taken apart. `weight` is how often the file
    is attacked, compared with others.
    """

    name: str
    kind: str
    file: str
    content: str
    command: tuple[str, ...]
    others: Mapping[str, str] = field(default_factory=dict)
    weight: int = 4


def samples() -> list[FileSample]:
    """All samples, in a fixed order."""
    return [*_traces(), *_specs(), *_descriptions(), *_sources(), *_datasets(), *_folders()]


def _traces() -> Iterator[FileSample]:
    trace = contents.TRACE
    rows, header = {"t.csv": trace["t.csv"]}, {"t.yaml": trace["t.yaml"]}
    results, times = {"r.json": contents.RESULTS}, {"t.itl.csv": contents.TOKEN_TIMES}
    yield FileSample("trace header", "yaml", "t.yaml", trace["t.yaml"], REPLAY, rows, 12)
    yield FileSample("trace rows", "csv", "t.csv", trace["t.csv"], REPLAY, header, 30)
    closed = (*REPLAY, "--session-mode", "closed-loop")
    yield FileSample("trace rows, closed loop", "csv", "t.csv", trace["t.csv"], closed, header, 6)
    many = (*REPLAY, "--results-path", "out.json", "--metrics-path", "m.json", "--trace-output", "out")
    yield FileSample("trace rows, all outputs", "csv", "t.csv", trace["t.csv"], many, header, 6)
    unlimited = (*REPLAY, "--total-kv-blocks", "100000000", "--max-model-len", "1000000000")
    yield FileSample("trace rows, vast cache", "csv", "t.csv", trace["t.csv"], unlimited, header, 6)
    times_of = (*CALIBRATE, "--itl-data", "t.itl.csv", "--slo-itl", "default=20ms")
    yield FileSample("token times", "csv", "t.itl.csv", contents.TOKEN_TIMES, times_of, trace | results, 10)
    yield FileSample("results", "json", "r.json", contents.RESULTS, CALIBRATE, trace, 12)
    yield FileSample("calibrated rows", "csv", "t.csv", trace["t.csv"], CALIBRATE, header | results, 8)
    metrics = (*CALIBRATE, "--sim-metrics", "m.json")
    yield FileSample("metrics", "json", "m.json", contents.METRICS, metrics, trace | results, 2)
    adapter = ("calibrate", "--adapter-reference", "a.json", "--sim-metrics", "m.json")
    yield FileSample("adapter", "json", "a.json", contents.REFERENCE, adapter, {"m.json": contents.METRICS}, 2)
    compose = ("compose", "--from", "t.yaml", "--from", "t.yaml", "--output", "out")
    yield FileSample("composed rows", "csv", "t.csv", trace["t.csv"], compose, header)
    yield FileSample("composed header", "yaml", "t.yaml", trace["t.yaml"], compose, rows, 2)
    second = ("calibrate", "t.yaml", "--second-recording", "u.yaml", "--second-itl-data", "t.itl.csv")
    others = {**trace, **times, "u.yaml": trace["t.yaml"]}
    yield FileSample("second recording", "csv", "u.csv", trace["t.csv"], second, others)


def _specs() -> Iterator[FileSample]:
    spec = (*RUN, "--workload-spec", "w.yaml", "--horizon", "5000000")
    for name, text, weight in (
        ("spec", contents.SPEC, 24),
        ("spec with windows", contents.WINDOWS, 10),
        ("spec of users", contents.USERS, 6),
        ("spec of stages", contents.STAGES, 6),
        ("spec of vidur", contents.VIDUR_SPEC, 8),
    ):
        yield FileSample(name, "yaml", "w.yaml", text, spec, {}, weight)
    compose = ("compose", "--from", "w.yaml", "--from", "w.yaml", "--output", "out")
    yield FileSample("composed spec", "yaml", "w.yaml", contents.SPEC, compose)
    traced = contents.VIDUR_SPEC.replace("zipf, min_tokens: 10", "trace, trace_file: l.csv").partition(", max_tokens")[
        0
    ]
    lengths = {"w.yaml": f"{traced}}}\n"}
    yield FileSample("lengths of vidur", "csv", "l.csv", contents.VIDUR, spec, lengths)
    observe = ("observe", "--url", "http://127.0.0.1:9", "--model", "m", "--output", "out", "--workload-spec", "w.yaml")
    yield FileSample("sent spec", "yaml", "w.yaml", contents.SPEC, observe)


def _descriptions() -> Iterator[FileSample]:
    config = (*RUN, *FEW, "--hardware", "H100", "--tp", "1", "--model-config-folder", ".")
    text = json.dumps(contents.CONFIG, indent=1)
    yield FileSample("config.json", "json", "config.json", text, config, {}, 24)
    roofline = (*config, "--latency-model", "roofline")
    yield FileSample("config.json, roofline", "json", "config.json", text, roofline, {}, 6)
    hardware = (*RUN, *FEW, "--hardware", "T1", "--hardware-config", "hw.json")
    yield FileSample("hardware", "json", "hw.json", json.dumps(contents.HARDWARE, indent=1), hardware, {}, 6)
    rates = (*hardware, "--latency-model", "roofline")
    yield FileSample("hardware, roofline", "json", "hw.json", json.dumps(contents.HARDWARE, indent=1), rates, {}, 6)
    fitted = (*RUN, *FEW, "--latency-model", "fitted", "--coefficients", "c.yaml")
    yield FileSample("coefficients", "yaml", "c.yaml", LEARNED_COEFFICIENTS.read_text(), fitted, {}, 12)
    policies = (*RUN, *FEW, "--policy-config", "p.yaml")
    yield FileSample("policies", "yaml", "p.yaml", contents.POLICIES, policies, {}, 14)
    yield FileSample("autoscaler", "yaml", "p.yaml", contents.SCALING, policies, {}, 10)
    saturation = (*RUN, *FEW, "--detectors", "all", "--saturation-config", "s.yaml")
    yield FileSample("saturation", "yaml", "s.yaml", contents.SATURATION, saturation)


def _sources() -> Iterator[FileSample]:
    for source, kind, text in (
        ("azure", "csv", contents.AZURE),
        ("burstgpt", "csv", contents.BURSTGPT),
        ("vidur", "csv", contents.VIDUR),
        ("mooncake", "lines", contents.MOONCAKE),
        ("vllm-bench", "json", contents.VLLM_BENCH),
        ("guidellm", "json", contents.GUIDELLM),
        ("inference-perf", "yaml", contents.INFERENCE_PERF),
        ("aiperf", "lines", file_recordings.AIPERF),
        ("genai-perf", "json", file_recordings.GENAI_PERF),
        ("inference-perf-results", "json", file_recordings.INFERENCE_PERF_RESULTS),
        ("sglang-bench", "lines", file_recordings.SGLANG_BENCH),
    ):
        yield FileSample(f"convert {source}", kind, "s", text, ("convert", source, "s", "--output", "out"), {}, 6)
    sharegpt = ("convert", "sharegpt", "s", "--output", "out", "--rate", "2")
    yield FileSample("convert sharegpt", "json", "s", contents.SHAREGPT, sharegpt, {}, 6)
    trace, lengths = "chunks/chunk-0-trace.csv", "chunks/chunk-0-dataset.json"
    servegen = ("convert", "servegen", "chunks", "--output", "out")
    files = {trace: contents.SERVEGEN_TRACE, lengths: contents.SERVEGEN_LENGTHS}
    yield FileSample("convert servegen", "csv", trace, files[trace], servegen, {lengths: files[lengths]})
    yield FileSample("convert servegen lengths", "json", lengths, files[lengths], servegen, {trace: files[trace]})
    perf = ("convert", "inference-perf", "s", "--output", "out")
    yield FileSample("convert inference-perf spec", "yaml", "s", contents.STAGES, perf)


def _datasets() -> Iterator[FileSample]:
    for name, kind, text in (
        ("sharegpt", "json", contents.SHAREGPT),
        ("custom", "lines", contents.PROMPTS),
        ("burstgpt", "csv", contents.BURSTGPT),
    ):
        command = (*THROUGHPUT, "--dataset-name", name, "--dataset-path", "d")
        yield FileSample(f"data set {name}", kind, "d", text, command)
    observe = ("observe", "--url", "http://127.0.0.1:9", "--model", "m", "--output", "out")
    sent = (*observe, "--rate", "5", "--num-requests", "3", "--prompts", "p.jsonl")
    yield FileSample("prompts", "lines", "p.jsonl", contents.PROMPTS, sent, {}, 2)
    again = (*observe, "--trace", "t.yaml")
    yield FileSample("sent rows", "csv", "t.csv", contents.TRACE["t.csv"], again, {"t.yaml": contents.TRACE["t.yaml"]})


def _folders() -> Iterator[FileSample]:
    serve = ("serve", ".", "--host", "127.0.0.1", "--port", "0", "--hardware", "H100", "--tp", "1")
    files = {
        "config.json": json.dumps(contents.CONFIG, indent=1),
        "tokenizer.json": json.dumps(contents.tokenizer(), indent=1),
        "tokenizer_config.json": json.dumps(contents.TOKENIZER_CONFIG, indent=1),
        "generation_config.json": json.dumps(contents.GENERATION_CONFIG, indent=1),
        "serve.yaml": contents.SERVE_FLAGS,
    }
    for name, weight in (("config.json", 6), ("tokenizer.json", 6), ("tokenizer_config.json", 4)):
        others = {other: files[other] for other in files if other not in (name, "serve.yaml")}
        yield FileSample(f"served {name}", "json", name, files[name], serve, others, weight)
    others = {name: text for name, text in files.items() if name != "generation_config.json"}
    name = "generation_config.json"
    yield FileSample(f"served {name}", "json", name, files[name], serve, others, 2)
    others = {name: text for name, text in files.items() if name != "serve.yaml"}
    flags = (*serve, "--config", "serve.yaml")
    yield FileSample("served flags", "yaml", "serve.yaml", files["serve.yaml"], flags, others, 2)
    counted = (*THROUGHPUT, "--dataset-name", "custom", "--dataset-path", "d", "--tokenizer", "tokenizer.json")
    prompts = {"d": contents.PROMPTS}
    yield FileSample("counting tokenizer", "json", "tokenizer.json", files["tokenizer.json"], counted, prompts)
