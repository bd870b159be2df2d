"""Commands with an answer print it in every format."""

import csv
import io
import json

import pytest

from blis_sim.cli.commands import COMMANDS
from blis_sim.cli.main import run
from blis_sim.options.printing import FORMATS
from blis_sim.report.tables import TextTable, facts_table

Captured = pytest.CaptureFixture[str]
ANSWERING = (
    *("run", "replay", "sweep", "plan", "compare", "calibrate", "loop", "observe", "fit", "models", "gpus", "doctor"),
    *("bench serve", "bench latency", "bench throughput", "bench tune", "playback check", "kernels exchanges"),
)
QUICK = (
    ["gpus", "h2"],
    ["gpus", "H100"],
    ["kernels", "exchanges", "qwen/qwen3-30b-a3b", "--tp", "2"],
    ["models", "gpt-oss"],
    ["bench", "latency", "--model", "qwen/qwen3-14b", "--num-iters", "1", "--num-iters-warmup", "0"],
    ["bench", "throughput", "--model", "qwen/qwen3-14b", "--num-prompts", "2"],
)


@pytest.mark.parametrize("name", ANSWERING)
def test_a_command_with_an_answer_has_all_formats(name: str) -> None:
    from importlib import import_module

    from blis_sim.options import options_of

    row = COMMANDS[name]
    settings = {each.name: each for each in options_of(getattr(import_module(row.module), row.options))}
    assert "json" in settings
    assert set(FORMATS) <= set(settings["format"].option.choices)


@pytest.mark.parametrize("command", QUICK, ids=" ".join)
def test_formats_are_what_their_names_say(command: list[str], capsys: Captured) -> None:
    said = {}
    for form in FORMATS:
        assert run([*command, "--format", form]) == 0
        said[form] = capsys.readouterr().out
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(said["json"])
    assert all(None not in row for row in csv.DictReader(io.StringIO(said["csv"])))
    assert "- command: `blis " in said["markdown"]
    assert said["html"].startswith("<!doctype html>")


def test_a_format_of_blis_without_a_meaning_is_refused_in_one_line(capsys: Captured) -> None:
    assert run(["gpus", "--format", "blis"]) == 2
    assert capsys.readouterr().err == (
        "blis gpus: error: --format must be one of table, json, csv, markdown, html, got 'blis'\n"
    )


def test_a_table_fits_80_characters_and_repeats_its_labels() -> None:
    table = TextTable(("name", "first figure", "b" * 40, "c" * 30), [["row", "1", "2", "3"]])
    lines = table.lines()
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines if line.startswith("row")] == [["row", "1", "2"], ["row", "3"]]
    assert lines.count("") == 1
    long = facts_table([("what", "--flag " * 20)])
    assert max(map(len, long.lines())) <= 80
    assert len(long.lines()) == 2
