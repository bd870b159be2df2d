"""A setting is declared once: its flag, variable, key of a file and keyword of the Python interface agree."""

import importlib
import json
import os
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blis_sim.api import settings
from blis_sim.api.commands import KINDS, OMITTED_SETTINGS, value_from_python
from blis_sim.bench.serve_command import rewritten as bench_rewritten
from blis_sim.bench.serve_options import BenchServeOptions
from blis_sim.cli.commands import COMMANDS, commands_in
from blis_sim.cli.main import run
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.options import OptionError, options_of
from blis_sim.options.command_line import parse_command_line, split_command_line, variable_of
from blis_sim.options.option import Setting, check_value, parse_yaml_value
from blis_sim.options.settings_file import layers_of_file
from mockserve.command import rewritten
from mockserve.options.serve import ServeOptions
from replay.run_command import RunOptions

OF_THE_BUILD_AND_THE_TESTS = {"BLIS_COMPILE", "BLIS_SHARED", "BLIS_VLLM"}
WITHOUT_VARIABLE = {"format"}
"""Settings whose variable, BLIS_FORMAT, means more than their flag."""

every_command = pytest.mark.parametrize("command", commands_in(""))


def options_class(command: str) -> type:
    row = COMMANDS[command]
    kind = getattr(importlib.import_module(row.module), row.options)
    assert isinstance(kind, type)
    return kind


def element(setting: Setting) -> Any:
    """The type of a value, or of each of several."""
    return typing.get_args(setting.kind)[0] if setting.is_list else setting.kind


def sample(setting: Setting) -> Any:
    """A value that the setting may have."""
    kind = element(setting)
    if kind is bool:
        return not setting.default
    if kind in (int, float):
        return kind(int(setting.option.bounds.at_least or 0) + 1)
    return next(filter(None, setting.option.choices), "text")


def by_flags(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a command line with the flags of all of these settings."""
    words, arguments = [], []
    for each in options_of(kind):
        if each.name not in values:
            continue
        if each.option.positional:
            arguments.append(str(values[each.name]))
        elif each.kind is bool:
            words.append(each.spellings[0 if values[each.name] else -1])
        else:
            words += [each.flags[0], str(values[each.name])]
    return parse_command_line(kind, [*words, *arguments]).values


def by_file(folder: Path, kind: type, content: dict[str, Any]) -> dict[str, Any]:
    path = folder / "settings.json"
    path.write_text(json.dumps(content))
    return parse_command_line(kind, [], file=layers_of_file(str(path), (), [])).values


@every_command
def test_every_setting_has_the_same_value_in_every_spelling(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = options_class(command)
    values = {each.name: sample(each) for each in options_of(kind)}
    expected = by_flags(kind, values)
    in_file = {each.name: [values[each.name]] if each.is_list else values[each.name] for each in options_of(kind)}
    assert by_file(tmp_path, kind, in_file) == expected
    variables = {each.name: variable for each in options_of(kind) if (variable := variable_of(each)) is not None}
    for name, variable in variables.items():
        monkeypatch.setenv(variable, str(values[name]))
    assert parse_command_line(kind, []).values == {name: expected[name] for name in variables}
    assert expected.keys() - variables.keys() <= WITHOUT_VARIABLE


@every_command
def test_a_list_whose_flag_is_given_again_has_the_items_of_both(command: str) -> None:
    kind = options_class(command)
    flagged = [each for each in options_of(kind) if not each.option.positional and each.kind is not bool]
    words = [word for each in flagged for word in (each.flags[0], str(sample(each)))]
    once, twice = (parse_command_line(kind, words * times).values for times in (1, 2))
    for each in flagged:
        value = once[each.name]
        if each.is_list:
            value = (*value, *value)
        elif each.has_items:
            value = f"{value},{value}"
        assert twice[each.name] == value, each.label


@every_command
def test_a_text_that_is_split_at_commas_says_so_in_its_metavar(command: str) -> None:
    """A text that its command splits at commas has `has_items`, by which a flag given again adds to it."""
    for each in options_of(options_class(command)):
        if each.kind is str and not each.option.positional and not each.has_items:
            words = f"{each.option.metavar} {each.option.help}"
            assert not {",...", "commas"} & set(re.findall(r",\.\.\.|commas", words)), each.label


def test_kills_of_two_flags_are_both_kills() -> None:
    words = ["--model", "m", "--kill", "2s:1", "--rate", "1", "--kill", "4s:2,6s", "--rate", "2"]
    values = parse_command_line(RunOptions, words).values
    assert (values["kill"], values["rate"]) == ("2s:1,4s:2,6s", 2.0)
    own, others = split_command_line(options_of(ClusterOptions), options_of(RunOptions), words)
    assert [own[place + 1] for place, word in enumerate(own) if word == "--kill"] == ["2s:1,4s:2,6s"]
    assert others == ["--rate", "2"]


def test_lists_in_json_and_with_commas_add_up_also_where_a_command_line_is_split() -> None:
    words = ["--detectors", '["a","b"]', "--detectors", "c,d"]
    assert parse_command_line(RunOptions, words).values == {"detectors": ("a", "b", "c", "d")}
    assert split_command_line(options_of(RunOptions), (), words)[0] == words


def test_a_flag_of_vllm_given_again_is_read_as_vllm_reads_it() -> None:
    def served(*words: str) -> dict[str, Any]:
        return parse_command_line(ServeOptions, rewritten(["m", *words])).values

    assert served("--served-model-name", "a", "b", "--served-model-name", "c")["served_model_name"] == ("c",)
    assert served("--allowed-origins", '["a"]', "--allowed-origins", '["b"]')["allowed_origins"] == ("b",)
    assert served("--middleware", "a.b", "--middleware", "c.d")["middleware"] == ("a.b", "c.d")
    assert served("--fault-rates", "a=1", "--fault-rates", "b=2")["fault_rates"] == ("a=1", "b=2")
    rates = ["--model", "m", "--request-rate", "1", "--request-rate", "2,4"]
    assert parse_command_line(BenchServeOptions, bench_rewritten(rates)).values["request_rate"] == ("2", "4")


def test_a_list_of_a_flag_replaces_that_of_the_file_of_vllm(tmp_path: Path) -> None:
    path = tmp_path / "vllm.yaml"
    path.write_text("fault-rates: a=1\nserved-model-name: [a]\nseed: 1\n")
    words = rewritten(["m", "--config", str(path), "--fault-rates", "b=2", "--served-model-name", "b"])
    found = parse_command_line(ServeOptions, words).values
    assert (found["fault_rates"], found["served_model_name"], found["seed"]) == (("b=2",), ("b",), 1)


@pytest.mark.parametrize("command", KINDS)
def test_every_setting_of_a_command_with_a_function_is_a_keyword(command: str) -> None:
    module = settings
    keywords = typing.get_type_hints(getattr(module, KINDS[command]))
    expected = by_flags(
        options_class(command), {each.name: sample(each) for each in options_of(options_class(command))}
    )
    for each in options_of(options_class(command)):
        if not each.option.positional and not each.option.hidden and each.name not in OMITTED_SETTINGS:
            assert each.name in keywords, each.name
            value = [sample(each)] if each.is_list else sample(each)
            assert value_from_python(each, value) == expected[each.name]


def message_of(read: Callable[..., object], *arguments: Any) -> str:
    with pytest.raises(OptionError) as caught:
        read(*arguments)
    return str(caught.value)


@pytest.mark.slow
def test_a_wrong_value_has_one_message_in_every_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands share settings: each is read by the command that has fewest settings."""
    seen: list[Setting] = []
    for kind in sorted(map(options_class, commands_in("")), key=lambda kind: len(options_of(kind))):
        numbers = [each for each in options_of(kind) if not each.is_repeated and element(each) in (int, float)]
        for each in numbers:
            variable = variable_of(each)
            if variable is None or each in seen:
                continue
            seen.append(each)
            said = message_of(by_flags, kind, {each.name: "x"})
            assert said.startswith(f"{each.label} must be ")
            assert message_of(value_from_python, each, "x") == said
            place = f"{tmp_path / 'settings.json'} key {each.name}"
            assert message_of(by_file, tmp_path, kind, {each.name: "x"}) == f"{place}: {said}"
            with monkeypatch.context() as environment:
                environment.setenv(variable, "x")
                assert message_of(parse_command_line, kind, []) == f"{variable}: {said}"


ODD_VALUES: tuple[Any, ...] = (None, True, {}, {"a": [1]}, 1.5, "", "yes", "none")


@every_command
def test_odd_values_of_a_file_and_of_python_are_one_value_or_have_one_message(command: str) -> None:
    for each in options_of(options_class(command)):
        for value in ODD_VALUES[1 if each.default is None else 0 :]:  # None leaves out what is left out by default
            read: list[Any] = []
            for way in (parse_yaml_value, value_from_python):
                try:
                    read.append(way(each, value))
                except OptionError as error:
                    read.append(str(error))
            assert repr(read[0]) == repr(read[1]), (each.name, value)
            assert each.kind not in (int, float) or not isinstance(value, dict) or "must be" in read[0]


@every_command
def test_every_default_is_within_the_bounds_of_its_setting(command: str) -> None:
    for each in options_of(options_class(command)):
        values = each.default if isinstance(each.default, tuple) else (each.default,)
        for value in values:
            if value is not None and value != "":
                check_value(each, value)


def test_a_flag_wins_over_a_variable_which_wins_over_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = options_class("run")
    path = tmp_path / "settings.toml"
    path.write_text("rate = 5\njson = true\n[run]\nseed = 3\n[serve]\nseed = 4\n")
    file = layers_of_file(str(path), ["run"], [("run",), ("serve",)])
    assert parse_command_line(kind, [], file=file).values == {"rate": 5.0, "json": True, "seed": 3}
    monkeypatch.setenv("BLIS_RATE", "7")
    assert parse_command_line(kind, [], file=file).values == {"rate": 7.0, "json": True, "seed": 3}
    assert parse_command_line(kind, ["--rate", "3", "--no-json"], file=file).values == {
        "rate": 3.0,
        "json": False,
        "seed": 3,
    }
    assert parse_command_line(kind, [], reads_environment=False, file=file).values == {}


def test_a_variable_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLIS_TP", "two")
    with pytest.raises(OptionError, match=r"^BLIS_TP: --tp must be a whole number, got 'two'$"):
        parse_command_line(options_class("run"), [])


def test_no_setting_takes_a_variable_that_means_something_else() -> None:
    kinds = [getattr(importlib.import_module(row.module), row.options) for row in COMMANDS.values()]
    variables = {variable_of(setting) for kind in kinds for setting in options_of(kind)}
    assert variables & {*OF_THE_BUILD_AND_THE_TESTS, "BLIS_FORMAT"} == set()
    assert not [each for each in os.environ if each in variables]


@pytest.mark.parametrize(
    ("flags", "variables", "file", "message"),
    [
        (["--rate", "-1"], {"BLIS_RATE": "2"}, "rate: 3", "blis run: error: --rate must be above 0, got -1.0\n"),
        ([], {"BLIS_RATE": "-2"}, "rate: 3", "blis run: error: BLIS_RATE: --rate must be above 0, got -2.0\n"),
        ([], {}, "rate: -3", "blis run: error: s.yaml key rate: --rate must be above 0, got -3.0\n"),
        ([], {}, "run: {rate: -3}", "blis run: error: s.yaml key run.rate: --rate must be above 0, got -3.0\n"),
        ([], {}, "engine: none", "blis run: error: s.yaml key engine: --engine must be one of "),
        ([], {}, "rat: 3", "blis run: error: s.yaml key rat: no setting has this name, did you mean rate?\n"),
        (
            [],
            {},
            "tp: 1\ntensor_parallel_size: 2",
            "s.yaml key tensor_parallel_size is another name of s.yaml key tp\n",
        ),
        ([], {}, "a: [", "blis run: error: s.yaml: cannot be read: line 1: "),
        ([], {}, "3", "blis run: error: s.yaml: expected names of settings with values, got int\n"),
    ],
)
def test_an_error_names_what_gave_the_value(
    flags: list[str],
    variables: dict[str, str],
    file: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    Path("s.yaml").write_text(file)
    assert run(["run", "--model", "qwen/qwen3-14b", "--config", "s.yaml", *flags]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (".".join(["a"] * 20_000) + " = 1", "a key has more than 100 words"),  # tomllib takes 1.5 GB for it
        ("a = " + "[" * 5000, "maximum recursion depth exceeded"),
        ("seed = " + "9" * 5000, "Exceeds the limit"),
        ("rate = 1\0", "Expected newline"),
    ],
)
def test_a_hostile_file_of_settings_is_one_line(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("blis.toml").write_text(text)
    assert run(["run", "--model", "qwen/qwen3-14b", "--num-requests", "3"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"blis run: error: blis.toml: cannot be read: {problem}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("blis.toml", 'model = "qwen/qwen3-14b"\nrate = 4\n[run]\nnum-requests = 3\n'),
        ("pyproject.toml", '[tool.blis]\nmodel = "qwen/qwen3-14b"\nrate = 4\nrun.num-requests = 3\n'),
    ],
)
def test_a_file_of_the_working_folder_is_read_and_named(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    assert run(["run", "--format", "json"]) == 0
    written = capsys.readouterr()
    assert json.loads(written.out)["completed_requests"] == 3
    table = "tool.blis." if name == "pyproject.toml" else ""
    said = f"blis run: from {name}: {table}rate, {table}model, {table}run.num-requests (flags and variables win over"
    assert said in written.err


def test_a_sweep_has_the_settings_of_the_file_in_each_of_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("blis.toml").write_text('model = "qwen/qwen3-14b"\nnum-requests = 3\n[sweep]\nprocesses = 1\n')
    assert run(["sweep", "--vary", "rate=2,4", "--format", "json"]) == 0
    assert [each["completed_requests"] for each in json.loads(capsys.readouterr().out)["points"]] == [3, 3]


def test_the_file_of_a_server_is_vllms_and_gives_way_to_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = options_class("serve")
    path = tmp_path / "vllm.yaml"
    path.write_text("max-num-seqs: 8\ntensor_parallel_size: 2\n")
    rewritten = importlib.import_module(COMMANDS["serve"].module).rewritten
    monkeypatch.setenv("BLIS_MAX_NUM_SEQS", "9")
    found = parse_command_line(kind, rewritten(["--config", str(path)])).values
    assert (found["max_num_seqs"], found["tp"]) == (9, 2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("text", ["modle = 3", "model = ["])
def test_help_is_shown_beside_a_file_that_cannot_be_used(
    text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "blis.toml").write_text(text)
    assert run(["gpus"]) == 2
    assert run(["gpus", "--help"]) == 0
    assert "Usage: blis gpus" in capsys.readouterr().out


def test_help_is_shown_beside_a_format_that_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BLIS_FORMAT", "tabel")
    assert run(["compare", "--help"]) == 0
    assert "Usage: blis compare" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "text", "message"),
    [
        ("run", "run.port = 3", "key run.port: blis run has no setting of this name"),
        (
            "bench latency",
            "bench.latency.port = 3",
            "key bench.latency.port: blis bench latency has no",
        ),
        ("sweep", "sweep.port = 3", "key sweep.port: blis sweep has no setting of this name"),
        ("bench latency", "bench.port = 3", "--model must be given"),
        ("run", 'modle = "x"', "key modle: no setting has this name, did you mean model?"),
    ],
)
def test_a_key_below_the_words_of_commands_is_a_setting_of_one_of_them(
    command: str, text: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "blis.toml").write_text(text)
    assert run(command.split()) == 2
    assert message in capsys.readouterr().err


def test_a_key_that_stands_twice_is_an_error_in_json_too(folder: Path) -> None:
    (folder / "s.json").write_text('{"rate": 1, "rate": 2}')
    with pytest.raises(OptionError, match="the key 'rate' stands twice"):
        layers_of_file("s.json", (), [])


def test_what_a_sweep_varies_wins_over_a_variable_and_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "blis.toml").write_text('model = "qwen/qwen3-14b"\nmax-num-seqs = 3\n[sweep]\nprocesses = 1\n')
    monkeypatch.setenv("BLIS_RATE", "7")
    flags = ["--num-requests", "2", "--vary", "rate=2,4", "--vary", "max_num_seqs=8", "--format", "json"]
    assert run(["sweep", *flags]) == 0
    written = capsys.readouterr()
    points = [(each["rate"], each["max_num_seqs"]) for each in json.loads(written.out)["points"]]
    assert points == [(2, 8), (4, 8)]
    assert "from blis.toml: model, max-num-seqs, sweep.processes (flags" in written.err


def test_what_a_plan_searches_is_not_set_by_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "blis.toml").write_text('model = "qwen/qwen3-14b"\nhardware = "H200"\n')
    assert run(["plan", "--rate", "1", "--num-requests", "5"]) == 2
    assert "a plan needs a target" in capsys.readouterr().err
    assert run(["plan", "--rate", "1", "--num-requests", "5", "--ttft-p99", "1s", "--hardware", "H100"]) == 2
    assert "--hardware is what a plan searches: give --gpus" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "key"), [("tool = 3 # [tool.blis]", "tool"), ("[[tool.blis]]\nmodel = 'x'", "tool.blis")]
)
def test_a_table_of_a_python_project_that_is_none_is_an_error(text: str, key: str, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(text)
    with pytest.raises(OptionError, match=f"pyproject.toml key {key}: expected names of settings with values, got"):
        layers_of_file("pyproject.toml", (), [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-num-seqs: many", "max-num-seqs: --max-num-seqs must be a whole number, got 'many'"),
        ("max_num_seqs: -1", "max_num_seqs: --max-num-seqs must be at least 1, got -1"),
        ("tensor_parallel_size: 2.5", "tensor_parallel_size: --tensor-parallel-size must be a whole number, got '2.5'"),
        ("kv_cache_dtype: foo", "kv_cache_dtype: Invalid kv_cache_dtype: 'foo'. Valid values are"),
        ("speculative-config: {method: foo}", "speculative-config: --speculative-config: method must be one of "),
        ("not-there: 3", "not-there: no such option: --not-there"),
        ("enable_lora: maybe", "enable_lora: unexpected argument: maybe"),
    ],
)
def test_an_error_about_the_file_of_a_server_names_the_file_and_its_key(
    text: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "s.yaml").write_text(f"port: 8001\n{text}\n")
    assert run(["serve", "qwen/qwen3-14b", "--config", "s.yaml"]) in (1, 2)
    assert f"blis serve: error: s.yaml key {message}" in capsys.readouterr().err


def test_an_error_about_a_flag_does_not_name_the_file_that_it_wins_over(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "s.yaml").write_text("max-num-seqs: 3\n")
    assert run(["serve", "qwen/qwen3-14b", "--config", "s.yaml", "--max-num-seqs", "-1"]) == 1
    assert capsys.readouterr().err == "blis serve: error: --max-num-seqs must be at least 1, got -1\n"


def test_a_value_of_a_file_gives_way_to_a_flag_or_a_variable_that_excludes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "blis.toml").write_text('model = "qwen/qwen3-14b"\nrate = 4\n')
    assert run(["run", "--stages", "1:5s,2:5s", "--json"]) == 0
    assert "blis run: blis.toml key rate gives way to --stages\n" in capsys.readouterr().err
    assert run(["run", "--stages", "1:5s", "--rate", "3"]) == 2
    assert "error: --rate and --stages exclude each other" in capsys.readouterr().err
    monkeypatch.setenv("BLIS_STAGES", "1:5s,2:5s")
    assert run(["run", "--json"]) == 0
    assert "blis run: blis.toml key rate gives way to --stages\n" in capsys.readouterr().err
    assert run(["run", "--rate", "3", "--num-requests", "4", "--json"]) == 0
    assert "blis run: BLIS_STAGES gives way to --rate\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("BLIS_SPECULATIVE_CONFIG", '{"method": "x"}', "--speculative-config: method must be one of "),
        ("BLIS_HARDWARE", "XX", "GPU 'XX' is not in the catalogue"),
    ],
)
def test_an_error_that_quotes_a_value_names_the_variable_that_has_it(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    assert run(["run", "--model", "qwen/qwen3-14b", "--rate", "2", "--num-requests", "3"]) == 2
    assert f"blis run: error: {variable}: {message}" in capsys.readouterr().err
