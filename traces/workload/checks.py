"""Checks between keys of a workload spec, and bounds of the parameters of length distributions."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from blis_sim.options.limits import LEAST_RATE, MOST_TOKENS
from traces.text_file import TraceError
from traces.workload.sections import problem_of_vidur
from traces.workload.spec import (
    ACCUMULATE,
    CV_BOUNDS,
    PROCESSES,
    SLO_CLASSES,
    Agent,
    Arrival,
    Client,
    Cohort,
    Distribution,
    InferencePerf,
    Multimodal,
    Traffic,
    WorkloadSpec,
)

Params: TypeAlias = Mapping[str, float]

REQUIRED_PARAMS = {
    "gaussian": ("mean", "std_dev", "min", "max"),
    "exponential": ("mean",),
    "lognormal": ("mu", "sigma"),
    "pareto_lognormal": ("alpha", "xm", "mu", "sigma", "mix_weight"),
    "constant": ("value",),
}
OPTIONAL_PARAMS = {"exponential": ("min", "max"), "lognormal": ("min", "max")}
_NOT_NEGATIVE = ("std_dev", "sigma")
_EXPONENTS = ("mu", "sigma")
_MAX_EXPONENT = 100
_MAX_DIGITS = 20
_POSITIVE = ("alpha", "xm")


def problem_of(distribution: Distribution) -> str | None:
    """Return the error in the parameters of a distribution: what is expected, what was found; None if they are
    valid."""
    if distribution.type == "empirical":
        return _problem_of_weights(distribution.params)
    required = REQUIRED_PARAMS[distribution.type]
    known = required + OPTIONAL_PARAMS.get(distribution.type, ())
    params = distribution.params
    for name in params:
        if name not in known:
            return f"expected {', '.join(known)} with {distribution.type}, got {name}"
    for name in required:
        if name not in params:
            return f"expected {name} with {distribution.type}, but the key is missing"
    return _problem_of_values(distribution.type, params)


def _problem_of_values(kind: str, params: Params) -> str | None:
    for name, value in params.items():
        most = _MAX_EXPONENT if name in _EXPONENTS else MOST_TOKENS
        if value > most:
            return f"expected {name} to be at most {most:g}, got {value:g}"
        if name in _POSITIVE and value <= 0:
            return f"expected {name} to be above 0, got {value:g}"
        if value < 0 and (name in _NOT_NEGATIVE or (kind, name) == ("exponential", "mean")):
            return f"expected {name} to be at least 0, got {value:g}"
    if not 0 <= params.get("mix_weight", 0) <= 1:
        return f"expected mix_weight between 0 and 1, got {params['mix_weight']:g}"
    low, high = params.get("min", 0), params.get("max", 0)
    if kind != "gaussian" and high and low > high:
        return f"expected min to be at most max ({high:g}), got {low:g}"
    return None


def _problem_of_weights(params: Params) -> str | None:
    for name in params:
        if not name.isdecimal() or not name.isascii() or len(name) > _MAX_DIGITS or name != str(int(name)):
            return f"expected whole numbers of tokens as keys, got {name!r}"
        if int(name) > MOST_TOKENS:
            return f"expected at most {MOST_TOKENS} tokens, got {name}"
    if any(weight < 0 for weight in params.values()):
        return "expected weights of at least 0, got one below"
    if not any(weight > 0 for weight in params.values()):
        return "expected tokens with weights, at least one of them above 0, got none"
    return None


MAX_USERS = 100_000
MODALITIES = ("image", "audio", "video")
AGENT_DISTRIBUTIONS = tuple(name for name in Agent.__dataclass_fields__ if name.endswith("_distribution"))


def checked(spec: WorkloadSpec, source: str) -> WorkloadSpec:
    """Return the spec with notes on settings without effect; `source` names it in errors. Raises TraceError."""
    try:
        _check_sources(spec)
        if 0 < spec.aggregate_rate < LEAST_RATE:
            raise _ProblemError(f"aggregate_rate: expected 0 or at least {LEAST_RATE:g}, got {spec.aggregate_rate:g}")
        for where, traffic in _all_traffic(spec):
            _check_traffic(where, traffic)
        for place, client in enumerate(spec.clients):
            _check_client(f"clients[{place}]", client, absolute=spec.aggregate_rate == 0)
        for place, cohort in enumerate(spec.cohorts):
            _check_cohort(f"cohorts[{place}]", cohort, absolute=spec.aggregate_rate == 0)
        _check_together(spec)
    except _ProblemError as problem:
        raise TraceError(f"{source} key {problem}") from None
    return replace(spec, notes=spec.notes + tuple(dict.fromkeys(_notes(spec))))


class _ProblemError(Exception):
    """A broken rule: the key, what is allowed there, what was found."""


def _all_traffic(spec: WorkloadSpec) -> Iterator[tuple[str, Traffic]]:
    for place, client in enumerate(spec.clients):
        yield f"clients[{place}]", client
    for place, cohort in enumerate(spec.cohorts):
        yield f"cohorts[{place}]", cohort


def _check_sources(spec: WorkloadSpec) -> None:
    if spec.vidur is not None:
        _check_vidur(spec)
        return
    if spec.scenario is not None:
        _check_alone(spec, "scenario")
        return
    if spec.inference_perf is None:
        if not spec.clients and not spec.cohorts:
            raise _ProblemError(
                "clients: expected at least one client or cohort, inference_perf, vidur or scenario, got none"
            )
        return
    if spec.clients or spec.cohorts:
        other = "clients" if spec.clients else "cohorts"
        raise _ProblemError(f"inference_perf: expected no {other} beside it, got both")
    _check_inference_perf(spec.inference_perf)


def _check_inference_perf(section: InferencePerf) -> None:
    if bool(section.stages) == bool(section.concurrent_stages):
        got = "both" if section.stages else "none"
        raise _ProblemError(
            f"inference_perf.stages: expected at least one stage, of stages or of concurrent_stages, got {got}"
        )
    shared = section.shared_prefix
    num_users = shared.num_unique_system_prompts * shared.num_users_per_system_prompt
    if num_users > MAX_USERS:
        raise _ProblemError(f"inference_perf.shared_prefix: expected at most {MAX_USERS} users, got {num_users}")
    for name in ("question_distribution", "output_distribution"):
        distribution = getattr(shared, name)
        if distribution is not None:
            _check_distribution(f"inference_perf.shared_prefix.{name}", distribution)


def _check_alone(spec: WorkloadSpec, section: str) -> None:
    for name in ("clients", "cohorts", "inference_perf", "vidur", "scenario"):
        if name != section and getattr(spec, name):
            raise _ProblemError(f"{section}: expected no {name} beside it, got both")


def _check_vidur(spec: WorkloadSpec) -> None:
    _check_alone(spec, "vidur")
    problem = problem_of_vidur(spec.vidur) if spec.vidur is not None else None
    if problem is not None:
        raise _ProblemError(f"vidur.{problem}")


def _check_traffic(where: str, traffic: Traffic) -> None:
    if traffic.slo_class and traffic.slo_class not in SLO_CLASSES:
        raise _ProblemError(f"{where}.slo_class: expected {', '.join(SLO_CLASSES)} or none, got {traffic.slo_class!r}")
    for name in ("input_distribution", "output_distribution"):
        _check_distribution(f"{where}.{name}", getattr(traffic, name))
    if traffic.multimodal is not None:
        _check_multimodal(f"{where}.multimodal", traffic.multimodal)
    if traffic.reasoning is not None and traffic.reasoning.reason_ratio_distribution is not None:
        name = f"{where}.reasoning.reason_ratio_distribution"
        _check_distribution(name, traffic.reasoning.reason_ratio_distribution)
    if traffic.agent is not None:
        _check_agent(f"{where}.agent", traffic, traffic.agent)


def _check_agent(where: str, traffic: Traffic, agent: Agent) -> None:
    for name in ("reasoning", "multimodal"):
        if getattr(traffic, name) is not None:
            raise _ProblemError(f"{where}: expected no {name} beside it, got both")
    for name in AGENT_DISTRIBUTIONS:
        distribution = getattr(agent, name)
        if distribution is not None:
            _check_distribution(f"{where}.{name}", distribution)


def _check_distribution(where: str, distribution: Distribution) -> None:
    problem = problem_of(distribution)
    if problem is not None:
        raise _ProblemError(f"{where}.params: {problem}")


def _check_multimodal(where: str, multimodal: Multimodal) -> None:
    for kind in MODALITIES:
        tokens, count = f"{kind}_distribution", f"{kind}_count_distribution"
        has_tokens, has_count = (getattr(multimodal, name) is not None for name in (tokens, count))
        if has_tokens != has_count:
            raise _ProblemError(f"{where}: expected {tokens} and {count} together, got one of them")
    for name in multimodal.__dataclass_fields__:
        distribution = getattr(multimodal, name)
        if distribution is not None:
            _check_distribution(f"{where}.{name}", distribution)


def _check_rate(where: str, traffic: Traffic) -> None:
    if traffic.rate_fraction <= 0:
        raise _ProblemError(f"{where}.rate_fraction: expected a number above 0, got {traffic.rate_fraction:g}")
    _check_arrival(f"{where}.arrival", traffic.arrival)


def _check_arrival(where: str, arrival: Arrival) -> None:
    if not arrival.process:
        raise _ProblemError(f"{where}.process: expected {' or '.join(PROCESSES)}, but the key is missing")
    problem = problem_of_cv(arrival)
    if problem is not None:
        raise _ProblemError(f"{where}.cv: expected a number {problem}, got {arrival.cv:g}")


def problem_of_cv(arrival: Arrival) -> str | None:
    """Between what the coefficient of variation must be, where it is not; gaps with shape and scale need none."""
    given_in_full = arrival.shape is not None and arrival.scale is not None
    if arrival.cv is None or given_in_full or arrival.process not in CV_BOUNDS:
        return None
    least, most = CV_BOUNDS[arrival.process]
    return None if least <= arrival.cv <= most else f"between {least:g} and {most:g} with {arrival.process}"


def _check_client(where: str, client: Client, absolute: bool) -> None:
    if client.concurrency:
        _check_users(where, client)
        return
    _check_rate(where, client)
    if client.lifecycle is not None:
        _check_windows(f"{where}.lifecycle.windows", client)
    if absolute and (client.windows is None or any(window.trace_rate is None for window in client.windows)):
        raise _ProblemError(
            f"{where}.lifecycle.windows: expected windows with a trace_rate, as there is no aggregate_rate"
        )


def _check_users(where: str, client: Client) -> None:
    if client.rate_fraction:
        raise _ProblemError(f"{where}.concurrency: expected no rate_fraction beside it, got {client.rate_fraction:g}")
    if client.lifecycle is not None:
        raise _ProblemError(f"{where}.lifecycle: expected none beside concurrency, whose users are always active")


def _check_windows(where: str, client: Client) -> None:
    if not client.windows:
        raise _ProblemError(f"{where}: expected at least one window, got none")
    for place, window in enumerate(client.windows):
        inside = f"{where}[{place}]"
        if window.end_us <= window.start_us:
            raise _ProblemError(
                f"{inside}.end_us: expected more than start_us ({window.start_us}), got {window.end_us}"
            )
        if window.arrival is not None:
            _check_arrival(f"{inside}.arrival", window.arrival)
        for name in ("input_distribution", "output_distribution"):
            distribution = getattr(window, name)
            if distribution is not None:
                _check_distribution(f"{inside}.{name}", distribution)


def _check_cohort(where: str, cohort: Cohort, absolute: bool) -> None:
    _check_rate(where, cohort)
    if cohort.prefix_sharing == "per_member" and not cohort.prefix_group:
        raise _ProblemError(f"{where}.prefix_sharing: expected a prefix_group with per_member, but the key is missing")
    if not absolute:
        return
    for name in ("diurnal", "drain"):
        if getattr(cohort, name) is not None:
            raise _ProblemError(f"{where}.{name}: expected a spike with a trace_rate, as there is no aggregate_rate")
    if cohort.spike is None or cohort.spike.trace_rate is None:
        raise _ProblemError(f"{where}.spike.trace_rate: expected a number above 0, as there is no aggregate_rate")


def _check_together(spec: WorkloadSpec) -> None:
    everyone = list(_all_traffic(spec))
    with_class = [where for where, traffic in everyone if traffic.slo_class]
    without = [where for where, traffic in everyone if not traffic.slo_class]
    if with_class and without:
        raise _ProblemError(f"{without[0]}.slo_class: expected a class, as {with_class[0]} has one, got none")
    users = any(client.concurrency for client in spec.clients)
    sessions = [where for where, traffic in everyone if traffic.multi_turn is not None]
    if users and sessions:
        raise _ProblemError(f"{sessions[0]}.reasoning.multi_turn: expected no conversations beside concurrency users")
    agents = [where for where, traffic in everyone if traffic.agent is not None]
    if users and agents:
        raise _ProblemError(f"{agents[0]}.agent: expected no agents beside concurrency users")


def _notes(spec: WorkloadSpec) -> Iterator[str]:
    for where, traffic in _all_traffic(spec):
        growth = "" if traffic.multi_turn is None else traffic.multi_turn.context_growth
        if growth not in ("", ACCUMULATE):
            yield f"{where}: the context_growth {growth!r} is taken as none, known is {ACCUMULATE}"
        if traffic.prefix_length and not traffic.prefix_group:
            yield f"{where}: prefix_length has no effect without a prefix_group"
        if traffic.agent is not None:
            yield from _notes_on_agent(f"{where}.agent", traffic.agent)
        if traffic.network is not None:
            yield f"{where}: network has no effect on what is sent"
        yield from _notes_on_arrival(f"{where}.arrival", traffic.arrival)
    if spec.vidur is not None and spec.aggregate_rate:
        yield "aggregate_rate has no effect beside vidur, whose interval has a qps"
    if spec.scenario is not None and spec.aggregate_rate:
        yield "aggregate_rate has no effect beside scenario, which has a rate"
    if spec.inference_perf is not None and spec.aggregate_rate:
        yield "aggregate_rate has no effect beside inference_perf, whose stages have rates"


def _notes_on_agent(where: str, agent: Agent) -> Iterator[str]:
    if agent.helpers_distribution is None:
        for name in ("helper_turns_distribution", "helper_prefix_length"):
            if getattr(agent, name):
                yield f"{where}: {name} has no effect without a helpers_distribution"
    elif agent.helper_prefix_length and agent.helper_context == "fork":
        yield f"{where}: helper_prefix_length has no effect with helper_context fork"


def _notes_on_arrival(where: str, arrival: Arrival) -> Iterator[str]:
    given = [name for name in ("cv", "shape", "scale") if getattr(arrival, name) is not None]
    if given and arrival.process not in CV_BOUNDS:
        yield f"{where}: {', '.join(given)} has no effect with {arrival.process or 'no process'}"
    elif ("shape" in given) != ("scale" in given):
        yield f"{where}: shape and scale have an effect only together"
    elif given == ["cv", "shape", "scale"]:
        yield f"{where}: cv has no effect beside shape and scale"
