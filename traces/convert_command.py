"""`blis convert`: workloads and recordings of other programs, as ours."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from traces.importers.registry import ConvertOptions, Imported, import_from

if TYPE_CHECKING:
    from traces.workload.spec import WorkloadSpec

__all__ = ["ConvertOptions", "run"]


def run(options: ConvertOptions) -> int:
    """Convert, write the result and report what has no place in it. Bad input raises BlisError."""
    imported = import_from(options)
    for line in options.defaults.flags_without_effect:
        _print_note(line)
    if imported.spec is not None:
        from traces.workload.spec import parse_spec, spec_text

        text = spec_text(imported.spec)
        parse_spec(text, f"{options.name}, as a spec")
        write_spec(text, options.output)
        _print_note(_summary(imported.spec))
    elif options.to is not None:
        _export(options.to, Path(f"{options.output}"), imported)
    else:
        prefix = Path(f"{options.output}")
        from traces import ItlWriter, columns_worth_writing, write_trace
        from traces.server_settings import settings_path, write_settings
        from traces.text_file import naming_write_errors, replacing

        header = prefix.with_name(prefix.name + ".yaml")
        write_trace(header, imported.header, imported.rows, columns_worth_writing(imported.rows, imported.header.mode))
        if imported.settings:
            write_settings(settings_path(header), imported.settings)
        if imported.chunks:
            path = prefix.with_name(prefix.name + ".itl.csv")
            with naming_write_errors(path), replacing(path) as place, ItlWriter(place) as writer:
                for request_id, times in imported.chunks.items():
                    writer.write(request_id, times)
        _print_note(f"{len(imported.rows)} requests written to {options.output}.yaml")
    print_left_out(imported.left_out)
    for note in imported.notes:
        _print_note(f"note: {note}")
    return 0


def _summary(spec: "WorkloadSpec") -> str:
    section = spec.inference_perf
    if section is None:
        return f"{len(spec.clients)} clients, {len(spec.cohorts)} cohorts"
    num_stages = len(section.stages) + len(section.concurrent_stages)
    shared = section.shared_prefix
    num_users = shared.num_unique_system_prompts * shared.num_users_per_system_prompt
    return f"a section inference_perf: {num_stages} stages, {num_users} users"


def write_spec(text: str, output: str | None) -> None:
    """Write a spec to a file, or to standard output without one. Raises TraceError."""
    from traces.text_file import write_text

    if output is None:
        sys.stdout.write(text)
    else:
        write_text(Path(output), text)


def print_left_out(left_out: Mapping[str, int]) -> None:
    """One line for each kind of thing that was left out."""
    for reason, count in left_out.items():
        if count:
            _print_note(f"left out: {count} {reason}")


def _export(name: str, path: Path, imported: Imported) -> None:
    """Write the requests in the format of another program, and report what has no place in it."""
    from traces.exporters import ToExport, exporter_of

    exported = exporter_of(name)(ToExport(header=imported.header, rows=imported.rows, path=path))
    _print_note(f"{len(imported.rows)} requests written to {path}")
    print_left_out(exported.left_out)
    for note in exported.notes:
        _print_note(f"note: {note}")


def _print_note(text: str) -> None:
    sys.stderr.write(text + "\n")
