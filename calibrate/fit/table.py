"""Tables of the learned coefficients."""

from typing import TextIO

from calibrate.compare import Comparison
from calibrate.fit.check import unidentified
from calibrate.fit.learn import Learned
from calibrate.fit.terms import Learnable
from calibrate.table import new_console, percent, print_table


def print_learned(learned: Learned, deployed: Learnable, file: TextIO) -> None:
    """Each coefficient beside what was expected of it, and the errors on requests that were held out."""
    console = new_console(file)
    estimate, terms = learned.estimate, deployed.terms
    rows = []
    for name in deployed.learnable():
        value, spread = estimate.values[terms.place(name)], estimate.spreads[terms.place(name)]
        expected = terms.expected[name]
        rows.append([name, _number(value), _number(spread), _number(expected.mean), _number(expected.spread)])
    print_table(console, ["coefficient", "learned", "+-", "expected", "+- "], rows)
    rows = [
        [score.name, str(score.num_requests), *map(_errors, (score.ttft, score.e2e, score.itl))]
        for score in learned.held_out
    ]
    print_table(console, ["held out", "requests", "TTFT MAPE / r", "E2E MAPE / r", "ITL MAPE / r"], rows)


def print_unidentified(learned: Learned, file: TextIO) -> None:
    """Each coefficient that the recordings do not determine, and what to record."""
    rows = [[each.name, percent(each.share), each.wanted] for each in unidentified(learned)]
    if not rows:
        file.write("the recordings determine all coefficients\n")
        return
    print_table(new_console(file), ["not identified", "spread left", "recordings that would identify it"], rows)


def _errors(comparison: Comparison | None) -> str:
    if comparison is None:
        return "-"
    r = "-" if comparison.pearson_r is None else f"{comparison.pearson_r:.3f}"
    return f"{percent(comparison.mape)} / {r}"


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.0f}"
