"""The errors of predictions by kind of server: the table behind every statement of how sure a prediction is.

    python -m workshop.silicon CSV --rows ROWS.csv
    python -m workshop.points CSV --rows POINTS.csv
    python -m workshop.errors RECORDINGS ROWS.csv [ROWS.csv ...] [--points POINTS.csv] [--write FILE]
    python -m workshop.errors --again FILE [--points POINTS.csv] [--write-page PAGE]

RECORDINGS is the folder of `accuracy.py` and `published.py`, and ROWS.csv has the predictions of `silicon.py`. Errors
are those of the means of a recording: TTFT, ITL, and throughput at as many requests in flight, which is one over the
time of a request. Recordings that coefficients were learned from do not count for these, but their predictions from all
others do, which are read from docs/accuracy.md. A kind is a class of model, a format of weights, a GPU and a way of
sharing the work. `all` are the errors of all recordings. `growth` is how much larger the errors of a kind are than
those of kinds with so many other properties: the median of pairs, and for large errors the ratio that nine of ten pairs
stay below. The last lines on standard error say how many errors stay within what would be stated of their kind without
them.

With `--again` the section of PAGE about intervals is made of the ratios of FILE, which `--write` has written: nothing
is simulated. With `--points`, too, these replace what FILE has of the same latency models from `points.py`, and all of
PAGE is renewed.
"""

import argparse
import csv
import json
import sys
from collections import Counter
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
    MXFP4_BY_MARLIN,
    NVLINK,
    ONE_GPU,
    WITH_EXPERTS,
    Errors,
    MeasuredKind,
    ServerKind,
    errors_like,
    flags_of,
    is_apart,
    is_waiting,
    kind_of,
    nearest_kinds,
    ratio_spread,
)
from blis_sim.engine.latency.operations import MARLIN
from workshop import accuracy, points, published
from workshop.ending import run_command
from workshop.silicon import SYSTEMS, moe_backend

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

These errors are behind [every statement](models.md#how-sure-a-prediction-is) of how sure a prediction is. They are the
errors of the means of TTFT, ITL and throughput over a recording. Each kind has the median of its recordings, and the
bound of nine of ten. The recordings are the deployments of [silicon](silicon.md), the [published
servers](published.md), those of [Qwen3-14B](accuracy.md), and servers that others have measured in bursts and with
users. For the latter the spread of lengths or the users are assumed, and that bursts [follow longer
ones](accuracy-limits.md#bursts). Throughput is one over the time of a request. Errors beyond ten times the figure count
as that. *Learned from* is a server from other recordings of which coefficients or overheads were learned.

The tables are produced by `python -m workshop.errors`, and so is the file that commands read.
"""
SILICON, POINTS, PUBLISHED = "deployments of silicon", "bursts and users", "published servers"
RTX, RECORDINGS = "RTX PRO 6000", "recordings of Qwen3-14B"
_LEARNED_FROM, _LEARNING = ("qwen3-14b", "H100", ONE_GPU), ("fitted", "kernels")
"""The server from other recordings of which coefficients and host overheads were learned."""


class Cell(NamedTuple):
    """A kind of server with one model."""

    kind: ServerKind
    model: str
    shape: tuple[int, int]


class Seen(NamedTuple):
    """The errors of one prediction of one recording, by metric, as fractions."""

    source: str
    cell: Cell
    predictor: str
    errors: Mapping[str, float]
    ratios: Mapping[str, float]
    """Logarithms of the measured over the predicted time."""
    waiting: bool = False
    """Whether requests were predicted to wait for their first token."""


def main() -> int:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="?")
    parser.add_argument("rows", type=Path, nargs="*", help="what silicon.py --rows has written")
    parser.add_argument("--again", type=Path, default=None, help="derive the scores of a file anew from its ratios")
    parser.add_argument("--points", type=Path, default=None, help="what points.py has written")
    parser.add_argument("--page", type=Path, default=Path("docs/accuracy.md"), help="with the table of left_out.py")
    parser.add_argument("--write", type=Path, default=None)
    parser.add_argument("--write-page", type=Path, default=None, help="write the figures as a page, too")
    arguments = parser.parse_args()
    if arguments.again is not None:
        return score_again(arguments.again, arguments.write_page, arguments.points)
    if arguments.recordings is None or not arguments.rows:
        parser.error("RECORDINGS and ROWS.csv are required without --again")
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


def score_again(path: Path, page: Path | None, of_points: Path | None = None) -> int:
    """Derive the scores of a table anew, with other predictions of points if given, and renew a page."""
    content = json.loads(path.read_text())
    seen = seen_in(content)
    if of_points is not None:
        seen = _with_points(seen, list(_of_points(of_points)))
        path.write_text(table_text(seen))
    lines = interval_lines(seen)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    if page is not None and of_points is not None:
        page.write_text("\n".join(_page(seen)).rstrip("\n") + "\n")
    elif page is not None:
        before, _, rest = page.read_text().partition("\n## ")
        after = rest[rest.index("\n## ") :] if rest.startswith(_INTERVALS[3:]) else f"\n## {rest}"
        page.write_text("\n".join([before, *lines]).rstrip("\n") + "\n" + after)
    sys.stderr.writelines(_coverage(seen))
    return 0


def _with_points(seen: Sequence[Seen], of_points: Sequence[Seen]) -> list[Seen]:
    """Return all that was seen, with these instead of what their latency models said of points."""
    anew = {each.predictor for each in of_points}
    return [*(each for each in seen if each.source != POINTS or each.predictor not in anew), *of_points]


def seen_in(content: Mapping[str, Any]) -> list[Seen]:
    """Return the recordings of a table that was written, with errors by its rounded ratios."""
    found = []
    for row in content["kinds"]:
        cell = Cell(ServerKind(*row["kind"]), row["model"], (row["shape"][0], row["shape"][1]))
        for predictor, figures in row["errors"].items():
            sources = [name for name, count in figures["sources"].items() for _ in range(count)]
            for place, (source, waiting) in enumerate(zip(sources, flags_of(figures), strict=True)):
                ratios = {name: figures["ratios"][name][place] for name in METRICS}
                errors = {name: abs(exp(each if name == "throughput" else -each) - 1) for name, each in ratios.items()}
                found.append(Seen(source, cell, predictor, errors, ratios, waiting))
    return found


def _seen(source: str, cell: Cell, predictor: str, real: Mapping[str, float], simulated: Mapping[str, float]) -> Seen:
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
        source,
        cell,
        predictor,
        {name: min(each, _LARGEST_ERROR) for name, each in errors.items()},
        {name: min(max(each, -most), most) for name, each in ratios.items()},
        is_waiting(simulated["ttft"], simulated["e2e"]),
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
            yield _seen(SILICON, _silicon_cell(row), row["predictor"], *sides)


def _silicon_cell(row: Mapping[str, str]) -> Cell:
    model_class, precision = _CLASSES[row["kind"]]
    if moe_backend(row["kind"], row["system"]) == MARLIN:
        precision = MXFP4_BY_MARLIN
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
            waiting = is_waiting(sides[1]["ttft"], sides[1]["e2e"])
            if sides[0]["duration"]:  # of a burst, means of single requests say little about the throughput
                sides = [{**each, "e2e": each["duration"]} for each in sides]
            cell = Cell(kind, row["model"], (int(row["layers"]), int(row["width"])))
            yield _seen(POINTS, cell, row["predictor"], *sides)._replace(waiting=waiting)


def _of_published(folder: Path) -> Iterator[Seen]:
    for path in sorted((folder / "experiments").iterdir()):
        config = published.config_of(path)
        model = config["model"].split("/")[-1]
        cell = _cell_of(DeploymentOptions(model=model, hardware="H100", tp=config["tensor_parallelism"]))
        real = published.real_means(path)
        for predictor in PREDICTORS:
            simulated = published.simulated_means(path, predictor, LEARNED_COEFFICIENTS)
            yield _seen(PUBLISHED, cell, predictor, asdict(real), asdict(simulated))


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
    return _seen(RTX, cell, predictor, *sides)


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
            yield _seen(RECORDINGS, cell, predictor, *sides)
            if predictor == "fitted":
                yield _seen(RECORDINGS, cell, LEARNED, *sides)
    for ttft, e2e, itl in _left_out(page):
        for predictor in ("fitted", LEARNED):
            real, simulated = dict.fromkeys(("ttft", "e2e", "itl"), 1.0), {"ttft": ttft, "e2e": e2e, "itl": itl}
            yield _seen(RECORDINGS, cell, predictor, real, simulated)


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
            [one.waiting for one in found],
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
    }


def _without(kind: MeasuredKind, place: int) -> MeasuredKind:
    """Return a kind without one of its recordings."""
    ratios = {name: [*each[:place], *each[place + 1 :]] for name, each in kind.ratios.items()}
    waiting = [*kind.waiting[:place], *kind.waiting[place + 1 :]]
    return kind._replace(num_recordings=kind.num_recordings - 1, ratios=ratios, waiting=waiting)


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
            cell = Cell(each.kind, each.model, each.shape)
            sources = Counter(one.source for one in _by(predictor, seen) if one.cell == cell)
            places = [place for place, waiting in enumerate(each.waiting) if waiting]
            of_cell[predictor] = {
                "n": each.num_recordings, **errors, **learned, "sources": sources, "ratios": each.ratios,
                **({"waiting": places} if places else {}),
            }  # fmt: skip
    spread = {
        predictor: {name: spread_of(kinds, _by(predictor, seen), name) for name in METRICS}
        for predictor, kinds in figures.items()
    }
    kinds_found = [{**cell._asdict(), "errors": errors} for cell, errors in sorted(rows.items())]
    spreads = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in spread.items())
    lines = ",\n".join(map(json.dumps, kinds_found))
    made_by = '"made_by": "python -m workshop.errors"'
    return f'{{\n{made_by},\n"spread": {{\n{spreads}\n}},\n"kinds": [\n{lines}\n]\n}}\n'


def _page(seen: Sequence[Seen]) -> Iterator[str]:
    yield PREAMBLE
    yield from interval_lines(seen)
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
    """Yield how many errors stay within what is said of their kind where it was not measured."""
    for predictor in PREDICTORS:
        kinds = [each for each in kinds_of(seen, predictor) if not each.is_learned_from]
        for metric in METRICS:
            inside = []
            for each in kinds:
                others = [other for other in kinds if other is not each]
                like = nearest_kinds(each.kind, each.shape, others)
                stated = errors_like(metric, like, others, spread_of(others, _by(predictor, seen), metric)).p90
                cell = Cell(each.kind, each.model, each.shape)
                inside += [one.errors[metric] <= stated for one in _by(predictor, seen) if one.cell == cell]
            yield f"{predictor} {metric}: {sum(inside)} of {len(inside)} within, each kind left out\n"


# Intervals of recordings that were left out, beside their errors.

_INTERVALS = "## Intervals"
_INTERVALS_PREAMBLE = f"""{_INTERVALS}

How many recordings lie in the interval of nine of ten that would be stated without them, and how many above it. The
half width of an interval is a share of the predicted time, and so is the error. Both are medians. What is left out is
the recording alone, all of its kind and model, or all of its model and GPU.

An interval is the shortest that holds its share of the recordings in the same situation, of which the kind's own weigh
more. First tokens of several GPUs of Blackwell are a situation of their own, for many come later than predicted. For
ITL and time, requests that wait for their first token for a tenth of their time or more are one. Bursts do. The last
lines of `kernels` have both.

Of normal errors the half width is 2.44 times the median error (1.645 / 0.674), of uniform ones 1.8 times (0.9 / 0.5).
Where larger errors are rarer it is never less. Only what tells servers with small errors from others can change that.
"""
_NINE_OF_TEN = 0.9
_LEFT_OUT = ("the recording", "its kind", "its model and GPU")


class Covered(NamedTuple):
    """A recording, the logarithm of its measured over its predicted time, and the factors that were stated of it."""

    one: Seen
    ratio: float
    factors: tuple[float, float]


def interval_lines(seen: Sequence[Seen]) -> list[str]:
    """Return the section about intervals."""
    lines = [*_INTERVALS_PREAMBLE.splitlines(), "", "| latency model | left out | recordings | TTFT | ITL | time |"]
    lines += ["|---|---|---|---|---|---|"]
    for predictor in PREDICTORS:
        of_predictor = _by(predictor, seen)
        for left_out in _LEFT_OUT if of_predictor else ():
            found = {metric: covered(of_predictor, metric, left_out) for metric in METRICS}
            lines.append(_interval_line(f"{predictor} | {left_out}", found))
            if predictor == "kernels" and left_out == _LEFT_OUT[-1]:
                for group in sorted({name for each in found["ttft"] for name in _groups(each.one)}):
                    of_group = {
                        name: [each for each in of_metric if group in _groups(each.one)]
                        for name, of_metric in found.items()
                    }
                    lines.append(_interval_line(f"{predictor}, {group} | {left_out}", of_group))
    return [*lines, ""]


def _groups(one: Seen) -> list[str]:
    """Return the groups of recordings that have lines of their own: the source, and situations."""
    situations = {
        "requests wait": one.waiting,
        "several GPUs of Blackwell": is_apart("ttft", one.cell.kind, one.waiting),
    }
    return [one.source, *(name for name, is_there in situations.items() if is_there)]


def _interval_line(name: str, found: Mapping[str, Sequence[Covered]]) -> str:
    cells = []
    for each in found.values():
        inside = sum(low <= exp(ratio) <= high for _, ratio, (low, high) in each) / len(each)
        above = sum(exp(ratio) > high for _, ratio, (_, high) in each) / len(each)
        width = np.median([(high - low) / 2 for _, _, (low, high) in each])
        error = np.median([abs(exp(ratio) - 1) for _, ratio, _ in each])
        cells.append(f"{inside:.0%} in, {above:.0%} above; +-{width:.1%}, error {error:.1%}")
    return f"| {name} | {len(found['ttft'])} | {' | '.join(cells)} |"


def covered(seen: Sequence[Seen], metric: str, left_out: str) -> list[Covered]:
    """Return each recording of one latency model with the interval that is stated of it without what is left out."""
    kinds = [each for each in kinds_of(seen, seen[0].predictor) if not each.is_learned_from]
    found = []
    for kind in kinds:
        of_kind = [one for one in seen if one.cell == Cell(kind.kind, kind.model, kind.shape)]
        others = [each for each in kinds if not _is_left_out(each, kind, left_out)]
        for place, one in enumerate(of_kind):
            is_alone = left_out != _LEFT_OUT[0] or len(of_kind) == 1
            known = others if is_alone else [*others, _without(kind, place)]
            like = nearest_kinds(kind.kind, kind.shape, known)
            spread = ratio_spread(metric, kind.kind, like, known, one.waiting)
            found.append(Covered(one, one.ratios[metric], spread.factors(_NINE_OF_TEN)))
    return found


def _is_left_out(one: MeasuredKind, other: MeasuredKind, left_out: str) -> bool:
    if left_out == _LEFT_OUT[-1]:
        return (one.shape, one.kind.gpu) == (other.shape, other.kind.gpu)
    return one is other


if __name__ == "__main__":
    run_command(main)
