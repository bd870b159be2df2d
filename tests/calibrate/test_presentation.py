"""Reports for people and machines: intervals, words, limits, pictures, one page."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from blis_sim.cli.main import run
from blis_sim.options import OptionError
from calibrate.calibration import PLAIN, Calibration, calibrate, summary_sentences
from calibrate.compare import Network, confidence_intervals, exceeded_limits, parse_limits
from tests.calibrate.recordings import result, row, trace
from traces import TraceHeader, TraceRow, columns_worth_writing, write_results, write_trace

PNG = b"\x89PNG\r\n\x1a\n"
Captured = pytest.CaptureFixture[str]


def recorded(count: int = 60) -> list[TraceRow]:
    """Requests every 20 ms of different lengths and latencies in no order, of two tenants."""
    return [
        row(
            number,
            send_us=1_000 + 20_000 * number,
            ttft_us=40_000 + 500 * (37 * number % count),
            e2e_us=200_000 + 2_000 * (17 * number % count),
            tenant_id="ab"[number % 2],
            input_tokens=100 + number,
            server_input_tokens=100 + number,
        )
        for number in range(count)
    ]


def compared(ttft: float = 1.0, decode: float = 1.0, by_input: float = 0.0) -> Calibration:
    """Return that recording predicted with factors on TTFT and the time after it; `by_input` is per prompt token, in
    us."""
    rows = recorded()
    results = []
    for each in rows:
        first = each.first_chunk_time_us - each.send_time_us
        rest = each.last_chunk_time_us - each.first_chunk_time_us
        ttft_us = first * ttft + by_input * (each.input_tokens - 100)
        results.append(result(each.request_id, ttft_us=ttft_us, e2e_us=ttft_us + rest * decode))
    return calibrate(
        trace(rows),
        results,
        {},
        PLAIN,
        warm_up_requests=0,
        network=Network(),
        targets={},
        hit_rate=None,
        ttft_threshold=0.15,
    )


def files(folder: Path, rows: list[TraceRow], name: str = "trace") -> Path:
    header = TraceHeader(mode="real")
    write_trace(folder / f"{name}.yaml", header, rows, columns_worth_writing(rows, "real"))
    return folder / f"{name}.yaml"


def simulated(folder: Path, factor: float = 1.1) -> Path:
    rows = recorded()
    results = [
        result(
            each.request_id,
            ttft_us=(each.first_chunk_time_us - each.send_time_us) * factor,
            e2e_us=(each.last_chunk_time_us - each.send_time_us) * factor,
            input_tokens=each.input_tokens,
        )
        for each in rows
    ]
    write_results(folder / "results.json", results)
    return folder / "results.json"


@pytest.mark.slow
def test_an_interval_holds_the_figure_and_narrows_with_more_requests() -> None:
    generator = np.random.default_rng(1)
    widths = []
    for count in (50, 2000):
        real = generator.uniform(50, 100, count)
        sim = real * generator.normal(1.02, 0.1, count)
        intervals = confidence_intervals(real, sim)
        mape = float(np.mean(np.abs(sim - real) / real))
        assert intervals.mape[0] < mape < intervals.mape[1]
        assert intervals.mean_error[0] < sim.sum() / real.sum() - 1 < intervals.mean_error[1]
        assert intervals == confidence_intervals(real, sim)
        widths.append(intervals.mape[1] - intervals.mape[0])
    assert widths[1] < widths[0] / 3


def test_intervals_leave_as_much_out_below_as_above() -> None:
    errors = np.random.default_rng(1).normal(0.2, 0.05, 500)
    found = confidence_intervals(np.full(500, 100.0), 100 * (1 + errors)).mape
    standard_error = errors.std() / len(errors) ** 0.5
    for distance in (errors.mean() - found[0], found[1] - errors.mean()):
        assert distance / standard_error == pytest.approx(1.96, rel=0.07)


def test_constant_values_have_no_interval_of_correlation() -> None:
    assert confidence_intervals(np.full(10, 5.0), np.arange(10.0)).pearson_r is None


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (compared(), "No systematic error"),
        (compared(decode=1.1), "ITL is about the same under any load"),
        (compared(ttft=0.8), "TTFT"),
        (compared(by_input=200.0), "The error of TTFT grows with the prompt"),
    ],
)
def test_sentences_name_the_errors_and_the_coefficients(found: Calibration, named: str) -> None:
    assert any(named in sentence for sentence in summary_sentences(found))


def test_words_describe_how_a_second_run_compares() -> None:
    sentences = summary_sentences(compared(ttft=1.3), compared(ttft=1.1).metrics)
    assert any("A second run of the real server predicts TTFT within 10.0%" in each for each in sentences)
    assert any("3.0 times that" in each for each in sentences)


@pytest.mark.parametrize(("ttft", "verdict"), [(1.0, "no more than that"), (1.3, "more than that")])
def test_a_second_run_that_is_the_same_leaves_nothing_to_divide_by(ttft: float, verdict: str) -> None:
    sentences = summary_sentences(compared(ttft=ttft), compared(ttft=1.0).metrics)
    assert any(f"within 0.0%; the simulation's error is {verdict}" in sentence for sentence in sentences)


def test_limits_are_percentages_per_metric() -> None:
    assert parse_limits("ttft=15, E2E=2.5") == {"ttft": 0.15, "e2e": 0.025}
    assert parse_limits("") == {}
    for wrong in ("speed=3", "ttft", "ttft=-1", "ttft=fast"):
        with pytest.raises(OptionError, match="--fail-over takes ttft, e2e, itl with a percentage"):
            parse_limits(wrong)


def test_a_limit_is_exceeded_by_more_than_itself() -> None:
    metrics = compared(ttft=1.2).metrics
    assert exceeded_limits(metrics, {"ttft": 0.25}) == []
    assert exceeded_limits(metrics, {"ttft": 0.15}) == ["TTFT MAPE 20.0% is over the limit of 15.0%"]
    with pytest.raises(OptionError, match="--fail-over names ttft twice"):
        parse_limits("ttft=15,ttft=5")
    assert exceeded_limits(metrics, {"itl": 0.1}) == []
    del metrics["itl"]
    with pytest.raises(OptionError, match="--fail-over itl has nothing to judge"):
        exceeded_limits(metrics, {"itl": 0.1})


def test_the_exit_code_is_3_when_a_limit_is_exceeded(tmp_path: Path, capsys: Captured) -> None:
    arguments = ["calibrate", str(files(tmp_path, recorded())), "--sim-results", str(simulated(tmp_path))]
    assert run([*arguments, "--fail-over", "ttft=15,e2e=15"]) == 0
    capsys.readouterr()
    assert run([*arguments, "--fail-over", "ttft=15,e2e=5"]) == 3
    assert capsys.readouterr().err.endswith("blis calibrate: E2E MAPE 10.0% is over the limit of 5.0%\n")


def test_the_report_has_intervals_words_tenants_and_the_noise_floor(tmp_path: Path, capsys: Captured) -> None:
    second = [row(each.request_id, send_us=each.send_time_us, ttft_us=45_000, e2e_us=210_000) for each in recorded()]
    arguments = ["--second-recording", str(files(tmp_path, second, "second")), "--report", str(tmp_path / "out.json")]
    header = files(tmp_path, recorded())
    assert run(["calibrate", str(header), "--sim-results", str(simulated(tmp_path)), *arguments]) == 0
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["by_tenant"]["a"]["ttft_mape"] == pytest.approx(0.1)
    low, high = content["confidence_95"]["e2e"]["mean_percent_error"]
    assert low <= 0.1000001
    assert high >= 0.0999999
    assert content["noise_floor"]["ttft"]["count"] == 60
    assert content["in_words"][0].startswith("TTFT is predicted within 10.0% per request")
    assert "second recording" in capsys.readouterr().out


@pytest.mark.slow
def test_a_second_recording_can_take_the_place_of_the_simulation(tmp_path: Path, capsys: Captured) -> None:
    header = files(tmp_path, recorded())
    page = tmp_path / "page.html"
    assert run(["calibrate", str(header), "--second-recording", str(header), "--html", str(page)]) == 0
    said = capsys.readouterr().out
    assert "TTFT MAPE 0.0%" in said
    for text in (said, page.read_text()):
        assert "second" in text
        assert "simulated" not in text
        assert "coefficient" not in text
    assert "The second recording has TTFT within 0.0% per request, and it is as fast on average." in page.read_text()


class _Page(HTMLParser):
    """Counts tags, and notes what would be fetched from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources.extend(value or "" for name, value in attrs if name in ("src", "href"))
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.slow
def test_the_page_is_one_file_with_all_in_it_and_equal_inputs_give_equal_pages(
    tmp_path: Path, capsys: Captured
) -> None:
    html = tmp_path / "out.html"
    command = ["calibrate", str(files(tmp_path, recorded())), "--sim-results", str(simulated(tmp_path))]
    assert run([*command, "--html", str(html), "--plots", str(tmp_path / "plots")]) == 0
    capsys.readouterr()
    page = _Page()
    page.feed(html.read_text(encoding="utf-8"))
    assert page.open == []
    assert page.tags.count("img") == 18
    for text in ("Calibration: recording against simulation", ">real<", ">simulated<", "prefers-color-scheme"):
        assert text in html.read_text(encoding="utf-8")
    assert "TTFT: simulation against recording, each request" in html.read_text(encoding="utf-8")
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert not re.search(r"https?:|@import|url\(", html.read_text(encoding="utf-8"))
    pictures = sorted((tmp_path / "plots").iterdir())
    assert [path.name for path in pictures][:3] == ["e2e-cdf.png", "e2e-input.png", "e2e-load.png"]
    assert all(path.read_bytes().startswith(PNG) for path in pictures)
    once_more = tmp_path / "two.html"
    assert run([*command, "--html", str(once_more), "--plots", str(tmp_path / "plots")]) == 0
    assert once_more.read_text(encoding="utf-8").replace("two.html", "out.html") == html.read_text(encoding="utf-8")


@pytest.mark.slow
def test_names_from_the_recording_cannot_break_the_page(tmp_path: Path, capsys: Captured) -> None:
    rows = [row(number, send_us=1_000 + number, tenant_id="<script>alert(1)</script>") for number in range(5)]
    write_results(tmp_path / "results.json", [result(number) for number in range(5)])
    html = tmp_path / "out.html"
    arguments = ["--sim-results", str(tmp_path / "results.json"), "--html", str(html)]
    assert run(["calibrate", str(files(tmp_path, rows)), *arguments]) == 0
    capsys.readouterr()
    assert "<script>" not in html.read_text(encoding="utf-8")
