"""Learning from recorded steps of an engine, without noise."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from blis_sim.cli.main import run
from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.fitted import STEP_TERMS
from calibrate.compare import CalibrateError
from calibrate.fit.estimate import recorded
from calibrate.fit.learn import Budget, learn
from calibrate.fit.recording import recording_of_steps
from calibrate.steps import measured_steps, step_errors
from tests.calibrate.fit.known_server import CONFIG, DEPLOYED, VALUES, arrivals, recording
from tests.calibrate.fit.told_steps import as_logged, told_steps
from traces.steps import Step, StepWriter

PATH = Path("told.steps.csv")


def errors_of(steps: list[Step]) -> np.ndarray:
    """The relative errors of step times learned from steps, on the steps of another run."""
    learned = learn([recording_of_steps(PATH, steps, CONFIG)], DEPLOYED, CONFIG)
    shapes, _ = recorded(recording(300, rate=3.0, seed=7), CONFIG, DEPLOYED.latency(VALUES))
    known, found = (
        DEPLOYED.basis(each, shapes) @ each[: len(STEP_TERMS)] for each in (VALUES, learned.estimate.values)
    )
    errors: np.ndarray = found / known - 1
    return errors


@pytest.fixture(scope="module")
def steps() -> list[Step]:
    return told_steps(arrivals(300, rate=3.0))


@pytest.mark.slow
def test_whole_steps_teach_step_times_within_three_tenths_of_a_percent(steps: list[Step]) -> None:
    errors = errors_of(steps)
    assert np.quantile(np.abs(errors), 0.99) < 0.003
    assert abs(errors.mean()) < 0.0005


@pytest.mark.slow
def test_steps_of_vllms_log_teach_step_times_within_three_tenths_of_a_percent(steps: list[Step]) -> None:
    errors = errors_of(as_logged(steps))
    assert np.mean(np.abs(errors)) < 0.003
    assert abs(errors.mean()) < 0.0015


@pytest.mark.slow
def test_steps_beside_requests_determine_more_than_requests_do() -> None:
    plain = recording(120, rate=3.0)
    measured = measured_steps(told_steps(arrivals(120, rate=3.0)), CONFIG)
    budget = Budget(per_round=120, per_final_round=120, in_final_rounds=360)
    without, beside = (
        learn([each], DEPLOYED, CONFIG, budget=budget) for each in (plain, replace(plain, steps=measured))
    )
    known = DEPLOYED.latency(VALUES)
    errors = [
        step_errors(measured, DEPLOYED.latency(each.estimate.values))[0].comparison.mape for each in (without, beside)
    ]
    assert errors[1] < 0.003
    assert errors[1] < errors[0] / 2
    assert step_errors(measured, known)[0].comparison.mape < 0.0005


def test_the_model_that_made_the_steps_times_them_to_the_microsecond(steps: list[Step]) -> None:
    measured = measured_steps(steps, CONFIG)
    assert measured.has_starts
    assert measured.num_estimated == 0
    kinds = {each.kind: each.comparison for each in step_errors(measured, DEPLOYED.latency(VALUES))}
    assert list(kinds) == ["all", "with prompts", "decode only"]
    assert kinds["decode only"].mape < 1e-6
    assert kinds["with prompts"].mape < 1e-3  # an idle start shows by its duration alone
    assert kinds["all"].count == kinds["with prompts"].count + kinds["decode only"].count


def test_a_step_before_an_idle_time_has_no_cycle(steps: list[Step]) -> None:
    lone = [step for step, after in pairwise(steps) if not after.decode_requests]
    assert measured_steps(steps, CONFIG).num_left_out == len(lone) + 1


def test_a_step_whose_next_one_began_earlier_has_no_cycle(steps: list[Step]) -> None:
    number = next(place for place, step in enumerate(steps) if place and step.decode_requests)
    late = [*steps[:number], steps[number]._replace(started_us=steps[number - 1].started_us), *steps[number + 1 :]]
    assert min(measured_steps(late, CONFIG).durations_us) > 0
    assert measured_steps(late, CONFIG).num_left_out == measured_steps(steps, CONFIG).num_left_out + 1


def test_contexts_that_a_log_lacks_are_close_by_the_blocks_in_use(steps: list[Step]) -> None:
    whole, logged = measured_steps(steps, CONFIG), measured_steps(as_logged(steps), CONFIG)
    assert not logged.has_starts
    column = BatchShape._fields.index("decode_context_tokens")
    with_context = {step.step for step in steps if step.decode_requests}
    assert 0 < logged.num_estimated == len(with_context)
    difference = logged.shapes[:, column].mean() / whole.shapes[:, column].mean() - 1
    assert abs(difference) < 0.05


def test_steps_with_drafts_and_without_work_are_left_out() -> None:
    rows = [Step(0, 10, 0, 0, 2, 6), Step(1, 10, 0, 0, 0, 0), Step(2, 10, 0, 0, 2, 2)]
    assert measured_steps(rows, CONFIG).num_left_out == 2
    with pytest.raises(CalibrateError, match=r"no step of told\.steps\.csv can be learned from: of 1"):
        recording_of_steps(PATH, rows[:1], CONFIG)


def test_a_file_of_steps_alone_is_learned_from_by_the_command(
    tmp_path: Path, steps: list[Step], capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "a.steps.csv", tmp_path / "learned.yaml"
    writer = StepWriter(path)
    writer.write(as_logged(steps[:400]))
    writer.close()
    assert run(["fit", str(path), "--model", "qwen3-14b", "--hardware", "H100", "-o", str(output)]) == 0
    said = capsys.readouterr()
    assert "contexts of" in said.err
    assert "steps lack the time from one to the next" in said.err
    assert "held out" in said.out
    assert "TTFT" not in said.out
    assert "steps: 400" in output.read_text()
