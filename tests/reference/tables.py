"""Tables of reference figures: which files they stand for, how they are derived, and the folder made of them again.

`python -m tests.reference.tables FOLDER` derives them from the folder of reference results.
"""

import gzip
import json
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.reference import cases, files, simulators, vocabularies

FOLDER = Path(__file__).with_name("tables")


@dataclass(frozen=True, slots=True)
class Kind:
    """How a file becomes figures, and the other way around."""

    pack: Callable[[Path], Any]
    write: Callable[[Path, Any], None]


@dataclass(frozen=True, slots=True)
class Source:
    """Files of one kind in the folder of reference results."""

    pattern: str
    kind: Kind


JSON = Kind(files.packed_json, files.write_json)
JSON_LINE = Kind(files.packed_json, files.write_json_line)
REPORT = Kind(files.packed_report, files.write_json)
CSV = Kind(files.packed_csv, files.write_csv)
SECONDS = Kind(files.packed_seconds, files.write_csv)
CELLS = Kind(files.packed_cells, files.write_cells)
YAML = Kind(files.packed_yaml, files.write_yaml)
LINES = Kind(files.packed_lines, files.write_lines)
NUMBERS = Kind(files.packed_numbers, files.write_numbers)
FLAGS = Kind(files.packed_flags, files.write_flags)
TEXT = Kind(files.packed_text, files.write_text)
EDITS = Kind(files.packed_edits, files.write_edits)
CASES = Kind(files.packed_cases, files.write_cases)
GAPS = Kind(files.packed_gaps, files.write_sorted)
LENGTHS = Kind(files.packed_lengths, files.write_sorted)
CAPTURES = Kind(files.packed_captures, files.write_captures)
PAGE = Kind(files.packed_metrics_page, files.write_page)
EVENT = Kind(files.packed_stored_event, files.write_text)
ROWS = Kind(simulators.packed_rows, simulators.write_rows)
SHARE = Kind(simulators.packed_share, simulators.write_share)
CASE_FILE = Kind(cases.packed_case_file, cases.write_case_file)
VOCABULARY = Kind(vocabularies.packed_vocabulary, vocabularies.write_vocabulary)
OPERATORS = Kind(simulators.packed_operators, simulators.write_operators)

CAPTURED_MODELS = ("model", "model2", "model3")
"""Folders of the models that answered the captured requests."""

TABLES: dict[str, tuple[Source, ...]] = {
    "engine": (
        Source("engine/*/flags.txt", FLAGS),
        Source("engine/*/stdout.txt", TEXT),
        Source("engine/*/*.json", JSON),
        Source("engine/*/*.yaml", YAML),
        Source("engine/*/trace.csv", CSV),
        Source("engine-router-draws-seed42.txt", NUMBERS),
    ),
    "exhausted": (
        Source("engine2/pd_exhausted/flags.txt", FLAGS),
        Source("engine2/pd_exhausted/stdout.txt", TEXT),
        Source("engine2/pd_exhausted/*.json", JSON),
        Source("engine2/pd_exhausted/trace.yaml", YAML),
        Source("engine2/pd_exhausted/trace.csv", CSV),
    ),
    "offloaded": (
        Source("engine2/offload_*/flags.txt", FLAGS),
        Source("engine2/offload_*/stdout.txt", TEXT),
        Source("engine2/offload_*/*.json", JSON),
        Source("engine2/offload_*/trace.yaml", YAML),
        Source("engine2/offload_*/trace.csv", CSV),
    ),
    "simulated": (
        Source("tools/run/*.csv", CSV),
        Source("tools/run/*.yaml", YAML),
        Source("tools/run/*.metrics.json", JSON),
        Source("tools/run/*.stdout.txt", TEXT),
        Source("tools/replay/*.results.json", JSON),
        Source("tools/replay/qwen3-14b_H100_tp1_trained.metrics.json", JSON),
        Source("tools/replay/*.stdout.txt", TEXT),
        Source("tools/replay/*.csv", CSV),
        Source("tools/replay/*.yaml", YAML),
        Source("tools/saturation/*[0-9].json", JSON_LINE),
        Source("tools/saturation/*.json", JSON),
        Source("tools/saturation/sat.yaml", YAML),
    ),
    "recorded": (
        Source("tools/real/*_first[14][50][00]*.csv", CSV),
        Source("tools/real/*.yaml", YAML),
        Source("tools/observe_mock/*.csv", CSV),
        Source("tools/observe_mock/*.yaml", YAML),
        Source("tools/observe_mock/o16.saturation.json", JSON_LINE),
        Source("tools/calibrate/*.json", REPORT),
    ),
    "workloads": (
        Source("tools/specs/*.yaml", YAML),
        Source("tools/convert/*.yaml", YAML),
        Source("tools/convert/*/*.json", JSON),
        Source("tools/convert/*/*.csv", CELLS),
        Source("tools/arrival/arr_*.csv", GAPS),
        Source("tools/arrival/dist_*.csv", LENGTHS),
        Source("vidur/7ba_syn_*/requests.csv", SECONDS),
        Source("vidur-data/traces/splitwise_conv_1000.csv", SECONDS),
    ),
    "odd": (
        Source(f"tools/errors/{files.PLAIN}.*", EDITS),
        Source("tools/errors/t[0-9]*.*", EDITS),
        Source("tools/errors/specs/*.yaml", YAML),
        Source("tools/errors/docs_example.yaml", YAML),
        Source("tools/errors/cli_errors.tsv", CASES),
        Source("tools/errors/spec_validation.tsv", CASES),
    ),
    "vllm": (
        Source("vllm/sched.jsonl", LINES),
        Source("vllm/golden[123].txt", CAPTURES),
        Source("vllm/metrics[12].txt", PAGE),
        Source("vllm/kv.out", EVENT),
    ),
    "captured": (
        Source("vllm/golden[456].txt", CAPTURES),
        Source("../oracle/c[1-6]*.py", CASE_FILE),
        *(Source(f"../oracle/{model}/tokenizer.json", VOCABULARY) for model in CAPTURED_MODELS),
        *(Source(f"../oracle/{model}/*config.json", JSON) for model in CAPTURED_MODELS),
        *(Source(f"../oracle/{model}/special_tokens_map.json", JSON) for model in CAPTURED_MODELS),
    ),
    "simulators": (
        Source("vidur/simai_aicb_scenario?/config.json", JSON),
        Source("vidur/simai_aicb_scenario?/*_metrics.csv", ROWS),
        Source("vidur/simai_pd_*/COMMAND.txt", FLAGS),
        Source("vidur/simai_pd_*/requests.csv", ROWS),
        Source("vidur/simai_pd_*/*_metrics.csv*", SHARE),
        Source("vidur-data/aicb/csv/vidur-*.csv", ROWS),
        Source("vidur-data/aicb/json_cache/*.json", JSON),
        Source("vidur-data/simai/*_golden.csv", ROWS),
        Source("vidur-data/simai/ratio/*.csv", ROWS),
        Source("vidur-data/simai/topo/*.txt*", ROWS),
        Source("vidur-data/simai/workload/workload_analytical.txt.gz", ROWS),
        Source("vidur-data/hf_configs/*_config.json", JSON),
    ),
    "vidur": (
        *(
            Source(f"vidur/{name}/{file}", kind)
            for name in ("70b_*", "7ba_lightllm*", "7ba_s*_pp2", "7ba_s*_conv1000*", "7ba_syn*", "7bh_*")
            for file, kind in (("COMMAND.txt", FLAGS), ("requests.csv", SECONDS), ("*_metrics.csv*", SHARE))
        ),
        Source("vidur/tables/*.csv.gz", OPERATORS),
    ),
}


def derived(table: str, golden: Path, but: Collection[Kind] = ()) -> dict[str, Any]:
    """Return the figures of a table by the paths of the files that they are derived from, but for some kinds."""
    return {
        path.relative_to(golden).as_posix(): kind.pack(path) for path, kind in _found(table, golden) if kind not in but
    }


def kind_of(table: str, name: str) -> Kind:
    """Return the kind of the file with a path below the folder of reference results."""
    return next(each.kind for each in TABLES[table] if Path(name).match(each.pattern))


def kept(table: str) -> dict[str, Any]:
    """Return the figures of a table as they are kept beside this module."""
    found: dict[str, Any] = json.loads(gzip.decompress((FOLDER / f"{table}.json.gz").read_bytes()))
    return found


def write_files(table: str, golden: Path) -> None:
    """Write the files that a table stands for below `golden`."""
    for name, packed in kept(table).items():
        path = golden / name
        path.parent.mkdir(parents=True, exist_ok=True)
        kind_of(table, name).write(path, packed)


def _found(table: str, golden: Path) -> Iterator[tuple[Path, Kind]]:
    """Files case by case, since those of a case have columns in common that are packed once."""
    ranked = {
        path: (rank, source.kind)
        for rank, source in reversed(list(enumerate(TABLES[table])))
        for path in golden.glob(source.pattern)
    }

    def place(path: Path) -> tuple[bool, Path, str, int]:
        return path.stem != files.PLAIN, path.parent, path.name.split(".")[0], ranked[path][0]

    for path in sorted(ranked, key=place):
        yield path, ranked[path][1]


def _main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for table in TABLES:
        text = json.dumps(derived(table, Path(sys.argv[1]) / "golden"), separators=(",", ":"), ensure_ascii=False)
        # Neither a time nor a name, so that equal figures give equal bytes.
        (FOLDER / f"{table}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    _main()
