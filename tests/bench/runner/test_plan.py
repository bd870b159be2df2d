from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.bench.points import Plan, plan_of
from blis_sim.bench.simulation_commands import digest_of, with_whole_paths
from blis_sim.bench.sweep_command import SweepOptions
from blis_sim.options import BlisError
from blis_sim.options.command_line import parse_command_line

MODEL = ("--model", "qwen/qwen3-14b")


def plan(*vary: str, words: tuple[str, ...] = MODEL, config: str | None = None) -> Plan:
    return plan_of(words, vary, config)


def test_all_combinations_are_points_the_last_setting_varying_fastest() -> None:
    found = plan("rate=1,2", "tensor_parallel_size=1,2").points()
    assert [point.label for point in found] == ["rate=1.0 tp=1", "rate=1.0 tp=2", "rate=2.0 tp=1", "rate=2.0 tp=2"]
    assert found[1].settings == {"model": "qwen/qwen3-14b", "rate": 1.0, "tp": 2}


def test_flags_may_stand_before_or_behind_the_command() -> None:
    line = "--vary rate=1,2 replay t.yaml --model q --output=o.csv --reissue --overwrite --tp 2"
    assert parse_command_line(SweepOptions, line.split(), passes_flags_on=True).values == {
        "vary": ("rate=1,2",),
        "output": "o.csv",
        "overwrite": True,
        "simulation": ("replay", "t.yaml", "--model", "q", "--reissue", "--tp", "2"),
    }


def test_the_command_may_be_a_replay() -> None:
    found = plan("max_num_seqs=8,16", words=("replay", "t.yaml", "--model", "q", "--reissue"))
    assert found.simulation.name == "replay"
    assert found.settings == {"trace": "t.yaml", "model": "q", "reissue": True}


def test_a_file_describes_the_same_and_flags_come_before_it(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "command: run\nsettings: {model: q, num-requests: 5, tp: 4}\n"
        "vary: {rate: [1, 2], tp: [1, 2], alpha_coeffs: [[1, 2], [3, 4]]}\n"
    )
    found = plan("rate=3", words=("--num-requests", "7"), config=str(path))
    assert found.settings == {"model": "q", "num_requests": 7}
    assert found.vary == {"rate": [3.0], "tp": [1, 2], "alpha_coeffs": [(1.0, 2.0), (3.0, 4.0)]}


def test_values_with_commas_are_written_as_json() -> None:
    assert plan("beta_coeffs=[[1, 2], [3, 4]]").vary == {"beta_coeffs": [(1.0, 2.0), (3.0, 4.0)]}


@given(st.integers(1, 12), st.integers(0, 5))
def test_a_sample_is_a_part_of_all_points_in_their_order(size: int, seed: int) -> None:
    whole = plan("rate=1,2,3,4,5", "tp=1,2")
    found = whole.points(size, seed)
    numbers = [point.number for point in found]
    assert len(found) == min(size, 10)
    assert numbers == sorted(set(numbers))
    assert found == whole.points(size, seed)
    assert all(whole.points()[point.number] == point for point in found)


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ("rate", "--vary must be NAME=VALUE,..., got 'rate'"),
        ("speed=1,2", "--vary: no setting is called 'speed' of blis run"),
        ("rate=1,fast", "--rate must be a number, got 'fast'"),
        ("rate=1,1.0", "--vary rate names a value twice"),
        ("rate=[1", "--vary rate must have values with commas, or a JSON list"),
    ],
)
def test_a_setting_that_cannot_vary_is_refused(vary: str, message: str) -> None:
    with pytest.raises(BlisError, match=message.replace("[", r"\[").replace("...", r"\.\.\.")):
        plan(vary)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", r"sweep.yaml: expected keys and values, got \[1\]"),
        ("speed: 1", "unknown key 'speed', known are command, settings, vary"),
        ("vary: {rate: 3}", "key vary.rate: expected a list, got 3"),
        ("settings: {colour: 3}", "key settings: no setting is called 'colour'"),
        ("settings: {rate: fast}", r"key settings\.rate: --rate must be a number, got 'fast'"),
        ("vary: {rate: [1, {}]}", r"key vary\.rate: --rate must be a number, got '{}'"),
        ("command: [1]", r"key command: expected text, got \[1\]"),
        ("command: fly", "unknown command 'fly', known are run, replay"),
        ("vary: {rate: [1", "sweep.yaml line 1: expected YAML, "),
    ],
)
def test_a_file_that_describes_nothing_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(BlisError, match=message):
        plan(config=str(path))


def test_a_setting_that_varies_twice_is_refused() -> None:
    with pytest.raises(BlisError, match="--vary names max_num_seqs twice: give all of its values at once"):
        plan("max-num-seqs=1", "max_num_seqs=2")


def test_a_last_flag_without_its_value_is_refused() -> None:
    with pytest.raises(BlisError, match="--vary must be given a value"):
        parse_command_line(SweepOptions, ["--model", "m", "--vary"], passes_flags_on=True)


def test_a_plan_none_of_whose_points_can_be_is_refused() -> None:
    whole = plan("max_num_seqs=0,-1")
    with pytest.raises(BlisError, match="--max-num-seqs must be at least 1, got 0"):
        whole.check_some_fit(whole.points())
    some = plan("max_num_seqs=0,8")
    some.check_some_fit(some.points())


@pytest.mark.parametrize("flag", ["--json", "--trace-output", "--results-path", "--decisions-path"])
def test_the_outputs_of_one_run_are_refused(flag: str) -> None:
    value = () if flag == "--json" else ("x",)
    whole = plan("rate=1", words=(*MODEL, flag, *value))
    with pytest.raises(BlisError, match=f"{flag} is for one run, here are many"):
        whole.check_some_fit(whole.points())


def test_points_are_identified_by_their_settings_and_the_content_of_their_files(tmp_path: Path) -> None:
    trace = tmp_path / "t.yaml"
    trace.write_text("a")
    settings = {"trace": str(trace), "tp": 2}
    before = digest_of("replay", settings)
    assert digest_of("replay", dict(reversed(settings.items()))) == before
    assert digest_of("run", settings) != before
    assert digest_of("replay", {**settings, "tp": 1}) != before
    (tmp_path / "t.csv").write_text("rows")
    with_rows = digest_of("replay", settings)
    assert with_rows != before
    (tmp_path / "t.csv.gz").write_text("rows")
    assert digest_of("replay", settings) != with_rows


def test_a_model_folder_is_identified_by_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = digest_of("run", {"model": str(tmp_path)})
    (tmp_path / "config.json").write_text("{ }")
    assert digest_of("run", {"model": str(tmp_path)}) != before


def test_files_beside_a_workload_do_not_identify_it(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").touch()
    whole = plan("seed=1,2", words=(*MODEL, "--workload-spec", str(tmp_path / "w.yaml")))
    (point, _) = whole.points()
    before = digest_of("run", point.settings)
    (tmp_path / "w.csv").write_text("rows of a sweep")
    assert digest_of("run", point.settings) == before
    assert tmp_path / "w.csv" not in whole.paths_read()


def test_files_get_whole_paths_and_names_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.yaml").touch()
    (tmp_path / "qwen").mkdir()
    settings = {"workload_spec": "w.yaml", "model": "qwen", "model_config_folder": "./qwen", "tp": 2, "arrival": ""}
    assert with_whole_paths(settings) == {
        **settings,
        "workload_spec": str(tmp_path / "w.yaml"),
        "model_config_folder": str(tmp_path / "qwen"),
    }
