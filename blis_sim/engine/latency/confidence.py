"""The expected error of a prediction, from errors of a latency model on the measured servers most like a deployment."""

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import short_name
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.model_operations import KernelPlacement
from blis_sim.engine.memory import weights
from blis_sim.engine.memory.families import read_model
from blis_sim.engine.memory.weights import EXPERTS, Module, feed_forward_modules, read_quantization
from blis_sim.engine.specs import GpuSpec, ModelSpec

# The kind of server that a deployment is: properties on which the error of a prediction depends.

DENSE, WITHOUT_GROUPS, WITH_EXPERTS = "dense models", "dense models without grouped KV heads", "models with experts"
LATENT, SPARSE, HYBRID = "latent attention", "sparse attention", "hybrid attention"
FULL, MXFP4_BY_MARLIN = "16 bits", "MXFP4 by Marlin"
ONE_GPU, NVLINK, PCIE = "one GPU", "GPUs over NVLink", "two GPUs over PCIe"
PCIE_OF_MORE, NODES = "more than two GPUs over PCIe", "GPUs of several nodes"
EXPERT_PARALLEL, STAGES, RANKS = "experts spread over GPUs", "pipeline stages", "data-parallel ranks"
_FORMATS = {
    "fp8": "FP8", "block fp8": "FP8 by blocks", "mxfp8": "MXFP8", "nvfp4": "NVFP4", "mxfp4": "MXFP4", "int4": "INT4",
    "int8": "INT8", "nf4": "NF4",
}  # fmt: skip


class ServerKind(NamedTuple):
    """Class of the model, format of most of its weights, GPU, and how GPUs share the work."""

    model_class: str
    precision: str
    gpu: str
    parallelism: str

    @property
    def text(self) -> str:
        """The kind in words."""
        return f"{self.model_class} in {self.precision} on {self.gpu}, {self.parallelism}"


def kind_of(model: ModelSpec, gpu: GpuSpec, placement: KernelPlacement, dp: int = 1, pp: int = 1) -> ServerKind:
    """Return the kind of a deployment."""
    try:
        model_class, precision = _read(model, placement)
    except EngineError:  # a checkpoint that memory cannot be planned for still has sizes
        model_class, precision = _by_sizes(model), FULL if model.bytes_per_weight >= 2 else "other formats"
    return ServerKind(model_class, precision, gpu.name, _parallelism(model, gpu, placement, dp, pp))


def _read(model: ModelSpec, placement: KernelPlacement) -> tuple[str, str]:
    """Return class and precision by the layers of a checkpoint. Raises EngineError."""
    if model.checkpoint is None:
        raise EngineError(f"{model.name} has no config.json")
    checkpoint = model.checkpoint
    shape = read_model(checkpoint.config, model.name, placement.dtype)
    quantization = read_quantization(checkpoint.config, checkpoint.hf_quant_config, model.name, placement.quantization)
    modules = list(_feed_forward_modules(shape))
    largest = max(modules, key=_weight_of, default=None)
    found = None if largest is None else quantization.format_of(largest)
    name = "unquantized" if found is None else found.name
    if name == "mxfp4" and placement.runs_marlin:
        return _model_class(shape, model), MXFP4_BY_MARLIN
    return _model_class(shape, model), FULL if name == "unquantized" else _FORMATS.get(name, name)


def _feed_forward_modules(shape: weights.ModelShape) -> Iterator[Module]:
    """Yield the matrices of the last layer that has any: the first layers of models with experts may have none."""
    alone = weights.Sharding(model="", tp=1)
    for index, layer in reversed(list(enumerate(shape.layers))):
        for part in layer.feed_forward:
            yield from feed_forward_modules(part, shape.hidden_size, f"layers.{index}.", alone)
        if layer.feed_forward:
            return


def _weight_of(module: Module) -> tuple[bool, int]:
    return module.role == EXPERTS, max((rows * columns for rows, columns in module.matrices), default=0)


def _model_class(shape: weights.ModelShape, model: ModelSpec) -> str:
    mixers = [layer.mixer for layer in shape.layers if layer.mixer is not None]
    if any(isinstance(each, weights.Mamba2 | weights.GatedDeltaNet | weights.KimiDelta) for each in mixers):
        return HYBRID
    if any(_is_sparse(each) for each in mixers):
        return SPARSE
    return _by_sizes(model)


def _is_sparse(mixer: weights.Mixer) -> bool:
    if isinstance(mixer, weights.LatentAttention):
        return mixer.is_sparse
    return isinstance(mixer, weights.Attention) and mixer.index_heads > 0


def _by_sizes(model: ModelSpec) -> str:
    if model.is_mla:
        return LATENT
    if model.is_moe:
        return WITH_EXPERTS
    return WITHOUT_GROUPS if model.num_kv_heads >= model.num_heads else DENSE


def _parallelism(model: ModelSpec, gpu: GpuSpec, placement: KernelPlacement, dp: int, pp: int) -> str:
    """Return how GPUs share the work; what is least known of it decides."""
    num_gpus = placement.tp * dp
    if num_gpus > 1 and num_gpus > max(gpu.nvlink_gpus, gpu.gpus_per_node):
        return NODES
    if not (gpu.nvlink_gb_s and num_gpus <= gpu.nvlink_gpus) and num_gpus > 2:
        return PCIE_OF_MORE
    if dp > 1:
        return RANKS
    if pp > 1:
        return STAGES
    if placement.tp == 1:
        return ONE_GPU
    if not gpu.nvlink_gb_s:
        return PCIE
    return EXPERT_PARALLEL if placement.expert_parallel and model.is_moe else NVLINK


# How sure a prediction is: the errors of a latency model on the measured servers that are most like a deployment.
#
# `catalogue/measured_errors.json` has the errors by kind of server, and how much they differ between kinds. `python
# -m workshop.errors` writes that file. Every command quotes the one statement that is made here.

MEASURED_ERRORS = Path(__file__).parent / "catalogue" / "measured_errors.json"
METRICS = ("ttft", "itl", "throughput")
LEARNED = "learned"
"""The name in the table for coefficients that were fitted to recordings of the deployment itself."""
UNKNOWN_STEP_ERROR = 0.3
"""Assumed share of a step's time where no error of a latency model was measured at all."""
_ENGINE = "vllm"
FEW_RECORDINGS = 8
"""With fewer recordings of a kind the errors of kinds beside it count as well."""


class Errors(NamedTuple):
    """Absolute errors of one metric as fractions: the median, and the error that nine of ten stay below."""

    median: float
    p90: float


class MeasuredKind(NamedTuple):
    """Servers of one kind with one model, and the errors of a latency model on their recordings, by metric."""

    kind: ServerKind
    model: str
    shape: tuple[int, int]
    """Layers and width, which models with other names may share."""
    num_recordings: int
    errors: Mapping[str, Errors]
    is_learned_from: bool = False
    """Whether something was learned from other recordings of the same server, which others do not have."""
    ratios: Mapping[str, Sequence[float]] = {}
    """By metric, the logarithms of the measured over the predicted time of each recording; for throughput, of the time
    of a request."""
    waiting: Sequence[bool] = ()
    """For each recording whether requests were predicted to wait for their first token, by `is_waiting`."""


WAITING_SHARE = 0.1
"""Least share of the time of requests that passes before their first token where they are said to wait for it. In
bursts it is 0.25 to 0.98, in all other recordings at most 0.08."""


def is_waiting(ttft_ms: float, e2e_ms: float) -> bool:
    """Return whether requests wait for their first token, by the means of a prediction."""
    return ttft_ms >= WAITING_SHARE * e2e_ms > 0


class RatioSpread(NamedTuple):
    """Ratios of measured times to predicted ones, as ascending logarithms, and the share of servers below each.

    Servers are slower than predicted by more than they are faster, and the two sides are as they were measured.
    """

    logarithms: Sequence[float]
    levels: Sequence[float]

    def factors(self, share: float) -> tuple[float, float]:
        """Return the factors on a predicted time between which the measured one lies in a share of cases: those of the
        shortest such interval."""
        room = max(0.0, 1 - share - 2 * _LEAST_TAIL)
        tails = [_LEAST_TAIL + room * place / _TAILS for place in range(_TAILS + 1)]
        return min(((self.factor_at(tail), self.factor_at(tail + share)) for tail in tails), key=_width)

    def factor_at(self, confidence: float) -> float:
        """Return the factor on a predicted time that the measured one stays below with a probability."""
        return exp(_interpolated(confidence, self.levels, self.logarithms))

    def probability(self, factor: float) -> float:
        """Return how probable it is that a measured time is at most so many times the predicted one."""
        if factor <= 0:
            return 0.0
        return _interpolated(log(factor), self.logarithms, self.levels)


_LEAST_TAIL, _TAILS = 0.01, 20
"""Share at least left on either side, and intervals of a share that are compared, less one."""


def _width(factors: tuple[float, float]) -> float:
    low, high = factors
    return high - low


def _interpolated(value: float, points: Sequence[float], values: Sequence[float]) -> float:
    """Return a value between neighbouring points, which ascend; beyond the ends that of the first or last one."""
    place = bisect_left(points, value)
    if place in (0, len(points)):
        return values[max(0, place - 1)]
    low, first = points[place - 1], values[place - 1]
    return first + (values[place] - first) * (value - low) / (points[place] - low)


class Sureness(NamedTuple):
    """The errors to expect of a latency model for a deployment, and what that expectation rests on.

    `unlike` names the properties in which measured servers differ from the deployment.
    """

    latency_model: str
    errors: Mapping[str, Errors]
    num_recordings: int = 0
    measured_on: str = ""
    unlike: tuple[str, ...] = ()
    unknown: str = ""
    """A part of the time that nothing is known about, empty without one."""
    ratios: Mapping[str, RatioSpread] = {}
    """By metric, what measured times are over predicted ones."""
    waiting_ratios: Mapping[str, RatioSpread] = {}
    """Such ratios of requests that wait for their first token, by `is_waiting`."""

    @property
    def step_error(self) -> float:
        """The median error of the time between tokens, as a share of a step's time."""
        return self.errors["itl"].median if self.errors else UNKNOWN_STEP_ERROR

    @property
    def expected_error(self) -> float:
        """One figure to compare latency models by: the mean of the median errors of all metrics."""
        if not self.errors:
            return float("inf")
        return sum(each.median for each in self.errors.values()) / len(self.errors)

    def ratios_where(self, waiting: bool) -> Mapping[str, RatioSpread]:
        """Return by metric what measured times are over predicted ones, where requests wait or do not."""
        return (self.waiting_ratios if waiting else {}) or self.ratios

    def interval_ms(
        self, metric: str, predicted_ms: float, share: float, *, waiting: bool = False
    ) -> tuple[float, float] | None:
        """Return between which times a share of servers lies; None where nothing is known. `throughput` is of E2E.

        `waiting` says whether requests wait for their first token, by `is_waiting`.
        """
        ratios = self.ratios_where(waiting)
        if metric not in ratios:
            return None
        low, high = ratios[metric].factors(share)
        return low * predicted_ms, high * predicted_ms

    @property
    def short_text(self) -> str:
        """The median errors in a few words."""
        if not self.errors:
            return "error not known"
        return "median error " + ", ".join(f"{_NAMES[name]} {_percent(self.errors[name].median)}" for name in METRICS)

    @property
    def text(self) -> str:
        """The whole statement, without the name of the latency model."""
        if not self.errors:
            return f"error not known: no prediction with step times of {self.latency_model} was compared with a server"
        within = f"without a bound, as {self.unknown}" if self.unknown else f"nine of ten within {self._bounds}"
        return f"{self.short_text}, {within}; {self._basis}"

    @property
    def _bounds(self) -> str:
        *first, last = (_percent(self.errors[name].p90) for name in METRICS)
        return f"{', '.join(first)} and {last}"

    @property
    def _basis(self) -> str:
        count = f"{self.num_recordings} recording{'' if self.num_recordings == 1 else 's'}"
        if not self.unlike:
            few = ", with kinds beside it as these are few" if self.num_recordings < FEW_RECORDINGS else ""
            return f"measured on {count} of {self.measured_on}{few}"
        return (
            f"no such server was measured: widened from {count} of {self.measured_on}, "
            f"unlike in {', '.join(self.unlike)}"
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """The statement as values of JSON: fractions by metric, and the text that commands print."""
        return {
            "latency_model": self.latency_model,
            **{name: self._as_json(name, each) for name, each in self.errors.items()},
            "recordings": self.num_recordings,
            "measured_on": self.measured_on,
            "unlike": list(self.unlike),
            "unknown": self.unknown or None,
            "summary": self.short_text,
            "text": self.text,
        }

    def _as_json(self, metric: str, errors: Errors) -> dict[str, Any]:
        of_both = {
            name: [round(each, _DIGITS) for each in self.ratios_where(waiting)[metric].factors(0.9)]
            if self.ratios
            else None
            for name, waiting in (("factors_90", False), ("factors_90_waiting", True))
        }
        return {"median": errors.median, "p90": None if self.unknown else errors.p90, **of_both}


_PROPERTIES = ("class of the model", "precision", "GPU", "sharing of the work")
_NAMES = {"ttft": "TTFT", "itl": "ITL", "throughput": "throughput"}
_EXCHANGE_UNKNOWN = "how long more than two GPUs exchange over PCIe is not known"
_MOST_SHOWN = 10
"""Errors beyond ten times the figure itself are all the same to a reader."""


def _percent(share: float) -> str:
    if share > _MOST_SHOWN:
        return f"more than {100 * _MOST_SHOWN:,} %"
    return f"{100 * share:.1f} %" if share < 0.0995 else f"{100 * share:.0f} %"


def expected(latency_model: str, choice: LatencyChoice) -> Sureness:
    """Return the errors to expect of a latency model for a deployment."""
    if choice.beta:  # coefficients of the user, on which nothing was measured
        return Sureness(latency_model, {})
    placement = choice.placement or KernelPlacement(tp=choice.tp)
    kind = kind_of(choice.model, choice.gpu, placement, choice.dp, choice.pp)
    shape = (choice.model.num_layers, choice.model.hidden_size)
    is_learned = _is_learned_here(choice)
    return sureness_of(latency_model, kind, shape, choice.engine, is_learned=is_learned, unmeasured=choice.unmeasured)


def _is_learned_here(choice: LatencyChoice) -> bool:
    """Return whether a file has coefficients that were fitted to recordings of just this deployment."""
    if choice.coefficients is None:
        return False
    from blis_sim.engine.latency.coefficients_file import read_content

    content = read_content(choice.coefficients) if choice.learned is None else choice.learned
    learned_for = content.get("learned_for")
    if not isinstance(learned_for, Mapping):
        return False
    deployed = (short_name(choice.model.name), choice.gpu.name, choice.tp)
    return (
        short_name(str(learned_for.get("model", ""))),
        learned_for.get("hardware"),
        learned_for.get("tp"),
    ) == deployed


@cache
def sureness_of(
    latency_model: str,
    kind: ServerKind,
    shape: tuple[int, int],
    engine: str = _ENGINE,
    *,
    is_learned: bool = False,
    unmeasured: tuple[str, ...] = (),
) -> Sureness:
    """Return the statement for servers of a kind, timed by a latency model and simulated by an engine.

    `is_learned` says that coefficients were fitted to recordings of the server itself. `unmeasured` names what it has
    and no recorded server had.
    """
    unknown = _EXCHANGE_UNKNOWN if kind.parallelism == PCIE_OF_MORE else ""
    row = LEARNED if is_learned else latency_model
    known = measured_kinds(row)
    if not known:
        return Sureness(latency_model, {}, unknown=unknown)
    like = Likeness(known, (), 0) if is_learned else nearest_kinds(kind, shape, known)
    for name in (*unmeasured, *(() if engine == _ENGINE else ("engine",))):
        like = like.also_unlike(name)
    spread = _table()["spread"][row]
    return Sureness(
        latency_model,
        {metric: errors_like(metric, like, known, spread[metric]) for metric in METRICS},
        like.num_recordings,
        _described(like.nearest, is_learned),
        like.unlike,
        unknown,
        *(
            {metric: ratio_spread(metric, kind, like, known, waiting) for metric in METRICS}
            for waiting in (False, True)
        ),
    )


def statements_on(gpu: str) -> dict[ServerKind, Sureness]:
    """Return the statement for each kind of server measured on a GPU, by the latency model with the least error."""
    names = [name for name in _table()["spread"] if name != LEARNED]
    kinds = {(each.kind, each.shape) for name in names for each in measured_kinds(name) if each.kind.gpu == gpu}
    found: dict[ServerKind, Sureness] = {}
    for kind, shape in sorted(kinds):
        best = min((sureness_of(name, kind, shape) for name in names), key=lambda each: each.expected_error)
        known = found.get(kind)
        found[kind] = best if known is None or best.expected_error > known.expected_error else known
    return found


class Likeness(NamedTuple):
    """The measured servers that are most like a deployment, the properties in which any differs, and in how many each
    does."""

    nearest: Sequence[MeasuredKind]
    unlike: tuple[str, ...]
    num_unlike: int

    def also_unlike(self, name: str) -> "Likeness":
        """Return the same servers, which differ from the deployment in one more property."""
        return Likeness(self.nearest, (*self.unlike, name), self.num_unlike + 1)

    @property
    def num_recordings(self) -> int:
        """The recordings of all of these servers."""
        return sum(each.num_recordings for each in self.nearest)

    def mean(self, metric: str) -> Errors:
        """Return the geometric mean of the errors of these servers, weighted by their recordings."""
        return _mean([(each.errors[metric], each.num_recordings) for each in self.nearest])

    def largest(self, metric: str) -> Errors:
        """Return the largest errors of these servers, of which none has few recordings unless all have."""
        many = [each for each in self.nearest if each.num_recordings >= FEW_RECORDINGS] or self.nearest
        found = [each.errors[metric] for each in many]
        return Errors(max(each.median for each in found), max(each.p90 for each in found))


def nearest_kinds(kind: ServerKind, shape: tuple[int, int], known: Sequence[MeasuredKind]) -> Likeness:
    """Return the measured servers that are most like a deployment.

    Another model of the same kind counts as well where the recordings of the model itself are few. A server that was
    learned from is like no other.
    """
    same = [each for each in known if each.kind == kind and each.shape == shape and each.is_learned_from]
    if same:
        return Likeness(same, (), 0)
    known = [each for each in known if not each.is_learned_from]
    unlike = [
        [name for name, wanted, there in zip(_PROPERTIES, kind, each.kind, strict=True) if wanted != there]
        for each in known
    ]
    least = min(map(len, unlike))
    nearest = [each for each, names in zip(known, unlike, strict=True) if len(names) == least]
    names = dict.fromkeys(name for found in unlike if len(found) == least for name in found)
    own = [each for each in nearest if each.shape == shape]
    if not own:
        return Likeness(nearest, (*names, "model"), least + 1)
    is_enough = sum(each.num_recordings for each in own) >= FEW_RECORDINGS
    return Likeness(own if is_enough else nearest, tuple(names), least)


def _described(nearest: Sequence[MeasuredKind], is_learned: bool) -> str:
    if is_learned:
        return "servers whose other recordings were learned from"
    names = dict.fromkeys(f"{each.model} ({each.kind.text})" for each in nearest)
    first = list(names)[:_MOST_NAMES]
    more = f" and {len(names) - len(first)} more" if len(names) > len(first) else ""
    return "; ".join(first) + more


_MOST_NAMES = 2


def errors_like(metric: str, like: Likeness, known: Sequence[MeasuredKind], spread: Mapping[str, Any]) -> Errors:
    """Return the errors of the nearest servers, widened by how much errors differ between kinds.

    `spread` has the errors of all recordings as `all`, and as `growth` what errors grow by with each number of unlike
    properties. An unmeasured kind is stated to be no surer than all recordings, nor than any of the nearest kinds.
    Kinds beside a few recordings count as well.
    """
    found = like.mean(metric)
    if like.num_unlike:
        growth = spread["growth"][min(like.num_unlike, len(spread["growth"])) - 1]
        # Recordings of all kinds are about as unlike each other as those that differ in one property.
        of_all = [
            error * here / first for error, here, first in zip(spread["all"], growth, spread["growth"][0], strict=True)
        ]
        wider = 1 + _LEAST_GROWTH * like.num_unlike
        largest = [wider * each for each in like.largest(metric)]
        found = Errors(*(max(own * by, *least) for own, by, *least in zip(found, growth, of_all, largest, strict=True)))
    elif like.num_recordings < FEW_RECORDINGS:
        others = [each for each in known if each not in like.nearest]
        first = like.nearest[0]
        beside = errors_like(metric, nearest_kinds(first.kind, first.shape, others), others, spread)
        found = _mean([(found, like.num_recordings), (beside, FEW_RECORDINGS - like.num_recordings)])
    return Errors(round(found.median, _DIGITS), round(max(found), _DIGITS))


def ratio_spread(
    metric: str, kind: ServerKind, like: Likeness, known: Sequence[MeasuredKind], waiting: bool
) -> RatioSpread:
    """Return what measured times are over predicted ones, by the recordings of servers in the same situation.

    Recordings of measured servers like it weigh more than others. Others say nothing of a server that was learned from.
    """
    here = is_apart(metric, kind, waiting)
    own = () if like.num_unlike else like.nearest
    is_own = bool(own) and own[0].is_learned_from
    found = [
        (ratio, _OWN_WEIGHT if each in own else 1, is_apart(metric, each.kind, flag) == here)
        for each in (own if is_own else [each for each in known if not each.is_learned_from])
        for ratio, flag in zip(each.ratios[metric], each.waiting or [False] * each.num_recordings, strict=True)
    ]
    there = [each for each in found if each[-1]]
    ratios, weights, _ = zip(*sorted(there if len(there) >= _FEWEST else found), strict=True)
    total = sum(weights)
    below = (up_to - weight / 2 for up_to, weight in zip(accumulate(weights), weights, strict=True))
    return RatioSpread(ratios, [0.5 + (each / total - 0.5) / _STRETCH for each in below])


def is_apart(metric: str, kind: ServerKind, waiting: bool) -> bool:
    """Return whether a server is in the situation in which a metric is less sure than elsewhere.

    First tokens come later than predicted on several GPUs of Blackwell, often after 1.2 to 2.5 times as long. Steps and
    times are less sure where requests wait.
    """
    return kind.gpu in _BLACKWELL and kind.parallelism != ONE_GPU if metric == "ttft" else waiting


_BLACKWELL = ("B200", "B300", "GB200")
_OWN_WEIGHT = 40
"""Recordings of others that one of the kind and model itself counts as: of 5, 10, 20 and 40 the narrowest intervals."""
_STRETCH = 1.03
"""Recordings of a kind are alike, so that quantiles of all hold less than their share of a kind that is left out. With
this 89 to 91 % are in an interval of nine of ten."""
_FEWEST = 20
"""With fewer recordings of a situation those of the other one count as well."""
_LEAST_GROWTH = 0.05
"""Each unlike property widens the errors of the least sure of the nearest kinds by at least this share."""
_DIGITS = 4
_LEAST = 0.0001
"""Errors below count as so much, since the logarithm of nothing is none."""


def _mean(weighted: Sequence[tuple[Errors, int]]) -> Errors:
    """Return the weighted geometric mean: errors differ by factors, and one endless queue is no rule."""
    total = sum(weight for _, weight in weighted)
    median, p90 = (
        exp(sum(log(max(errors[place], _LEAST)) * weight for errors, weight in weighted) / total) for place in (0, 1)
    )
    return Errors(median, p90)


@cache
def _table() -> Mapping[str, Any]:
    content: dict[str, Any] = json.loads(MEASURED_ERRORS.read_text(encoding="utf-8"))
    return content


def flags_of(errors: Mapping[str, Any]) -> list[bool]:
    """Return for each recording of a row of the table whether requests wait: it has the places of those that do."""
    places = set(errors.get("waiting", ()))
    return [place in places for place in range(errors["n"])]


@cache
def measured_kinds(latency_model: str) -> tuple[MeasuredKind, ...]:
    """Return the measured servers that a latency model was compared with."""
    return tuple(
        MeasuredKind(
            ServerKind(*row["kind"]),
            row["model"],
            (row["shape"][0], row["shape"][1]),
            row["errors"][latency_model]["n"],
            {name: Errors(*row["errors"][latency_model][name]) for name in METRICS},
            row["errors"][latency_model].get("learned_from", False),
            row["errors"][latency_model]["ratios"],
            flags_of(row["errors"][latency_model]),
        )
        for row in _table()["kinds"]
        if latency_model in row["errors"]
    )
