"""The findings of a calibration as tables for people; plain text where the output is no terminal."""

from collections.abc import Mapping, Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table

from calibrate.calibration import Calibration
from calibrate.compare import Comparison
from calibrate.metrics_file import AdapterComparison

_LABELS = {"ttft": "TTFT", "e2e": "E2E", "itl": "ITL"}
_WIDTH_OF_FILES = 500
_STATISTICS = ("mean", "p50", "p90", "p99")


def print_calibration(found: Calibration, file: TextIO, noise_floor: Mapping[str, Comparison] | None = None) -> None:
    """Latencies with signed errors, how single requests are predicted, throughput, and goodput if limits are known.

    `noise_floor` is how well a second recording predicts the first.
    """
    console = new_console(file)
    comparisons = {label: found.metrics[name] for name, label in _LABELS.items() if name in found.metrics}
    rows = [row for label, each in comparisons.items() for row in _latency_rows(label, each, found.other)]
    print_table(console, ["latency in ms", "", *_STATISTICS], rows)
    rows = [_prediction_row(label, comparison) for label, comparison in comparisons.items()]
    print_table(console, ["prediction", "requests", "MAPE", "r", "grade", "bias"], rows)
    if noise_floor:
        floors = {label: noise_floor[name] for name, label in _LABELS.items() if name in noise_floor}
        rows = [_prediction_row(label, comparison) for label, comparison in floors.items()]
        print_table(console, ["second recording", "requests", "MAPE", "r", "grade", "bias"], rows)
    real, sim = found.real_throughput, found.sim_throughput
    rows = [
        _pair_row("requests/s", real.requests_per_s, sim.requests_per_s),
        _pair_row("output tokens/s", real.output_tokens_per_s, sim.output_tokens_per_s),
        _pair_row("duration, s", real.duration_s, sim.duration_s),
    ]
    print_table(console, ["throughput", "real", found.other, "error"], rows)
    _print_groups(console, found)
    _print_goodput(console, found)
    _print_verdicts(console, found)


def print_adapter(found: AdapterComparison, file: TextIO) -> None:
    """Each metric against its reference."""
    rows = [
        [
            metric.name,
            f"{metric.reference:.2f}",
            f"{metric.simulated:.2f}",
            percent(metric.error),
            "-" if metric.delta_mape is None else percent(metric.delta_mape),
            "within" if metric.within else "exceeds",
        ]
        for metric in found.metrics
    ]
    console = new_console(file)
    names = ["metric", "reference", "simulated", "error", "error of change", f"limit {percent(found.threshold)}"]
    print_table(console, names, rows)


def new_console(file: TextIO) -> Console:
    """Names are printed as they are, and lines in a file as long as they need to be."""
    return Console(
        file=file, highlight=False, markup=False, emoji=False, width=None if file.isatty() else _WIDTH_OF_FILES
    )


def print_table(console: Console, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column and those without a name are aligned to the left, the others to the right."""
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place == 0 or name in ("", "bias") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print()


def _latency_rows(label: str, comparison: Comparison, other: str) -> list[list[str]]:
    real = [getattr(comparison.real, name) for name in _STATISTICS]
    sim = [getattr(comparison.sim, name) for name in _STATISTICS]
    return [
        [label, "real", *(f"{value / 1000:.2f}" for value in real)],
        ["", other, *(f"{value / 1000:.2f}" for value in sim)],
        ["", "error", *(_signed(one, other) for one, other in zip(real, sim, strict=True))],
    ]


def _prediction_row(label: str, comparison: Comparison) -> list[str]:
    r = "-" if comparison.pearson_r is None else f"{comparison.pearson_r:.3f}"
    return [label, str(comparison.count), percent(comparison.mape), r, comparison.quality, comparison.bias]


def _pair_row(label: str, real: float, sim: float) -> list[str]:
    return [label, f"{real:.2f}", f"{sim:.2f}", _signed(real, sim)]


def _print_groups(console: Console, found: Calibration) -> None:
    for name, groups in (("class", found.by_slo_class), ("model", found.by_model), ("tenant", found.by_tenant)):
        if groups:
            rows = [
                [key, str(group.count), percent(group.ttft_mape), percent(group.e2e_mape)]
                for key, group in groups.items()
            ]
            print_table(console, [name, "requests", "TTFT MAPE", "E2E MAPE"], rows)


def _print_goodput(console: Console, found: Calibration) -> None:
    if found.goodput is None:
        return
    rows = [
        [
            name,
            str(of_class.count),
            percent(of_class.real.share) if of_class.count else "-",
            percent(of_class.sim.share) if of_class.count else "-",
            f"{of_class.real.per_s:.3f}",
            f"{of_class.sim.per_s:.3f}",
        ]
        for name, of_class in found.goodput.classes.items()
    ]
    print_table(console, ["within limits", "requests", "real", found.other, "real/s", f"{found.other}/s"], rows)


def _print_verdicts(console: Console, found: Calibration) -> None:
    if found.hit_rate is not None:
        rates = found.hit_rate
        verdict = "within" if rates.within else "exceeds"
        console.print(
            f"KV hit rate: real {percent(rates.real)}, simulated {percent(rates.sim)}, "
            f"{rates.error_pp:.2f} points apart ({verdict} {rates.tolerance_pp:g})"
        )
    verdict = "within" if found.ttft_within else "exceeds"
    threshold = percent(found.ttft_threshold)
    console.print(f"TTFT MAPE {percent(found.metrics['ttft'].mape)}: {verdict} the threshold of {threshold}")


def _signed(real: float, sim: float) -> str:
    return f"{(sim - real) / real * 100:+.1f}%" if real > 0 else "-"


def percent(fraction: float) -> str:
    """A fraction in percent."""
    return f"{fraction * 100:.1f}%"
