"""The errors of predictions by kind of server: the table behind every statement of how sure a prediction is.

    python -m workshop.silicon CSV --rows ROWS.csv
    python -m workshop.points CSV --rows POINTS.csv
    python -m workshop.errors RECORDINGS ROWS.csv [ROWS.csv ...] [--points POINTS.csv] [--write FILE]

RECORDINGS is the folder of `accuracy.py` and `published.py`, and ROWS.csv has the predictions of `silicon.py`. Errors
are those of the means of a recording: TTFT, ITL, and throughput at as many requests in flight, which is one over the
time of a request. Recordings that coefficients were learned from do not count for these, but their predictions from all
others do, which are read from docs/accuracy.md. A kind is a class of model, a format of weights, a GPU and a way of
sharing the work. `all` are the errors of all recordings. `growth` is how much larger the errors of a kind are than
those of kinds with so many other properties: the median of pairs, and for large errors the ratio that nine of ten pairs
stay below. The last lines on standard error say how many errors stay within what would be stated of their kind without
them.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import permutations
from math import exp, isnan, log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.catalogue_reader import LEARNED_COEFFICIENTS, load_model
from blis_sim.engine.latency.confidence import (
    DENSE,
    EXPERT_PARALLEL,
    LATENT,
    LEARNED,
    METRICS,
    NVLINK,
    ONE_GPU,
    SHARES,
    WITH_EXPERTS,
    Errors,
    MeasuredKind,
    ServerKind,
    errors_like,
    kind_of,
    nearest_kinds,
    ratio_spread,
)
from workshop import accuracy, points, published
from workshop.ending import run_command
from workshop.silicon import SYSTEMS

PREDICTORS = ("kernels", "fitted", "trained-physics")
_CLASSES = {
    "MLA-moe-int4": (LATENT, "INT4"), "MLA-moe-nvfp4": (LATENT, "NVFP4"), "dense-fp8": (DENSE, "FP8"),
    "dense-nvfp4": (DENSE, "NVFP4"), "moe-fp8block": (WITH_EXPERTS, "FP8 by blocks"),
    "moe-mxfp4": (WITH_EXPERTS, "MXFP4"), "moe-nvfp4": (WITH_EXPERTS, "NVFP4"),
}  # fmt: skip
_RTX = "RTX-PRO-6000"
_SHARE_OF_PAIRS = 0.75
"""Pairs of kinds whose large errors differ by less than stated: nine of ten errors of kinds left out are within."""
_LARGEST_ERROR = 10.0
"""Where a queue is predicted to grow for ever, how long the run was decides the error."""
_MOST_UNLIKE = 5
PREAMBLE = """# Errors by kind of server

The errors behind [every statement](models.md#how-sure-a-prediction-is) of how sure a prediction is: those of the means
of TTFT, ITL and throughput over a recording, as the median of the recordings of a kind and what nine of ten stay
within. The recordings are the deployments of [silicon](silicon.md), the [published servers](published.md), those of
[Qwen3-14B](accuracy.md), and servers that others have measured in bursts and with users; of these the spread of lengths
or the users are assumed. Throughput is one over the time of a request. Errors beyond ten times the figure count as
that. *Learned from* is a server from other recordings of which coefficients or overheads were learned.

The tables are produced by `python -m workshop.errors`, and so is the file that commands read.
"""
_LEARNED_FROM, _LEARNING = ("qwen3-14b", "H100", ONE_GPU), ("fitted", "kernels")
"""The server from other recordings of which coefficients and host overheads were learned."""


class Cell(NamedTuple):
    """A kind of server with one model."""

    kind: ServerKind
    model: str
    shape: tuple[int, int]


class Seen(NamedTuple):
    """The errors of one prediction of one recording, by metric, as fractions."""

    cell: Cell
    predictor: str
    errors: Mapping[str, float]
    ratios: Mapping[str, float]
    """Logarithms of the measured over the predicted time."""


def main() -> int:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("rows", type=Path, nargs="+", help="what silicon.py --rows has written")
    parser.add_argument("--points", type=Path, default=None, help="what points.py has written")
    parser.add_argument("--page", type=Path, default=Path("docs/accuracy.md"), help="with the table of left_out.py")
    parser.add_argument("--write", type=Path, default=None)
    parser.add_argument("--write-page", type=Path, default=None, help="write the figures as a page, too")
    arguments = parser.parse_args()
    seen = [
        *(each for path in arguments.rows for each in _of_silicon(path)),
        *(() if arguments.points is None else _of_points(arguments.points)),
        *_of_published(arguments.recordings),
        *_of_another_gpu(arguments.recordings),
        *_of_recordings(arguments.recordings, arguments.page),
    ]
    text = table_text(seen)
    if arguments.write is None:
        sys.stdout.write(text)
    else:
        arguments.write.write_text(text)
    if arguments.write_page is not None:
        arguments.write_page.write_text("\n".join(_page(seen)).rstrip("\n") + "\n")
    sys.stderr.writelines(_coverage(seen))
    return 0


def _seen(cell: Cell, predictor: str, real: Mapping[str, float], simulated: Mapping[str, float]) -> Seen:
    """Return the errors of mean `ttft`, `itl` and `e2e`, in one unit."""
    errors = {
        "ttft": abs(simulated["ttft"] / real["ttft"] - 1),
        "itl": abs(simulated["itl"] / real["itl"] - 1),
        "throughput": abs(real["e2e"] / simulated["e2e"] - 1),
    }
    times = {"ttft": "ttft", "itl": "itl", "throughput": "e2e"}
    ratios = {name: log(real[time] / simulated[time]) for name, time in times.items()}
    most = log(1 + _LARGEST_ERROR)
    return Seen(
        cell,
        predictor,
        {name: min(each, _LARGEST_ERROR) for name, each in errors.items()},
        {name: min(max(each, -most), most) for name, each in ratios.items()},
    )


def _of_silicon(path: Path) -> Iterator[Seen]:
    """Yield the errors of the rows of `silicon.py` among main."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["group"] != "main" or row["problem"]:
                continue
            gaps = int(row["output_tokens"]) - 1
            sides = [
                {"ttft": float(row[ttft]), "itl": float(row[tpot]), "e2e": float(row[ttft]) + gaps * float(row[tpot])}
                for ttft, tpot in (("ttft_ms", "tpot_ms"), ("ttft_sim", "tpot_sim"))
            ]
            yield _seen(_silicon_cell(row), row["predictor"], *sides)


def _silicon_cell(row: Mapping[str, str]) -> Cell:
    model_class, precision = _CLASSES[row["kind"]]
    parallelism = ONE_GPU if int(row["tp"]) == 1 else EXPERT_PARALLEL if int(row["ep"]) > 1 else NVLINK
    name = row["model"].split("/")[1]
    return Cell(ServerKind(model_class, precision, SYSTEMS[row["system"]], parallelism), name, _shape(name))


def _shape(name: str) -> tuple[int, int]:
    model = load_model(name.lower())
    return model.num_layers, model.hidden_size


def _cell_of(options: DeploymentOptions) -> Cell:
    found = resolve(replace(options, latency_model="trained-physics", coefficients=None))
    kind = kind_of(found.model, found.gpu, options.kernel_placement(found.tp, found.gpu))
    return Cell(kind, found.model.name, (found.model.num_layers, found.model.hidden_size))


def _of_points(path: Path) -> Iterator[Seen]:
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            kind = ServerKind(*row["kind"].split(points.KIND_SEPARATOR))
            sides = [{name: float(row[f"{name}{side}"]) for name in points.METRICS} for side in ("", "_sim")]
            if any(isnan(each) for each in sides[0].values()):
                continue
            if sides[0]["duration"]:  # of a burst, means of single requests say little about the throughput
                sides = [{**each, "e2e": each["duration"]} for each in sides]
            yield _seen(Cell(kind, row["model"], (int(row["layers"]), int(row["width"]))), row["predictor"], *sides)


def _of_published(folder: Path) -> Iterator[Seen]:
    for path in sorted((folder / "experiments").iterdir()):
        config = published.config_of(path)
        model = config["model"].split("/")[-1]
        cell = _cell_of(DeploymentOptions(model=model, hardware="H100", tp=config["tensor_parallelism"]))
        real = published.real_means(path)
        for predictor in PREDICTORS:
            simulated = published.simulated_means(path, predictor, LEARNED_COEFFICIENTS)
            yield _seen(cell, predictor, asdict(real), asdict(simulated))


def _of_another_gpu(folder: Path) -> Iterator[Seen]:
    for path in sorted((folder / "llmservingsim").iterdir()):
        meta = json.loads((path / "meta.json").read_text())
        model, tp = meta["model"].split("/")[-1], meta["engine_kwargs"]["tensor_parallel_size"]
        cell = _cell_of(DeploymentOptions(model=model, hardware=_RTX, tp=tp, max_model_len=2048))
        yield _seen_of_score(cell, LEARNED, published.second_half(path))
        for predictor in PREDICTORS:
            yield _seen_of_score(cell, predictor, published.whole(path, predictor, LEARNED_COEFFICIENTS))


def _seen_of_score(cell: Cell, predictor: str, found: Any) -> Seen:
    sides = [
        {name: getattr(getattr(found, name), side).mean for name in ("ttft", "itl", "e2e")} for side in ("real", "sim")
    ]
    return _seen(cell, predictor, *sides)


def _of_recordings(folder: Path, page: Path) -> Iterator[Seen]:
    """Yield the errors on recordings that nothing was learned from, and on others as predicted from all but them."""
    server = json.loads((folder / "server_config.json").read_text())
    options = accuracy.options_of(server, "vllm", LEARNED_COEFFICIENTS)
    cell = _cell_of(options)
    for header in sorted(folder.glob("validate/*/trace.yaml")):
        for predictor in PREDICTORS:
            coefficients = options.coefficients if predictor == "fitted" else None
            deployment = resolve(replace(options, latency_model=predictor, coefficients=coefficients))
            found = accuracy.predict(header.parent.name, header, deployment, 1).metrics
            sides = [{name: getattr(found[name], side).mean for name in found} for side in ("real", "sim")]
            yield _seen(cell, predictor, *sides)
            if predictor == "fitted":
                yield _seen(cell, LEARNED, *sides)
    for ttft, e2e, itl in _left_out(page):
        for predictor in ("fitted", LEARNED):
            yield _seen(
                cell, predictor, dict.fromkeys(("ttft", "e2e", "itl"), 1.0), {"ttft": ttft, "e2e": e2e, "itl": itl}
            )


def _left_out(page: Path) -> Iterator[tuple[float, ...]]:
    """Yield mean TTFT, E2E and ITL of each recording as predicted from the others, as multiples of the real ones."""
    section = page.read_text().partition("## Each recording, predicted from the others")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [each.strip() for each in line.split("|")]
        if len(cells) > 8 and cells[2][:1].isdigit() and cells[1] and not cells[1].startswith("(cap"):
            yield tuple(1 + float(each.split("%")[0]) / 100 for each in cells[6:9])


def kinds_of(seen: Sequence[Seen], predictor: str) -> list[MeasuredKind]:
    """Return median and 90th percentile of the errors of each kind of server and model."""
    members: dict[Cell, list[Seen]] = {}
    for each in seen:
        if each.predictor == predictor:
            members.setdefault(each.cell, []).append(each)
    return [
        MeasuredKind(
            *cell,
            len(found),
            {name: _figures([one.errors[name] for one in found]) for name in METRICS},
            (cell.model, *cell.kind[2:]) == _LEARNED_FROM and predictor in _LEARNING,
            {name: [round(one.ratios[name], 3) for one in found] for name in METRICS},
        )
        for cell, found in members.items()
    ]


def _figures(errors: Sequence[float]) -> Errors:
    return Errors(float(np.median(errors)), float(np.quantile(errors, 0.9)))


def spread_of(kinds: Sequence[MeasuredKind], seen: Sequence[Seen], metric: str) -> dict[str, Any]:
    """Return the errors of one metric over all recordings of some kinds, and how they grow with unlike properties."""
    kinds = [each for each in kinds if not each.is_learned_from]
    growth: list[tuple[float, float]] = [(1.0, 1.0)]
    for num_unlike in range(1, _MOST_UNLIKE + 1):
        pairs = [
            (one.errors[metric], other.errors[metric])
            for one, other in permutations(kinds, 2)
            if _num_unlike(one, other) <= num_unlike
        ]
        medians = [_ratio(one.median, other.median) for one, other in pairs]
        tails = [_ratio(one.p90, other.p90) for one, other in pairs]
        found = (_quantile([max(each, 1 / each) for each in medians], 0.5), _quantile(tails, _SHARE_OF_PAIRS))
        growth.append((max(found[0], growth[-1][0]), max(found[1], growth[-1][1])))
    cells = {Cell(each.kind, each.model, each.shape) for each in kinds}
    of_all = _figures([each.errors[metric] for each in seen if each.cell in cells] or [0.0])
    return {
        "all": [round(each, 4) for each in of_all],
        "growth": [[round(each, 2) for each in pair] for pair in growth[1:]],
        "scores": {name: _quantiles(scores_of(kinds, metric, name == "alike")) for name in ("alike", "unlike")},
    }


_NO_SCORES = {"alike": (0.0,), "unlike": (0.0,)}


def scores_of(kinds: Sequence[MeasuredKind], metric: str, is_alike: bool) -> list[float]:
    """Return how many scales each recording lies from the centre of what is said of it without its kind, or without
    the recording alone where others of its kind remain."""
    scores: list[float] = []
    for kind in kinds:
        others = [each for each in kinds if each is not kind]
        for place, ratio in enumerate(kind.ratios[metric]):
            known = others
            if is_alike:
                rest = [each for number, each in enumerate(kind.ratios[metric]) if number != place]
                if not rest:
                    continue
                known = [*others, kind._replace(num_recordings=len(rest), ratios={**kind.ratios, metric: rest})]
            if not known:
                continue
            like = nearest_kinds(kind.kind, kind.shape, known)
            said = ratio_spread(metric, like, known, _NO_SCORES)
            scores.append(abs(ratio - said.centre) / said.scale)
    return scores


def _quantiles(scores: Sequence[float]) -> list[float]:
    """Return the scores that shares of new recordings stay below, the place of the new one counted."""
    if not scores:
        return [0.0, *(4.0 for _ in SHARES[1:])]
    beyond = len(scores) + 1
    return [0.0, *(round(_quantile(scores, min(1.0, share * beyond / len(scores))), 2) for share in SHARES[1:])]


_LEAST_ERROR = 0.01
"""Errors below are those of the measurement: a recording repeated differs by as much."""


def _ratio(one: float, other: float) -> float:
    return max(one, _LEAST_ERROR) / max(other, _LEAST_ERROR)


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else 1.0


def _num_unlike(one: MeasuredKind, other: MeasuredKind) -> int:
    return sum(a != b for a, b in zip((*one.kind, one.shape), (*other.kind, other.shape), strict=True))


def table_text(seen: Sequence[Seen]) -> str:
    """Return the table, a line for each kind."""
    figures = {predictor: kinds_of(seen, predictor) for predictor in (*PREDICTORS, LEARNED)}
    rows: dict[Cell, dict[str, Any]] = {}
    for predictor, kinds in figures.items():
        for each in kinds:
            errors = {name: [round(error, 4) for error in each.errors[name]] for name in METRICS}
            learned = {"learned_from": True} if each.is_learned_from else {}
            of_cell = rows.setdefault(Cell(each.kind, each.model, each.shape), {})
            of_cell[predictor] = {"n": each.num_recordings, **errors, **learned, "ratios": each.ratios}
    lines = [json.dumps({**cell._asdict(), "errors": errors}) for cell, errors in sorted(rows.items())]
    spreads = []
    for predictor, kinds in figures.items():
        of_metrics = {name: spread_of(kinds, _by(predictor, seen), name) for name in METRICS}
        spreads.append(f"{json.dumps(predictor)}: {json.dumps(of_metrics)}")
    made_by = json.dumps("python -m workshop.errors")
    spread, kinds_text = ",\n".join(spreads), ",\n".join(lines)
    return f'{{\n"made_by": {made_by},\n"spread": {{\n{spread}\n}},\n"kinds": [\n{kinds_text}\n]\n}}\n'


def _page(seen: Sequence[Seen]) -> Iterator[str]:
    yield PREAMBLE
    for predictor in PREDICTORS:
        yield f"## {predictor}\n"
        yield "| kind of server | model | recordings | TTFT | ITL | throughput |"
        yield "|---|---|---|---|---|---|"
        for each in sorted(kinds_of(seen, predictor)):
            cells = " | ".join(f"{each.errors[name].median:.1%}, {each.errors[name].p90:.1%}" for name in METRICS)
            learned = ", learned from" if each.is_learned_from else ""
            yield f"| {each.kind.text} | {each.model}{learned} | {each.num_recordings} | {cells} |"
        yield ""


def _by(predictor: str, seen: Sequence[Seen]) -> list[Seen]:
    return [each for each in seen if each.predictor == predictor]


def _coverage(seen: Sequence[Seen]) -> Iterator[str]:
    """Yield how many errors stay within what is said of their kind where it was not measured, and how wide intervals
    are beside the errors."""
    for predictor in PREDICTORS:
        kinds = [each for each in kinds_of(seen, predictor) if not each.is_learned_from]
        for metric in METRICS:
            inside, covered, widths, errors = [], [], [], []
            for each in kinds:
                others = [other for other in kinds if other is not each]
                like = nearest_kinds(each.kind, each.shape, others)
                spread = spread_of(others, _by(predictor, seen), metric)
                stated = errors_like(metric, like, others, spread).p90
                low, high = ratio_spread(metric, like, others, spread["scores"]).factors(_NINE_OF_TEN)
                for one in _by(predictor, seen):
                    if one.cell == Cell(each.kind, each.model, each.shape):
                        inside.append(one.errors[metric] <= stated)
                        covered.append(low <= exp(one.ratios[metric]) <= high)
                        widths.append((high - low) / 2)
                        errors.append(abs(exp(one.ratios[metric]) - 1))
            yield (
                f"{predictor} {metric}: {sum(inside)} of {len(inside)} within, each kind left out; "
                f"{sum(covered)} in intervals of half width {np.median(widths):.1%} where errors are "
                f"{np.median(errors):.1%} (medians)\n"
            )


_NINE_OF_TEN = 0.9


if __name__ == "__main__":
    run_command(main)
