"""`blis compose`: several workload specs, or several traces, as one."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_sim.options import OptionError, check_options, check_written, option

__all__ = ["ComposeOptions", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposeOptions:
    """One run of `blis compose`. Raises OptionError."""

    sources: tuple[str, ...] = option(
        help="A workload spec, or the header of a trace; give it once for each.",
        flags=("--from",),
        metavar="FILE",
        repeatable=True,
    )
    output: str | None = option(
        None,
        "Write the spec to this file (default: standard output), or the trace to PREFIX.yaml and PREFIX.csv.",
        flags=("--output", "-o"),
        metavar="PREFIX",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if not self.sources:
            raise OptionError("--from is required, once for each file")
        if self.output is None:
            return
        from traces import beside

        # Which of them is only known from the sources.
        endings = (".yaml", ".csv") if Path(self.output).is_dir() else ("", ".yaml", ".csv")
        read = [*self.sources, *map(str, beside(*self.sources))]
        check_written(
            [(f"{self.output}{ending}", "--output") for ending in endings], [(path, "--from reads") for path in read]
        )


def run(options: ComposeOptions) -> int:
    """Merge, write the result and report what has no place in it. Bad input raises BlisError."""
    from traces.text_file import parse_yaml, read_text

    texts = {source: read_text(Path(source)) for source in options.sources}
    kinds = {source: _is_trace(parse_yaml(Path(source), text)) for source, text in texts.items()}
    if len(set(kinds.values())) > 1:
        trace = next(source for source, is_trace in kinds.items() if is_trace)
        spec = next(source for source, is_trace in kinds.items() if not is_trace)
        raise OptionError(f"--from must name specs only or traces only, got the trace {trace} and the spec {spec}")
    if next(iter(kinds.values())):
        from traces import columns_worth_writing, read_trace, write_trace
        from traces.compose import merge_traces

        if options.output is None:
            raise OptionError("--output is required, a trace is several files")
        written = ((".yaml", "header"), (".csv", "rows"))
        check_written([(f"{options.output}{ending}", "--output", kind) for ending, kind in written], [])
        header, rows, notes = merge_traces([read_trace(source) for source in options.sources])
        write_trace(f"{options.output}.yaml", header, rows, columns_worth_writing(rows, header.mode))
        _print_note(f"{len(rows)} requests written to {options.output}.yaml", notes)
        return 0
    return _compose_specs(options, texts)


def _is_trace(loaded: Any) -> bool:
    return isinstance(loaded, dict) and "trace_version" in loaded


def _compose_specs(options: ComposeOptions, texts: Mapping[str, str]) -> int:
    from traces.compose import merge_specs
    from traces.convert_command import write_spec
    from traces.workload.spec import parse_spec, spec_text

    spec, notes = merge_specs([(source, parse_spec(texts[source], source)) for source in options.sources])
    if options.output is not None:
        check_written([(options.output, "--output", "spec")], [])
    text = spec_text(spec)
    parse_spec(text, f"{', '.join(texts)}, as one spec,")
    write_spec(text, options.output)
    _print_note(f"{len(spec.clients)} clients, {len(spec.cohorts)} cohorts", notes)
    return 0


def _print_note(first: str, notes: list[str]) -> None:
    for line in [first, *(f"note: {note}" for note in notes)]:
        sys.stderr.write(line + "\n")
