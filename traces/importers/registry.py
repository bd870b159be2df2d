"""The formats of `blis convert` and its settings. Adding a format is adding its row and its file."""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from blis_sim.options import OptionError, check_options, check_written, option, section
from blis_sim.options.option import LEAST_RATE, MOST_RATE
from blis_sim.options.registry import Registry
from blis_sim.options.without_effect import DefaultsOptions
from traces.exporters import EXPORTERS, exporter_of
from traces.graph import renumbered
from traces.rows import TraceRow
from traces.trace_v2 import TraceHeader

if TYPE_CHECKING:
    from traces.workload.spec import WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A workload spec, or a header with rows and perhaps chunk times per request (Unix microseconds).

    `left_out` counts what has no place in the result, by reason; `notes` name what else is not as it was.
    """

    spec: "WorkloadSpec | None" = None
    header: TraceHeader = field(default_factory=TraceHeader)
    rows: Sequence[TraceRow] = ()
    chunks: Mapping[int, Sequence[int]] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the recorded server, for the file beside the header."""


def in_order(rows: Iterable[TraceRow]) -> list[TraceRow]:
    """The rows by arrival, the first at 0, numbered from 0."""
    by_arrival = sorted(rows, key=lambda row: row.arrival_time_us)
    start_us = by_arrival[0].arrival_time_us if by_arrival else 0
    ids = {row.request_id: number for number, row in enumerate(by_arrival)}
    return [
        replace(renumbered(row, number, ids), arrival_time_us=row.arrival_time_us - start_us)
        for number, row in enumerate(by_arrival)
    ]


def recording(
    options: "ConvertOptions",
    requests: Iterable[tuple[TraceRow, Sequence[int]]],
    notes: tuple[str, ...] = (),
    left_out: Mapping[str, int] = MappingProxyType({}),
) -> Imported:
    """A recording of requests with their chunk times, in order of arrival; a time of arrival of 0 is that of sending.

    A session of one request is none. `left_out` counts by reason. At most --num-requests are taken.
    """
    found = [(replace(row, arrival_time_us=row.arrival_time_us or row.send_time_us), times) for row, times in requests]
    conversations = {row.session_id for row, _ in found if row.round_index}
    found = [
        (row if row.session_id in conversations else replace(row, session_id="", round_index=0), times)
        for row, times in found
    ]
    found.sort(key=lambda each: each[0].arrival_time_us)
    kept = found[: options.num_requests]
    start_us = kept[0][0].arrival_time_us if kept else 0
    return Imported(
        header=TraceHeader(time_unit="us", mode="real", workload_spec=options.path.name),
        rows=[
            replace(row, request_id=number, arrival_time_us=row.arrival_time_us - start_us)
            for number, (row, _) in enumerate(kept)
        ],
        chunks={number: times for number, (_, times) in enumerate(kept) if times},
        left_out={**left_out, "requests beyond --num-requests": len(found) - len(kept)},
        notes=notes,
    )


def workload_header(source: str) -> TraceHeader:
    """Return the header of rows without recorded replies."""
    return TraceHeader(mode="generated", workload_spec=source)


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of source, and the flags that act on it.

    `module` is a module with the function `convert(options) -> Imported`, or `module:function`; a module without a dot
    is one of this folder. An entry point names such a row, the function, or an object with the function `convert`.
    """

    module: "str | Callable[[ConvertOptions], Imported]"
    help: str
    example: str
    gives_spec: bool = False
    flags: tuple[str, ...] = ("num_requests",)


_FLAGS = (
    *("num_requests", "rate", "seed", "time", "window_duration_seconds", "drain_timeout_seconds"),
    *("tokenizer", "session_prompts", "block_tokens", "think_time_ms"),
)
"""The settings that only some formats heed."""

FORMATS: Registry[Any] = Registry[Any]("blis.formats") | {
    "trace": Format("own:convert_trace", "a trace of blis, for --to", "trace.yaml --to mooncake"),
    "preset": Format("own:convert_preset", "a workload known by name", "chatbot", True, ("rate", "num_requests")),
    "inference-perf": Format("inference_perf", "a configuration of inference-perf", "config.yaml", True, ("rate",)),
    "azure": Format("azure", "an Azure LLM inference trace", "AzureLLMInferenceTrace_conv.csv"),
    "burstgpt": Format("burstgpt", "a BurstGPT trace", "BurstGPT_1.csv"),
    "mooncake": Format(
        "mooncake",
        "a Mooncake trace, also with AIPerf's sessions",
        "conversation_trace.jsonl",
        flags=("num_requests", "session_prompts", "block_tokens", "tokenizer"),
    ),
    "sharegpt": Format(
        "sharegpt",
        "ShareGPT conversations",
        "ShareGPT.json --rate 2",
        flags=("rate", "seed", "num_requests", "tokenizer", "think_time_ms"),
    ),
    "vidur": Format("vidur", "a trace of Vidur", "splitwise_conv.csv", flags=("rate", "seed", "num_requests")),
    "vllm-bench": Format("vllm_bench", "results of vllm bench serve --save-detailed", "openai-2qps.json"),
    "guidellm": Format("guidellm", "results of guidellm", "benchmarks.json"),
    "inference-perf-results": Format(
        "inference_perf_results", "requests of a report of inference-perf", "per_request_lifecycle_metrics.json"
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
    return Format(reader, "a format of another package", "FILE", flags=_FLAGS)


def _formats_with(flag: str) -> list[str]:
    """The names of the formats that heed a flag, those of installed packages included."""
    rows = {name: FORMATS[name] for name in FORMATS.names()}
    return [name for name, row in rows.items() if isinstance(row, Format) and flag in row.flags]


def import_from(options: "ConvertOptions") -> Imported:
    """Convert what the options name. Raises BlisError."""
    importer = format_of(options.format).module
    if isinstance(importer, str):
        module, _, function = importer.partition(":")
        place = module if "." in module else f"traces.importers.{module}"
        importer = getattr(importlib.import_module(place), function or "convert")
    imported: Imported = importer(options)
    return imported


_TIMES = ("midnight", "morning", "afternoon")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """One run of `blis convert`. Raises OptionError for settings that do not fit together."""

    format: str = option(
        help="What to convert from.",
        positional=True,
        choices=FORMATS.names,
        open_to=lambda: FORMATS,
        metavar="FORMAT",
    )
    file: str | None = option(
        None, "The file or folder to convert; with preset, its name.", positional=True, metavar="FILE"
    )
    source: str | None = option(None, "Another way to give FILE.", flags=("--path", "--spec", "--name"), hidden=True)
    defaults: DefaultsOptions = section(DefaultsOptions)
    output: str | None = option(
        None,
        "Write a trace to PREFIX.yaml, PREFIX.csv and, where there are token times, PREFIX.itl.csv; a workload spec to"
        " this very file. Default for specs: standard output.",
        flags=("--output", "-o"),
        metavar="PREFIX",
    )
    to: str | None = option(
        None,
        "Write the requests to the file --output in this format of another program, instead of a trace.",
        choices=EXPORTERS,
        open_to=lambda: EXPORTERS,
        metavar="FORMAT",
    )
    num_requests: int | None = option(
        None, "How many requests a preset has (default 100), or how many of a file to take (default all).", at_least=1
    )
    rate: float | None = option(
        None,
        "Requests per second of a preset (default 1), or of a file that has no arrival times. With a configuration of"
        " inference-perf the rate that its sweep goes up to.",
        above=0,
        at_least=LEAST_RATE,
        at_most=MOST_RATE,
    )
    seed: int = option(42, "Seed of what is drawn: arrival times at --rate, the classes of ServeGen clients.")
    time: str | None = option(None, "The one period of a ServeGen folder to take. Default: all.", choices=_TIMES)
    window_duration_seconds: int = option(600, "How long each ServeGen period lasts.", at_least=1)
    drain_timeout_seconds: int = option(180, "The pause behind each ServeGen period.", at_least=0)
    tokenizer: str | None = option(None, "A tokenizer.json to count the tokens of texts with.", metavar="FILE")
    session_prompts: str = option(
        "new",
        "Whether the lengths of Mooncake rows with a session_id are those that a turn adds, or of whole prompts. "
        "AIPerf reads and writes those that a turn adds. --to mooncake writes what a turn adds.",
        choices=("new", "whole"),
    )
    block_tokens: int | None = option(
        None,
        "How many tokens each hash of a prompt's blocks stands for. Default: 512 of Mooncake, 16 of Bailian.",
        at_least=1,
    )
    think_time_ms: float = option(0.0, "Pause between the rounds of a ShareGPT conversation.", at_least=0)

    def __post_init__(self) -> None:
        check_options(self)
        if (self.file is None) == (self.source is None):
            raise OptionError(f"blis convert {self.format} needs one file, folder or name, as in: {self._example}")
        kind = format_of(self.format)
        for name in _FLAGS:
            default = type(self).__dataclass_fields__[name].default
            if name not in kind.flags and getattr(self, name) != default:
                flag = "--" + name.replace("_", "-")
                formats = ", ".join(_formats_with(name))
                raise OptionError(f"{flag} has no meaning with {self.format}, only with {formats}")
        self._check_output(kind)

    def _check_output(self, kind: Format) -> None:
        if self.to is not None:
            exporter_of(self.to)
        if self.to is not None and kind.gives_spec:
            raise OptionError(f"--to needs requests, {self.format} becomes a workload spec")
        if self.to is None and self.format == "trace":
            raise OptionError(f"--to is required with trace, one of {', '.join(EXPORTERS)}")
        if self.output is None and self.to is not None:
            raise OptionError("--output is required with --to, the file to write")
        if self.output is None and not kind.gives_spec:
            raise OptionError(f"--output is required with {self.format}, whose result is a trace of several files")
        endings = {".yaml": "header", ".csv": "rows", ".itl.csv": "token times", ".server.yaml": "settings"}
        if kind.gives_spec:
            endings = {"": "spec"}
        if self.to is not None:
            endings = {"": "requests"}
        written = [(f"{self.output}{ending}", "--output", kind) for ending, kind in endings.items()]
        check_written(
            written if self.output else [],
            [(self.name, "is to be converted"), (self.tokenizer or "", "--tokenizer reads")],
        )

    @property
    def name(self) -> str:
        """The file, folder or preset as given."""
        return self.file or self.source or ""

    @property
    def path(self) -> Path:
        """The file or folder."""
        return Path(self.name)

    @property
    def _example(self) -> str:
        kind = format_of(self.format)
        ending = "" if kind.gives_spec else " --output imported"
        return f"blis convert {self.format} {kind.example}{ending}"
