"""The file of `--autoscaler`: a HorizontalPodAutoscaler of Kubernetes or a ScaledObject of KEDA, as it is applied."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypedDict

from blis_sim.engine.cluster.horizontal import (
    DEFAULT_DOWN,
    DEFAULT_UP,
    QUEUE_FIGURE,
    REPLICA_FIGURES,
    Activation,
    HorizontalSettings,
    MetricTarget,
    ScalingRules,
    ScalingStep,
)
from blis_sim.engine.errors import EngineError
from blis_sim.engine.file_parts import naming_file, problem_in, read_part
from blis_sim.options.file_fields import AtLeastOne, Bounds
from blis_sim.options.files import read_text
from blis_sim.options.yaml_text import YamlError, load_yaml

Replicas: TypeAlias = Annotated[int, Bounds(at_least=0, at_most=10_000)]
WindowSeconds: TypeAlias = Annotated[int, Bounds(at_least=0, at_most=3600)]
PeriodSeconds: TypeAlias = Annotated[int, Bounds(at_least=1, at_most=1800)]
Free: TypeAlias = Mapping[str, Any]

_SUFFIXES = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:[eE](-?\d{1,2}))?([a-zA-Z]*)")
_TERM = r"(sum|avg)\s*(?:by\s*\([^()]*\)\s*)?\(\s*([a-zA-Z_:][\w:]*)\s*(?:\{[^{}]*\})?\s*\)"
_QUERY = re.compile(rf"\s*{_TERM}\s*(?:\+\s*{_TERM}\s*)*")
_FORMER = {"gpu_cache_usage_perc": "kv_cache_usage_perc"}
"""Earlier names of vLLM's gauges."""
_MOST_QUERY = 4096


class PolicyItem(TypedDict, total=False):
    """A step of a behavior."""

    type: Annotated[str, Bounds(choices=("Pods", "Percent"))]
    value: AtLeastOne
    periodSeconds: PeriodSeconds


class RuleKeys(TypedDict, total=False):
    """How fast the number changes in one direction."""

    stabilizationWindowSeconds: WindowSeconds
    selectPolicy: Annotated[str, Bounds(choices=("Max", "Min", "Disabled"))]
    policies: list[PolicyItem]
    tolerance: Any


class BehaviorKeys(TypedDict, total=False):
    """The rules of both directions."""

    scaleUp: RuleKeys
    scaleDown: RuleKeys


class TargetKeys(TypedDict, total=False):
    """The value that a metric is held at."""

    type: Annotated[str, Bounds(choices=("AverageValue", "Value"))]
    averageValue: Any
    value: Any


class MetricKeys(TypedDict, total=False):
    """A metric by its name, and its target."""

    metric: Free
    target: TargetKeys
    describedObject: Free


class MetricItem(TypedDict, total=False):
    """An entry of `metrics`."""

    type: Annotated[str, Bounds(choices=("Pods", "External", "Object"))]
    pods: MetricKeys
    external: MetricKeys
    object: MetricKeys


class HorizontalSpec(TypedDict, total=False):
    """The spec of a HorizontalPodAutoscaler."""

    scaleTargetRef: Free
    minReplicas: AtLeastOne
    maxReplicas: Annotated[int, Bounds(at_least=1, at_most=10_000)]
    metrics: list[MetricItem]
    behavior: BehaviorKeys


class TriggerKeys(TypedDict, total=False):
    """A trigger of a ScaledObject."""

    type: Annotated[str, Bounds(choices=("prometheus",))]
    name: str
    metadata: Free
    metricType: Annotated[str, Bounds(choices=("AverageValue", "Value"))]
    authenticationRef: Free
    useCachedMetrics: bool


class OwnAutoscaler(TypedDict, total=False):
    """Settings of a ScaledObject for the HorizontalPodAutoscaler that KEDA makes."""

    name: str
    behavior: BehaviorKeys


class AdvancedKeys(TypedDict, total=False):
    """The advanced part of a ScaledObject."""

    restoreToOriginalReplicaCount: bool
    horizontalPodAutoscalerConfig: OwnAutoscaler


class ScaledSpec(TypedDict, total=False):
    """The spec of a ScaledObject."""

    scaleTargetRef: Free
    pollingInterval: Annotated[int, Bounds(at_least=1, at_most=3600)]
    cooldownPeriod: Annotated[int, Bounds(at_least=0, at_most=86_400)]
    initialCooldownPeriod: Annotated[int, Bounds(at_least=0, at_most=86_400)]
    idleReplicaCount: Annotated[int, Bounds(at_least=0, at_most=0)]
    minReplicaCount: Replicas
    maxReplicaCount: Annotated[int, Bounds(at_least=1, at_most=10_000)]
    triggers: list[TriggerKeys]
    advanced: AdvancedKeys
    fallback: Free


KINDS = ("HorizontalPodAutoscaler", "ScaledObject")


def read_manifest(path: str | Path) -> HorizontalSettings:
    """Read the one autoscaler of a file, which may have other objects beside it.

    Raises EngineError that names the file and the key.
    """
    path = Path(path)
    found = [each for each in _documents(path) if isinstance(each, Mapping) and each.get("kind") in KINDS]
    if len(found) != 1:
        raise EngineError(f"{path}: needs one object of kind {' or '.join(KINDS)}, found {len(found) or 'none'}")
    (content,) = found
    kind = str(content["kind"])
    name = str(content.get("metadata", {}).get("name", "")) if isinstance(content.get("metadata"), Mapping) else ""
    read = _horizontal if kind == KINDS[0] else _scaled
    try:
        return read(path, name or kind, content.get("spec", {}))
    except EngineError as error:
        raise naming_file(path, error) from None


def _documents(path: Path) -> list[Any]:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise EngineError(f"{path}: cannot be read: {reason}") from None
    found, first_line = [], 0
    for part in re.split(r"(?m)^---[ \t]*(?:#.*)?$", text):
        try:
            content = load_yaml(part)
        except YamlError as error:
            line = None if error.line is None else error.line + first_line
            raise EngineError(f"{path}: {YamlError(error.problem, line)}") from None
        items = content.get("items") if isinstance(content, Mapping) and content.get("kind") == "List" else None
        found += items if isinstance(items, list) else [content]
        first_line += part.count("\n")
    return found


def _horizontal(path: Path, name: str, content: Any) -> HorizontalSettings:
    spec: HorizontalSpec = read_part(path, HorizontalSpec, content, "spec")
    if "maxReplicas" not in spec:
        raise problem_in(path, "spec", "maxReplicas must be given a value")
    up, down = _rules(path, spec.get("behavior", {}), "spec.behavior")
    metrics = [_metric(path, f"spec.metrics[{number}]", each) for number, each in enumerate(spec.get("metrics", []))]
    if not metrics:
        raise problem_in(
            path, "spec", "metrics must have a metric of vLLM: without one Kubernetes goes by the use of processors"
        )
    return HorizontalSettings(
        name=name,
        least=spec.get("minReplicas", 1),
        most=spec["maxReplicas"],
        metrics=tuple(metrics),
        up=up,
        down=down,
    )


def _metric(path: Path, within: str, item: MetricItem) -> MetricTarget:
    kind = item.get("type", "")
    key = kind.lower()
    keys: Any = item.get(key)
    if not kind or keys is None:
        raise problem_in(path, within, "needs type Pods, External or Object, and the part of that name")
    figure = _figure(path, f"{within}.{key}.metric.name", keys.get("metric", {}).get("name"))
    target: TargetKeys = keys.get("target", {})
    is_average = target.get("type") == "AverageValue"
    if kind == "Pods" and not is_average:
        raise problem_in(path, f"{within}.pods.target", "type must be AverageValue for metrics of pods")
    if kind == "Pods" and figure == QUEUE_FIGURE:
        raise problem_in(path, f"{within}.pods.metric", f"{figure} is a metric of the gateway: give it as External")
    field = "averageValue" if is_average else "value"
    return MetricTarget(
        figures=(figure,),
        target=_quantity(path, f"{within}.{key}.target.{field}", target.get(field)),
        is_per_pod=kind == "Pods",
        is_average=is_average,
    )


def _figure(path: Path, place: str, name: object) -> str:
    """The figure that a name of a metrics page or of an adapter means."""
    text = re.sub(r"^vllm[:_]", "", str(name))
    text = _FORMER.get(text, text)
    known = (*REPLICA_FIGURES, QUEUE_FIGURE)
    if text not in known:
        names = ", ".join(each if each == QUEUE_FIGURE else f"vllm:{each}" for each in known)
        raise problem_in(path, place, f"a simulated fleet has the metrics {names}, got {name!r:.80}")
    return text


def _quantity(path: Path, place: str, value: object) -> float:
    """A quantity of Kubernetes, such as 5, "500m" or "1k". Raises EngineError."""
    found = None if isinstance(value, bool) else _QUANTITY.fullmatch(str(value).strip())
    number = 0.0 if found is None else float(found[1]) * 10.0 ** int(found[2] or 0)
    if found is None or found[3] not in _SUFFIXES or not 0 < number < float("inf"):
        raise problem_in(path, place, f'must be a quantity above 0 such as 5, "0.8" or "500m", got {value!r:.80}')
    return number * _SUFFIXES[found[3]]


def _is_zero(value: object) -> bool:
    """Whether a quantity is 0, which no target may be."""
    return re.fullmatch(r"0+(\.0*)?", str(value).strip()) is not None


def _rules(path: Path, keys: BehaviorKeys, within: str) -> tuple[ScalingRules, ScalingRules]:
    up = _rule(path, keys.get("scaleUp", {}), DEFAULT_UP, f"{within}.scaleUp")
    return up, _rule(path, keys.get("scaleDown", {}), DEFAULT_DOWN, f"{within}.scaleDown")


def _rule(path: Path, keys: RuleKeys, default: ScalingRules, within: str) -> ScalingRules:
    steps = default.steps
    if "policies" in keys:
        steps = tuple(_step(path, each, f"{within}.policies[{at}]") for at, each in enumerate(keys["policies"]))
        if not steps:
            raise problem_in(path, within, "policies must have at least one entry")
    return ScalingRules(
        window_us=keys.get("stabilizationWindowSeconds", default.window_us // 1_000_000) * 1_000_000,
        steps=steps,
        select=keys.get("selectPolicy", default.select),
        tolerance=_tolerance(path, f"{within}.tolerance", keys.get("tolerance", default.tolerance)),
    )


def _tolerance(path: Path, place: str, value: object) -> float:
    return 0.0 if _is_zero(value) else _quantity(path, place, value)


def _step(path: Path, keys: PolicyItem, within: str) -> ScalingStep:
    missing = [name for name in ("type", "value", "periodSeconds") if name not in keys]
    if missing:
        raise problem_in(path, within, f"{missing[0]} must be given a value")
    period_us = keys["periodSeconds"] * 1_000_000
    return ScalingStep(value=keys["value"], is_percent=keys["type"] == "Percent", period_us=period_us)


def _scaled(path: Path, name: str, content: Any) -> HorizontalSettings:
    spec: ScaledSpec = read_part(path, ScaledSpec, content, "spec")
    advanced = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
    within = "spec.advanced.horizontalPodAutoscalerConfig.behavior"
    up, down = _rules(path, advanced.get("behavior", {}), within)
    triggers = spec.get("triggers", [])
    if not triggers:
        raise problem_in(path, "spec", "triggers must have at least one entry")
    least, idle = spec.get("minReplicaCount", 0), spec.get("idleReplicaCount")
    if idle is not None and least == 0:
        raise problem_in(path, "spec", "idleReplicaCount must be below minReplicaCount (0), got 0")
    pairs = [_trigger(path, f"spec.triggers[{number}]", each) for number, each in enumerate(triggers)]
    return HorizontalSettings(
        name=name,
        least=least,
        most=spec.get("maxReplicaCount", 100),
        metrics=tuple(metric for metric, _ in pairs),
        up=up,
        down=down,
        activation=Activation(
            thresholds=tuple(threshold for _, threshold in pairs),
            goes_to_zero=least == 0 or idle == 0,
            cooldown_us=spec.get("cooldownPeriod", 300) * 1_000_000,
            initial_cooldown_us=spec.get("initialCooldownPeriod", 0) * 1_000_000,
            polling_us=spec.get("pollingInterval", 30) * 1_000_000,
        ),
    )


def _trigger(path: Path, within: str, keys: TriggerKeys) -> tuple[MetricTarget, float]:
    """The metric of a trigger, and the value above which it is active."""
    if keys.get("type") != "prometheus":
        raise problem_in(path, within, "type must be prometheus")
    metadata = keys.get("metadata", {})
    query = str(metadata.get("query", ""))
    found = _QUERY.fullmatch(query) if len(query) <= _MOST_QUERY else None
    terms: Sequence[tuple[str, str]] = re.findall(_TERM, query) if found else ()
    functions = {function for function, _ in terms}
    if len(functions) != 1:
        problem = f"must be sum(METRIC) or avg(METRIC), or several of one kind added up, got {query!r:.80}"
        raise problem_in(path, f"{within}.metadata.query", problem)
    figures = tuple(_figure(path, f"{within}.metadata.query", name) for _, name in terms)
    threshold = metadata.get("activationThreshold", 0)
    is_zero = threshold == "" or _is_zero(threshold)
    metric = MetricTarget(
        figures=figures,
        target=_quantity(path, f"{within}.metadata.threshold", metadata.get("threshold")),
        is_per_pod=False,
        is_average=keys.get("metricType", "AverageValue") == "AverageValue",
        takes_mean=functions == {"avg"},
    )
    return metric, 0.0 if is_zero else _quantity(path, f"{within}.metadata.activationThreshold", threshold)
