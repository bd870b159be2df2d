"""The findings of a calibration as files: JSON, one HTML page, pictures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_sim.options import check_written
from blis_sim.options.provenance import Provenance
from calibrate import report as original
from calibrate.bootstrap import Confidence, Interval, confidence
from calibrate.calibration import Calibration
from calibrate.compare import Comparison
from calibrate.diagnosis import in_words
from traces import dump_json
from traces.text_file import naming_write_errors, write_content, write_text


def write_all(
    found: Calibration,
    noise_floor: Mapping[str, Comparison] | None,
    *,
    report: str | None,
    html: str | None,
    plots: str | None,
    compat: bool,
    origin: Provenance,
) -> None:
    """Write what is requested. `compat` keeps the JSON to the keys of the original tool."""
    if report is not None:
        write_text(Path(report), dump_json(json_content(found, noise_floor, compat)))
    if html is None and plots is None:
        return
    from calibrate.figures import figures

    pictures = list(figures(found))
    if plots is not None:
        check_written(
            [(f"{plots}/{name}.png", "--plots", "picture") for name, *_ in pictures if Path(plots).is_dir()], []
        )
        for name, _, png in pictures:
            _write_picture(Path(plots) / f"{name}.png", png)
    if html is not None:
        from calibrate.page import calibration_page

        sureness = {name: confidence(each.real_us, each.sim_us) for name, each in found.values.items()}
        words = in_words(found, noise_floor)
        write_text(Path(html), calibration_page(found, words, sureness, noise_floor, pictures, origin))


def json_content(found: Calibration, noise_floor: Mapping[str, Comparison] | None, compat: bool) -> dict[str, Any]:
    """The report; unless `compat`, with intervals, words and the noise floor."""
    content = original.report(found)
    if compat:
        return content
    content |= original.additions(found)
    content["confidence_95"] = {
        name: _confidence(confidence(each.real_us, each.sim_us)) for name, each in sorted(found.values.items())
    }
    content["in_words"] = in_words(found, noise_floor)
    if noise_floor:
        content["noise_floor"] = {
            name: {"mape": each.mape, "pearson_r": each.pearson_r, "count": each.count}
            for name, each in sorted(noise_floor.items())
        }
    return content


def _confidence(sure: Confidence) -> dict[str, Any]:
    r = sure.pearson_r
    return {
        "mape": _interval(sure.mape),
        "mean_percent_error": _interval(sure.mean_error),
        "p99_percent_error": _interval(sure.p99_error),
        **({} if r is None else {"pearson_r": _interval(r)}),
    }


def _interval(interval: Interval) -> list[float]:
    return [interval.low, interval.high]


def _write_picture(path: Path, content: bytes) -> None:
    with naming_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_content(path, content)
