"""Folders of ServeGen chunks."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from blis_sim.options import BlisError
from blis_sim.wings.trace_formats.servegen import active_at, lognormal_fit, read_chunks
from tests.traces.importers.test_formats import left_out
from traces.importers.registry import ConvertOptions, import_from
from traces.workload.generate import generate


def test_a_folder_without_chunks_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BlisError, match=r"expected a folder with files chunk-\*-trace.csv, found none"):
        import_from(ConvertOptions(format="servegen", file=str(tmp_path)))


def test_lengths_of_servegen_are_those_from_1_to_2_to_the_31(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text("".join(f"{start},1.5,1.2,Gamma,0.8,0.4\n" for start in (0, 600, 1200)))
    shares = f"{{0.5: 1, {2**31}: 1, 1: 1, {2**31 - 1}: 1}}"
    (tmp_path / "chunk-0-dataset.json").write_text(
        json.dumps({"0": {"input_tokens": shares, "output_tokens": "{5: 1}"}})
    )
    (chunk,) = read_chunks(tmp_path, left := Counter[str]())
    assert left["shares of input_tokens without a length from 1 on"] == 2
    assert chunk.lengths_at(0).input.mu == pytest.approx(math.log(2**31 - 1) / 2)


def test_a_client_of_servegen_is_active_in_a_window_where_it_has_requests(tmp_path: Path) -> None:
    starts = {0: 0.0, 599: 2.0, 600: 3.0, 1199: 4.0, 1200: 5.0}
    rows = "".join(f"{start},{rate},1.2,Gamma,0.8,0.4\n" for start, rate in starts.items())
    (tmp_path / "chunk-0-trace.csv").write_text(rows)
    lengths = {str(start): {"input_tokens": f"{{{start}: 1}}", "output_tokens": "{5: 1}"} for start in (100, 900)}
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps(lengths))
    (chunk,) = read_chunks(tmp_path, Counter[str]())
    active = {start: [moment.start_s for _, moment in active_at([chunk], start)] for start in (0, 600, 1200)}
    assert active == {0: [599], 600: [600, 1199], 1200: [1200]}
    held = [round(math.exp(chunk.lengths_at(time_s).input.mu)) for time_s in (0, 99, 100, 899, 900, 5000)]
    assert held == [100, 100, 100, 100, 900, 900]


@pytest.mark.parametrize(
    "row",
    [
        "0,1.5,1.2,Gamma,0.8",
        "0,1.5,1.2,Gamma,0.8,0.4,1",
        "0,1.5,1.2,Gamma,0.8,0.4\v600,1.5,1.2,Gamma,0.8,0.4",
        "0,1.5,1.2,Gamma,0.8,0.4\u2028600,1.5,1.2,Gamma,0.8,0.4",
    ],
)
def test_refuses_a_row_of_servegen_that_has_not_six_cells(row: str, tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text(f"0,1.5,1.2,Gamma,0.8,0.4\n\n{row}\n")
    with pytest.raises(BlisError, match=r"chunk-0-trace\.csv line 3: expected 6 cells, got (5|7|11)"):
        read_chunks(tmp_path, Counter[str]())


@pytest.mark.parametrize(("cell", "written"), [(1, "-1.5"), (2, "nan"), (5, "zz")])
def test_a_cell_of_servegen_that_is_no_number_is_named(cell: int, written: str, tmp_path: Path) -> None:
    cells = ["0", "1.5", "1.2", "Gamma", "0.8", "0.4"]
    cells[cell] = written
    (tmp_path / "chunk-0-trace.csv").write_text(",".join(cells))
    with pytest.raises(BlisError, match=rf"chunk-0-trace.csv line 1 cell {cell + 1}: expected a number .* '{written}'"):
        read_chunks(tmp_path, Counter[str]())


def test_a_histogram_of_servegen_may_hold_counts_as_well_as_shares() -> None:
    fit = lognormal_fit({10: 3, 1000: 3})
    assert (fit.mu, fit.sigma) == pytest.approx((math.log(100), math.log(10)))
    assert lognormal_fit({10: 1, 1000: 0.5, 7: 0.25}) == lognormal_fit({10: 4, 1000: 2, 7: 1})


def test_shares_of_lengths_that_are_no_numbers_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text("".join(f"{start},1.5,1.2,Gamma,0.8,0.4\n" for start in (0, 600, 1200)))
    shares = "{1: 0.5, 2: 0.25., 3: 1e999, 1.2.3: 1, %s: 1, 4: 1e-3}" % ("9" * 400)
    (tmp_path / "chunk-0-dataset.json").write_text(
        json.dumps({"0": {"input_tokens": shares, "output_tokens": "{5: 1}"}})
    )
    found = import_from(ConvertOptions(format="servegen", file=str(tmp_path)))
    assert left_out(found)["shares of input_tokens without a length from 1 on"] == 4


def test_a_folder_of_servegen_may_have_prompts_with_images(tmp_path: Path) -> None:
    mixed_folder(tmp_path)
    found = import_from(ConvertOptions(format="servegen", file=str(tmp_path)))
    assert found.spec is not None
    multimodal = found.spec.cohorts[0].multimodal
    assert multimodal is not None
    assert multimodal.image_count_distribution is not None
    assert multimodal.image_count_distribution.params == {"0": 0.25, "2": 0.75}
    assert multimodal.audio_distribution is None
    requests = generate(found.spec).requests
    assert {request.text_tokens for request in requests} == {100}
    means = [request.image_tokens / 2 for request in requests if request.image_tokens]
    assert 0.7 < len(means) / len(requests) < 0.8
    assert 1000 < sum(means) / len(means) < 1200


def test_images_of_servegen_without_tokens_are_refused(tmp_path: Path) -> None:
    mixed_folder(tmp_path, image_tokens="{0: 1.0}")
    with pytest.raises(BlisError, match=r"key image_tokens: expected a length above 0, as image_count has one"):
        import_from(ConvertOptions(format="servegen", file=str(tmp_path)))


def test_images_of_servegen_without_a_number_of_them_are_refused(tmp_path: Path) -> None:
    lengths = {"text_tokens": "{100: 1}", "audio_tokens": "{0: 1}", "image_tokens": "{9: 1}", "output_tokens": "{2: 1}"}
    (tmp_path / "chunk-0-trace.csv").write_text("0,0.8,0.5,Gamma,3,0.25\n")
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps({"0": lengths}))
    with pytest.raises(BlisError, match=r"key 0: the key image_count is missing"):
        import_from(ConvertOptions(format="servegen", file=str(tmp_path)))


def mixed_folder(path: Path, **changed: str) -> None:
    """A client whose prompts have text and images."""
    (path / "chunk-0-trace.csv").write_text("0,0.8,0.5,Gamma,3,0.25\n28800,0.9,0.6,Gamma,2.5,0.5\n")
    lengths = {"text_tokens": "{100: 1}", "image_tokens": "{1000: 0.5, 1200: 0.5}", "image_count": "{0: 0.25, 2: 0.75}"}
    lengths |= {"audio_tokens": "{0: 1.0}", "audio_count": "{0: 1.0}", "output_tokens": "{21: 1}"} | changed
    (path / "chunk-0-dataset.json").write_text(json.dumps({"0": lengths, "28800": lengths}))


def test_settings_of_servegen_and_its_folder_are_named_in_errors() -> None:
    with pytest.raises(BlisError, match="--time has no meaning with preset, only with servegen"):
        ConvertOptions(format="preset", file="chatbot", time="morning")
    with pytest.raises(BlisError, match="/nope: expected a folder with files chunk-"):
        import_from(ConvertOptions(format="servegen", file="/nope"))
