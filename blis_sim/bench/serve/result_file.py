"""The result file of a benchmark, as `vllm bench serve --save-result` writes it."""

import json
import os
from collections.abc import Mapping
from contextlib import closing
from itertools import chain, count
from math import inf
from pathlib import Path
from typing import Any

from blis_sim.bench.errors import BenchError
from blis_sim.bench.serve.options import BenchServeOptions
from observe.messages import say, warn
from traces import TraceError
from traces.append_file import AppendFile
from traces.backup import back_up
from traces.text_file import write_text

_DETAILS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors")


def content(
    options: BenchServeOptions, model: str, rate: float, result: Mapping[str, Any], date: str
) -> dict[str, Any]:
    """The object of the file: the settings of the run, then its results."""
    head: dict[str, Any] = {
        "date": date,
        "endpoint_type": options.backend,
        "backend": options.backend,
        "label": options.label,
        "model_id": options.model or model,
        "tokenizer_id": options.dataset.tokenizer or options.model or model,
        "num_prompts": options.dataset.num_prompts,
        **options.extra_results,
        "request_rate": "inf" if rate == inf else rate,
        "burstiness": options.burstiness,
        "max_concurrency": options.max_concurrency,
    }
    if options.ramp_up_strategy is not None:
        head["ramp_up_strategy"] = options.ramp_up_strategy
        head["ramp_up_start_rps"] = options.ramp_up_start_rps
        head["ramp_up_end_rps"] = options.ramp_up_end_rps
    details = () if options.save_detailed else _DETAILS
    return {**head, **{name: value for name, value in result.items() if name not in details}}


def save(options: BenchServeOptions, found: Mapping[str, Any], rate: float) -> Path:
    """Write it and return where. Raises BlisError when that fails."""
    path = options.result_path or Path(options.result_dir or ".") / _name(options, found, rate)
    text = json.dumps(found)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if options.append_result:
            _append(path, text)
        elif options.result_path is None:
            path = _write_beside(path, text)
        elif options.overwrite or (path.exists() and not path.is_file()):
            write_text(path, text)
        else:
            path = _write_instead(path, text)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error
    return path


def _write_beside(path: Path, text: str) -> Path:
    """Write to this path, or one like it where there is a file already: two short runs at one rate end in the same
    second."""
    others = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
    return next(each for each in chain([path], others) if _write_new(each, text))


def _write_instead(path: Path, text: str) -> Path:
    """Write to this path when results that are there have been moved away; beside it where they cannot be."""
    while not _write_new(path.resolve(), text):
        try:
            folder = back_up(path.with_suffix(""), [], [path])
        except TraceError as error:
            warn(str(error))
            return _write_beside(path, text)
        if folder is not None:
            say(f"note: the earlier results at {path} are now in {folder}")
    return path


def _write_new(path: Path, text: str) -> bool:
    """Write a file, unless there is one. A file that could not be written whole is removed."""
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(text)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def _append(path: Path, text: str) -> None:
    """Add a line, or nothing if there is no room for all of it."""
    path.touch()
    with closing(AppendFile(path, joins=True)) as file:
        file.write(f"\n{text}" if path.stat().st_size else text)


def check_place(options: BenchServeOptions) -> None:
    """Make the folder of the results before anything is sent. Raises BenchError when they could not be written."""
    path = Path(options.result_dir or ".") / (options.result_filename or ".")
    folder = path.parent if options.result_filename else path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"cannot write to {folder}: {(error.strerror or str(error)).lower()}") from error
    if options.result_filename and path.is_dir():
        raise BenchError(f"--result-filename must be a file, got the folder {path}")
    stays = path.exists() and (options.append_result or options.overwrite or not path.is_file())
    if not os.access(path if stays else path.resolve().parent, os.W_OK):
        raise BenchError(f"cannot write to {path}: permission denied")


def _name(options: BenchServeOptions, found: Mapping[str, Any], rate: float) -> str:
    """The file name, made of label, rate, limit of concurrency if there is one, model and time."""
    traffic = f"{rate}qps"
    if options.ramp_up_strategy is not None:
        start, end = options.ramp_up_start_rps, options.ramp_up_end_rps
        traffic = f"ramp-up-{options.ramp_up_strategy}-{start:g}qps-{end:g}qps"
    concurrency = "" if options.max_concurrency is None else f"-concurrency{options.max_concurrency}"
    model = str(found["model_id"]).rpartition("/")[2]
    return f"{options.label or options.backend}-{traffic}{concurrency}-{model}-{found['date']}.json"
