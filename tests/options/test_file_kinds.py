"""Files that may be written over, and files that may not."""

import gzip
import os
from pathlib import Path

import pytest

from blis_sim.options.option import KINDS, is_of_kind, reason_not_writable

SAMPLES = {
    "header": b"trace_version: 3\ntime_unit: us\n",
    "rows": b"request_id,client_id,input_tokens,output_tokens\n1,,2,3\n",
    "requests": b'{"timestamp": 0, "input_length": 7, "output_length": 5, "hash_ids": [0]}\n',
    "token times": b"request_id,chunk_index,timestamp_us\n1,0,5\n",
    "content": b'{"blis_content":1,"redact":[]}\n',
    "server settings": b"server_settings:\n  max_num_seqs: 64\n",
    "run page": b'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Run of m</title>',
    "sweep page": b'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Sweep of m</title>',
    "tune page": b'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Engine settings for m</title>',
    "plan page": b'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Plan for m</title>',
    "load page": b'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Load on m</title>',
    "server metrics": b'{"server":{"version":null}}\n',
    "spec": b"version: '2'\ncategory: language\nclients:\n-   id: a\n",
    "latencies": b'[\n  {\n    "request_id": 0,\n    "ttft_us": 29001',
    "run metrics": b'{\n  "instance_id": "cluster",\n  "completed_requests": 20',
    "request graphs": b'[\n{"directed":true,"multigraph":false,"graph":{"request_id":0',
    "decisions": b'[\n  {\n    "at_us": 199999,\n    "request_id": "request_0"',
    "saturation": b'{\n  "final": {\n    "composite": "STABLE"',
    "calibration": b'{\n  "trace_info": {\n',
    "page": b'<!doctype html>\n<html lang="en"><head><title>Calibration: a',
    "drift metrics": b"# HELP blis_watch_up 1 where",
    "comparison page": b'<!doctype html>\n<html lang="en"><head><title>Comparison: a',
    "coefficients": b"# Learned\nlatency_model: fitted\n",
    "layer table": b"layer_id\tlayer_name\tcomp_time\tcomm_size\n0\tattention\t0\t0\n",
    "points": b"point,rate,completed_requests,injected_requests,total_output_tokens\n",
    "simulations": b'{"file": "simulations of blis plan"}\n{"key": "1",',
    "provenance": b'{\n  "blis_version": "0.1.0",\n',
    "offline results": b'{\n    "model_id": "m",\n',
    "benchmark results": b'{"date": "x", "endpoint_type": "vllm"}',
    "picture": b"\x89PNG\r\n",
    "parquet": b"PAR1\0",
}
OTHERS = [
    b"name: my service\nports: [80]\n",
    b"version: '3'\nservices:\n  web: {}\n",
    b'{"name": "package", "version": "1.0"}',
    b"name,price\napple,3\n",
    b"[1, 2, 3]",
    b"#!/bin/sh\nrm -r x\n",
    b"<!doctype html><title>Shop</title>",
    b"\xff\xfe\0\1",
]


def test_every_kind_has_a_sample() -> None:
    assert SAMPLES.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_recognized_by_its_beginning_among_all_other_files(kind: str) -> None:
    assert is_of_kind(SAMPLES[kind], kind)
    assert is_of_kind(b"\xef\xbb\xbf" + SAMPLES[kind], kind) or kind in ("picture", "parquet")
    others = [text for name, text in SAMPLES.items() if name != kind] + OTHERS
    assert [text for text in others if is_of_kind(text, kind)] == []


def test_replaces_an_empty_file_and_one_of_its_kind_only(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    assert reason_not_writable(str(path), "rows") is None
    path.touch()
    assert reason_not_writable(str(path), "rows") is None
    path.write_bytes(SAMPLES["rows"])
    assert reason_not_writable(str(path), "rows") is None
    path.write_text("name,price\n")
    assert reason_not_writable(str(path), "rows") == f"{path}, which does not hold rows of a trace"


def test_looks_into_gzipped_files(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(SAMPLES["rows"]))
    assert reason_not_writable(str(path), "rows") is None
    path.write_bytes(gzip.compress(b"name,price\n"))
    assert reason_not_writable(str(path), "rows") is not None


def test_follows_a_link_to_a_file_of_its_kind_only(tmp_path: Path) -> None:
    link, target = tmp_path / "link.csv", tmp_path / "target"
    link.symlink_to(target)
    assert reason_not_writable(str(link), "rows") == f"{target}, where the link {link} leads to, which does not exist"
    target.write_bytes(SAMPLES["rows"])
    assert reason_not_writable(str(link), "rows") is None
    target.write_text("secrets")
    said = f"{target}, where the link {link} leads to, which does not hold rows of a trace"
    assert reason_not_writable(str(link), "rows") == said


def test_writes_to_devices_and_pipes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert [reason_not_writable(path, "rows") for path in (str(pipe), "/dev/null", "/dev/stdout")] == [None, None, None]
