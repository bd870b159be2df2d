"""Files that are mutated, and the command that reads each. Their valid contents are in `sample_files/`."""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blis_sim.engine.latency.catalogue_reader import LEARNED_COEFFICIENTS
from traces import TRACE_COLUMNS

MODEL = ("--model", "qwen/qwen3-14b")
RUN = ("run", *MODEL)
REPLAY = ("replay", "t.yaml", *MODEL)
CALIBRATE = ("calibrate", "t.yaml", "--sim-results", "r.json")
FEW = ("--num-requests", "4", "--output-tokens", "8", "--output-tokens-stdev", "0")
THROUGHPUT = ("bench", "throughput", *MODEL, "--num-prompts", "3")
OBSERVE = ("observe", "--url", "http://127.0.0.1:9", "--model", "m", "--output", "out")
NUM_ROWS = 6
VARIANTS = ("-sessions", "-talk", "-triton", "-parts")
"""Ends of the names of files that are further examples of a source."""


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


def content(name: str) -> str:
    """The content of one of the files in `sample_files/`."""
    return (Path(__file__).parent / "sample_files" / name).read_text(encoding="utf-8")


def _row(number: int) -> list[Any]:
    sent_us = 1_000_000 + 50_000 * number
    given: dict[str, Any] = {
        "request_id": number, "client_id": f"client-{number % 2}", "slo_class": "standard",
        "session_id": f"s{number // 2}", "round_index": number % 2, "prefix_group": "" if number % 3 else "g",
        "prefix_length": 0 if number % 3 else 16, "streaming": "true", "input_tokens": 40 + number,
        "output_tokens": 5 + number, "reason_ratio": 0.25, "deadline_us": 900_000_000,
        "arrival_time_us": 50_000 * number, "send_time_us": sent_us, "first_chunk_time_us": sent_us + 30_000,
        "last_chunk_time_us": sent_us + 100_000, "num_chunks": 5 + number, "status": "ok", "finish_reason": "length",
    }  # fmt: skip
    return [given.get(column.name, 0 if column.kind in (int, float) else "") for column in TRACE_COLUMNS]


def trace_rows() -> str:
    """The rows of a trace, with a cell in every column there is."""
    text = io.StringIO()
    rows = [[column.name for column in TRACE_COLUMNS], *map(_row, range(NUM_ROWS))]
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def samples() -> list[FileSample]:
    """All samples, in a fixed order."""
    return [*_traces(), *_specs(), *_descriptions(), *_sources(), *_datasets(), *_playback(), *_folders()]


def _traces() -> Iterator[FileSample]:
    rows, header = {"t.csv": trace_rows()}, {"t.yaml": content("trace.yaml")}
    results, times = {"r.json": content("results.json")}, {"t.itl.csv": content("token-times.csv")}
    all_outputs = ("--results-path", "out.json", "--metrics-path", "m.json", "--trace-output", "out")
    vast = ("--total-kv-blocks", "100000000", "--max-model-len", "1000000000")
    compose = ("compose", "--from", "t.yaml", "--from", "t.yaml", "--output", "out")
    for name, command, others, weight in (
        ("trace rows", REPLAY, header, 30),
        ("trace rows, closed loop", (*REPLAY, "--session-mode", "closed-loop"), header, 6),
        ("trace rows, all outputs", (*REPLAY, *all_outputs), header, 6),
        ("trace rows, vast cache", (*REPLAY, *vast), header, 6),
        ("calibrated rows", CALIBRATE, header | results, 8),
        ("composed rows", compose, header, 4),
        ("sent rows", (*OBSERVE, "--trace", "t.yaml"), header, 4),
    ):
        yield FileSample(name, "csv", "t.csv", rows["t.csv"], command, others, weight)
    yield FileSample("trace header", "yaml", "t.yaml", header["t.yaml"], REPLAY, rows, 12)
    yield FileSample("composed header", "yaml", "t.yaml", header["t.yaml"], compose, rows, 2)
    timed = (*CALIBRATE, "--itl-data", "t.itl.csv", "--slo-itl", "default=20ms")
    yield FileSample("token times", "csv", "t.itl.csv", times["t.itl.csv"], timed, rows | header | results, 10)
    yield FileSample("results", "json", "r.json", results["r.json"], CALIBRATE, rows | header, 12)
    metrics, whole = {"m.json": content("metrics.json")}, rows | header | results
    with_metrics = (*CALIBRATE, "--sim-metrics", "m.json")
    yield FileSample("metrics", "json", "m.json", metrics["m.json"], with_metrics, whole, 2)
    adapter = ("calibrate", "--adapter-reference", "a.json", "--sim-metrics", "m.json")
    yield FileSample("adapter", "json", "a.json", content("adapter.json"), adapter, metrics, 2)
    second = ("calibrate", "t.yaml", "--second-recording", "u.yaml", "--second-itl-data", "t.itl.csv")
    others = {**rows, **header, **times, "u.yaml": header["t.yaml"]}
    yield FileSample("second recording", "csv", "u.csv", rows["t.csv"], second, others)


def _specs() -> Iterator[FileSample]:
    spec = (*RUN, "--workload-spec", "w.yaml", "--horizon", "5000000")
    for name, file, weight in (
        ("spec", "spec", 24), ("spec with windows", "windows", 10), ("spec of users", "users", 6),
        ("spec of stages", "stages", 6), ("spec of vidur", "vidur", 8),
    ):  # fmt: skip
        yield FileSample(name, "yaml", "w.yaml", content(f"{file}.yaml"), spec, {}, weight)
    compose = ("compose", "--from", "w.yaml", "--from", "w.yaml", "--output", "out")
    yield FileSample("composed spec", "yaml", "w.yaml", content("spec.yaml"), compose)
    by_file = "length: {type: trace, trace_file: l.csv}}\n"
    lengths = {"w.yaml": content("vidur.yaml").partition("length:")[0] + by_file.replace("}}", "}")}
    yield FileSample("lengths of vidur", "csv", "l.csv", content("vidur.csv"), spec, lengths)
    yield FileSample("sent spec", "yaml", "w.yaml", content("spec.yaml"), (*OBSERVE, "--workload-spec", "w.yaml"))


def _descriptions() -> Iterator[FileSample]:
    config = (*RUN, *FEW, "--hardware", "H100", "--tp", "1", "--model-config-folder", ".")
    hardware = (*RUN, *FEW, "--hardware", "T1", "--hardware-config", "hw.json")
    for name, file, sample, command, weight in (
        ("config.json", "config.json", "config.json", config, 24),
        ("config.json, roofline", "config.json", "config.json", (*config, "--latency-model", "roofline"), 6),
        ("hardware", "hw.json", "hardware.json", hardware, 6),
        ("hardware, roofline", "hw.json", "hardware.json", (*hardware, "--latency-model", "roofline"), 6),
    ):
        yield FileSample(name, "json", file, content(sample), command, {}, weight)
    fitted = (*RUN, *FEW, "--latency-model", "fitted", "--coefficients", "c.yaml")
    yield FileSample("coefficients", "yaml", "c.yaml", LEARNED_COEFFICIENTS.read_text(), fitted, {}, 12)
    policies = (*RUN, *FEW, "--policy-config", "p.yaml")
    yield FileSample("policies", "yaml", "p.yaml", content("policies.yaml"), policies, {}, 14)
    yield FileSample("autoscaler", "yaml", "p.yaml", content("scaling.yaml"), policies, {}, 10)
    saturation = (*RUN, *FEW, "--detectors", "all", "--saturation-config", "s.yaml")
    yield FileSample("saturation", "yaml", "s.yaml", content("saturation.yaml"), saturation)


def _sources() -> Iterator[FileSample]:
    kinds = {".csv": "csv", ".json": "json", ".jsonl": "lines", ".yaml": "yaml"}
    for file in (
        "azure.csv", "burstgpt.csv", "vidur.csv", "mooncake.jsonl", "mooncake-sessions.jsonl", "bailian.jsonl",
        "weka.json", "otel.json", "vllm-bench.json", "guidellm.json", "inference-perf.yaml",
        "inference-perf-talk.yaml", "aiperf.jsonl", "genai-perf.json", "genai-perf-triton.json",
        "inference-perf-results.json", "inference-perf-results-parts.json", "sglang-bench.jsonl", "sharegpt.json",
    ):  # fmt: skip
        name = Path(file).stem
        source = next((name.removesuffix(each) for each in VARIANTS if name.endswith(each)), name)
        rate = ("--rate", "2") if source == "sharegpt" else ()
        command = ("convert", source, "s", "--output", "out", *rate)
        yield FileSample(f"convert {source}", kinds[Path(file).suffix], "s", content(file), command, {}, 6)
    trace, lengths = "chunks/chunk-0-trace.csv", "chunks/chunk-0-dataset.json"
    servegen = ("convert", "servegen", "chunks", "--output", "out")
    files = {trace: content("servegen-trace.csv"), lengths: content("servegen-lengths.json")}
    yield FileSample("convert servegen", "csv", trace, files[trace], servegen, {lengths: files[lengths]})
    yield FileSample("convert servegen lengths", "json", lengths, files[lengths], servegen, {trace: files[trace]})
    mixed = content("servegen-mixed.json")
    yield FileSample("convert servegen images", "json", lengths, mixed, servegen, {trace: files[trace]})
    sweep = ("convert", "inference-perf", "s", "--output", "out", "--rate", "9")
    yield FileSample("convert inference-perf sweep", "yaml", "s", content("inference-perf-random.yaml"), sweep)
    stages = (*RUN, "--workload-spec", "s", "--num-requests", "20")
    yield FileSample("stages that wait", "yaml", "s", content("concurrent-stages.yaml"), stages)
    perf = ("convert", "inference-perf", "s", "--output", "out")
    yield FileSample("convert inference-perf spec", "yaml", "s", content("stages.yaml"), perf)


def _datasets() -> Iterator[FileSample]:
    for name, kind, file in (
        ("sharegpt", "json", "sharegpt.json"),
        ("custom", "lines", "prompts.jsonl"),
        ("burstgpt", "csv", "burstgpt.csv"),
    ):  # fmt: skip
        command = (*THROUGHPUT, "--dataset-name", name, "--dataset-path", "d")
        yield FileSample(f"data set {name}", kind, "d", content(file), command)
    sent = (*OBSERVE, "--rate", "5", "--num-requests", "3", "--prompts", "p.jsonl")
    yield FileSample("prompts", "lines", "p.jsonl", content("prompts.jsonl"), sent, {}, 2)


def _playback() -> Iterator[FileSample]:
    serve = ("serve", MODEL[1], "--host", "127.0.0.1", "--port", "0", "--total-kv-blocks", "9000", "--playback")
    yield FileSample("recorded replies", "lines", "r.jsonl", content("recording.jsonl"), (*serve, "r.jsonl"), {}, 6)
    yield FileSample("fixtures", "yaml", "f.yaml", content("fixtures.yaml"), (*serve, "f.yaml"), {}, 6)


def _folders() -> Iterator[FileSample]:
    serve = ("serve", ".", "--host", "127.0.0.1", "--port", "0", "--hardware", "H100", "--tp", "1")
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
    files = {name: content(name) for name in names}
    for name, weight in zip(names, (6, 6, 4, 2), strict=True):
        others = {other: files[other] for other in names if other != name}
        yield FileSample(f"served {name}", "json", name, files[name], serve, others, weight)
    flags = (*serve, "--config", "serve.yaml")
    yield FileSample("served flags", "yaml", "serve.yaml", content("serve.yaml"), flags, files, 2)
    counted = (*THROUGHPUT, "--dataset-name", "custom", "--dataset-path", "d", "--tokenizer", "tokenizer.json")
    prompts = {"d": content("prompts.jsonl")}
    yield FileSample("counting tokenizer", "json", "tokenizer.json", files["tokenizer.json"], counted, prompts)
