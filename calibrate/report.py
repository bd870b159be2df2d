"""The report of a calibration as a JSON object in the form of the original, as a page and as pictures.

Keys and their order are the original's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_sim.options import check_written
from blis_sim.options.provenance import Provenance
from calibrate.calibration import Calibration, summary_sentences
from calibrate.compare import Comparison, ConfidenceIntervals, Interval, confidence_intervals
from calibrate.goodput import ClassGoodput, Goodput
from calibrate.metrics_file import AdapterComparison, HitRate
from traces import dump_json
from traces.text_file import naming_write_errors, write_content, write_text

JsonObject = dict[str, Any]

KNOWN_LIMITATIONS = (
    "The simulator advances step by step; what a server does between two steps is contained in fixed overheads.",
    "A trace has the length of a shared prefix, not its tokens, so cache hits beyond it are not predicted.",
    "Every decoding step yields one token per request: speculative decoding is not modelled.",
    "Prompt lengths are compared with the server's own count; template tokens can make the two differ by a few.",
)


def report_of(found: Calibration) -> JsonObject:
    """The report with the keys of the original; what does not apply is left out."""
    content: JsonObject = {
        "trace_info": _trace_info(found),
        "metrics": {name: _metric(comparison) for name, comparison in sorted(found.metrics.items())},
        "config_match": {},
        "known_limitations": list(KNOWN_LIMITATIONS),
    }
    if found.goodput is not None:
        content["goodput"] = _goodput(found.goodput)
    if found.hit_rate is not None:
        content["hit_rate"] = _hit_rate(found.hit_rate)
    ttft_mape = found.metrics["ttft"].mape
    content["ttft_tolerance"] = {
        "mape": ttft_mape,
        "threshold": found.ttft_threshold,
        "within": ttft_mape <= found.ttft_threshold,
    }
    return content


def additions(found: Calibration) -> JsonObject:
    """Further findings: the fate of every row, throughput, classes and models, the assumed network."""
    pairing = found.pairing
    content: JsonObject = {
        "rows": {
            "matched": pairing.num_matched,
            "warm_up": pairing.num_warm_up,
            "failed": pairing.num_failed,
            "repeated": pairing.num_repeated,
            "without_times": pairing.num_without_times,
            "unmatched": pairing.num_unmatched_rows,
            "unmatched_results": pairing.num_unmatched_results,
        },
        "throughput": {
            name: _throughput(getattr(found.real_throughput, name), getattr(found.sim_throughput, name))
            for name in ("requests_per_s", "output_tokens_per_s", "duration_s")
        },
        "network": {"rtt_us": found.network.rtt_us, "bandwidth_mbps": found.network.bandwidth_mbps},
    }
    kinds = (("by_slo_class", found.by_slo_class), ("by_model", found.by_model), ("by_tenant", found.by_tenant))
    for key, groups in kinds:
        if groups:
            content[key] = {
                name: {"count": group.count, "ttft_mape": group.ttft_mape, "e2e_mape": group.e2e_mape}
                for name, group in groups.items()
            }
    return content


def adapter_report(found: AdapterComparison) -> JsonObject:
    """The report of a comparison with an adapter reference."""
    return {
        "model": found.model,
        "mape_threshold": found.threshold,
        "metrics": [
            {
                "metric": metric.name,
                "dt_value": metric.reference,
                "blis_value": metric.simulated,
                "mape": metric.error,
                "within_threshold": metric.within,
                **({} if metric.delta_mape is None else {"delta_mape": metric.delta_mape}),
            }
            for metric in found.metrics
        ],
        "all_within_threshold": found.all_within,
    }


def _trace_info(found: Calibration) -> JsonObject:
    pairing = found.pairing
    info: JsonObject = {
        "num_requests": pairing.num_requests,
        "warm_up_excluded": pairing.num_warm_up,
        "matched_pairs": pairing.num_matched,
        "token_mismatches": pairing.num_token_mismatches,
    }
    if found.num_itl_dropped:
        info["itl_dropped"] = found.num_itl_dropped
    return info


def _metric(comparison: Comparison) -> JsonObject:
    workload: JsonObject = {}
    for name in ("mean", "median", "p50", "p90", "p95", "p99"):
        side = "p50" if name == "median" else name
        workload |= _errors(name, getattr(comparison.real, side), getattr(comparison.sim, side))
    request = {
        "mape": comparison.mape,
        "pearson_r": comparison.pearson_r,
        "bias_direction": comparison.bias,
        "quality": comparison.quality,
    }
    return {"workload_level": workload, "request_level": request, "count": comparison.count}


def _errors(name: str, real: float, sim: float) -> JsonObject:
    error = sim - real
    percent = abs(error) / real if real > 0 else 0.0
    return {f"real_{name}": real, f"sim_{name}": sim, f"{name}_error": error, f"{name}_percent_error": percent}


def _goodput(found: Goodput) -> JsonObject:
    targets = {
        name: {"TTFTMs": limits.ttft_ms, "ITLMs": limits.itl_ms, "E2EMs": limits.e2e_ms}
        for name, limits in found.targets.items()
    }
    classes = {name: _class_goodput(of_class) for name, of_class in found.classes.items()}
    skipped = {"skipped_itl": True} if found.itl_skipped else {}
    return {"targets": targets, "per_class": classes, **skipped}


def _class_goodput(found: ClassGoodput) -> JsonObject:
    return {
        "count": found.count,
        "real_slo_attainment": found.real.share,
        "sim_slo_attainment": found.sim.share,
        "real_goodput_rps": found.real.per_s,
        "sim_goodput_rps": found.sim.per_s,
        "real_attainment_by_dim": found.real.by_limit,
        "sim_attainment_by_dim": found.sim.by_limit,
    }


def _hit_rate(found: HitRate) -> JsonObject:
    return {
        "real_hit_rate": found.real,
        "sim_hit_rate": found.sim,
        "abs_error_pp": found.error_pp,
        "tolerance_pp": found.tolerance_pp,
        "within": found.within,
        "source": found.source,
    }


def _throughput(real: float, sim: float) -> JsonObject:
    percent = abs(sim - real) / real if real > 0 else 0.0
    return {"real": real, "sim": sim, "error": sim - real, "percent_error": percent}


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
    from calibrate.page import figures

    pictures = list(figures(found))
    if plots is not None:
        check_written(
            [(f"{plots}/{name}.png", "--plots", "picture") for name, *_ in pictures if Path(plots).is_dir()], []
        )
        for name, _, png in pictures:
            _write_picture(Path(plots) / f"{name}.png", png)
    if html is not None:
        from calibrate.page import calibration_page

        intervals = {name: confidence_intervals(each.real_us, each.sim_us) for name, each in found.values.items()}
        sentences = summary_sentences(found, noise_floor)
        write_text(Path(html), calibration_page(found, sentences, intervals, noise_floor, pictures, origin))


def json_content(found: Calibration, noise_floor: Mapping[str, Comparison] | None, compat: bool) -> dict[str, Any]:
    """The report; unless `compat`, with intervals, words and the noise floor."""
    content = report_of(found)
    if compat:
        return content
    content |= additions(found)
    content["confidence_95"] = {
        name: _confidence(confidence_intervals(each.real_us, each.sim_us))
        for name, each in sorted(found.values.items())
    }
    content["in_words"] = summary_sentences(found, noise_floor)
    if noise_floor:
        content["noise_floor"] = {
            name: {"mape": each.mape, "pearson_r": each.pearson_r, "count": each.count}
            for name, each in sorted(noise_floor.items())
        }
    return content


def _confidence(intervals: ConfidenceIntervals) -> dict[str, Any]:
    r = intervals.pearson_r
    return {
        "mape": _interval(intervals.mape),
        "mean_percent_error": _interval(intervals.mean_error),
        "p99_percent_error": _interval(intervals.p99_error),
        **({} if r is None else {"pearson_r": _interval(r)}),
    }


def _interval(interval: Interval) -> list[float]:
    return [interval.low, interval.high]


def _write_picture(path: Path, content: bytes) -> None:
    with naming_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_content(path, content)
