"""Metrics of other packages: names, values, and one line for each thing that is wrong with one."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import blis_sim
from blis_sim.cli.main import run
from blis_sim.options import OptionError
from blis_sim.options.custom_metrics import CustomMetric, custom_metrics
from mockserve.metrics.families import custom_families

SOURCE = '''
def slow_share(run):
    """Share of requests that took more than a second."""
    return (run.requests.e2e_us > 1_000_000).mean()


def num_engines(run):
    return len(run.simulation.instances)


def broken(run):
    return 1 / len(())


def words(run):
    return "many"


def num_preemptions(engine):
    return 1


NUMBER = 4
'''
RUN = ("run", "--model", "qwen/qwen3-14b", "--num-requests", "5", "--rate", "5")
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_measures.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_run_has_the_value_in_each_format(capsys: Captured) -> None:
    metrics = ("--metric", "own_measures:slow_share,own_measures:num_engines")
    assert run([*RUN, *metrics, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["custom_metrics"] == {"slow_share": 1.0, "num_engines": 1}
    assert run([*RUN, *metrics, "--format", "csv"]) == 0
    names, values, *_ = capsys.readouterr().out.splitlines()
    row = dict(zip(names.split(","), values.split(","), strict=False))
    assert (row["custom_metrics_slow_share"], row["custom_metrics_num_engines"]) == ("1.0", "1")
    assert run([*RUN, *metrics]) == 0
    assert re.search(r"^slow_share +1\.00\nnum_engines +1$", capsys.readouterr().out, re.MULTILINE)


def test_a_function_is_a_value_in_python() -> None:
    import own_measures  # type: ignore[import-not-found]

    found = blis_sim.run(model="qwen/qwen3-14b", num_requests=5, rate=5, metric=[own_measures.num_engines])
    assert found.metrics["custom_metrics"] == {"num_engines": 1}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("own_measures:broken", "broken failed in own_measures.py line 12: ZeroDivisionError: division by zero"),
        ("own_measures:words", "--metric own_measures:words must return a finite number, got 'many'"),
        ("own_measures:none", "own_measures:none cannot be imported: AttributeError"),
        ("own_measures:NUMBER", "--metric own_measures:NUMBER must be a function, got 4"),
        ("absent:one", "absent:one cannot be imported: ModuleNotFoundError"),
        ("slow", "--metric must be MODULE:FUNCTION, got 'slow'"),
        ("own_measures:words,own_measures:words", "--metric names words twice"),
    ],
)
def test_a_wrong_one_is_named_in_one_line(given: str, line: str, capsys: Captured) -> None:
    assert run([*RUN, "--metric", given]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert line in printed.err


@pytest.mark.parametrize(
    ("found", "value"), [(np.float64(0.5), 0.5), (np.int64(3), 3), (True, 1), (2, 2), (2.0, 2.0), (np.float32(2), 2.0)]
)
def test_a_number_of_any_type_is_a_value(found: Any, value: float) -> None:
    assert repr(CustomMetric("a:b", lambda _: found).value(None)) == repr(value)


@pytest.mark.parametrize("found", [None, float("nan"), float("inf"), "1", [1]])
def test_anything_but_a_finite_number_is_refused(found: Any) -> None:
    with pytest.raises(OptionError, match="must return a finite number, got"):
        CustomMetric("a:b", lambda _: found).value(None)


def test_a_gauge_that_fails_has_no_sample(caplog: pytest.LogCaptureFixture) -> None:
    function: Callable[[Any], float] = lambda engine: engine.there  # noqa: E731
    (family,) = custom_families([CustomMetric("a:free-blocks", function)])
    assert (family.name, family.read(SimpleNamespace(there=7))) == ("free_blocks", 7)  # type: ignore[arg-type]
    assert family.read(SimpleNamespace()) is None  # type: ignore[arg-type]
    assert "--metric a:free-blocks failed" in caplog.text


def test_a_gauge_takes_no_name_of_vllm() -> None:
    with pytest.raises(OptionError, match="own_measures:num_preemptions has the name of a metric of vLLM"):
        custom_families(custom_metrics(["own_measures:num_preemptions"]))
