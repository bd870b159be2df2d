"""How sure a prediction is: errors on the measured servers that are most like a deployment, widened for the rest."""

from dataclasses import replace
from math import exp, log
from statistics import median
from typing import Any

import pytest

from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import LEARNED_COEFFICIENTS, load_model
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.confidence import (
    METRICS,
    Likeness,
    MeasuredKind,
    RatioSpread,
    ServerKind,
    Sureness,
    errors_like,
    expected,
    is_waiting,
    measured_kinds,
    ratio_spread,
    sureness_of,
)
from blis_sim.engine.latency.model_operations import KernelPlacement
from blis_sim.engine.lora import LoraSettings
from blis_sim.engine.speculation_options import SpeculationOptions

PREDICTORS = ("kernels", "fitted", "trained-physics")


def choice(model: str, gpu: str = "H100", tp: int = 1, **settings: object) -> LatencyChoice:
    placement = KernelPlacement(tp=tp, moe_backend="marlin")  # as recordings of gpt-oss on Hopper
    return LatencyChoice(model=load_model(model), gpu=load_gpu(gpu), tp=tp, placement=placement, **settings)  # type: ignore[arg-type]


def stated(model: str, gpu: str = "H100", tp: int = 1, predictor: str = "kernels") -> Sureness:
    return expected(predictor, choice(model, gpu, tp))


def test_a_kind_with_many_recordings_has_their_own_errors() -> None:
    found = stated("gpt-oss-120b", tp=2)
    (measured,) = [each for each in measured_kinds("kernels") if each.kind.text in found.measured_on]
    for name in METRICS:
        assert found.errors[name] == pytest.approx(measured.errors[name])
    assert (found.unlike, found.num_recordings) == ((), measured.num_recordings)
    assert f"measured on {found.num_recordings} recordings of gpt-oss-120b" in found.text


DRAFTS = SpeculationOptions(speculative_config='{"method": "ngram", "num_speculative_tokens": 3}')


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("speculative decoding", {"drafts": DRAFTS}),
        ("KV offloading", {"kv_offloading_size": 8.0}),
        ("weights in host memory", {"cpu_offload_gb": 1.0}),
        ("steps without CUDA graphs", {"enforce_eager": True}),
    ],
)
def test_a_server_that_does_what_no_recorded_one_did_is_unlike_all(name: str, settings: dict[str, Any]) -> None:
    plain, other = (
        resolve(DeploymentOptions(model="llama-3.1-8b-instruct", latency_model="kernels", **each)).sureness
        for each in ({}, settings)
    )
    assert (plain.unlike, other.unlike) == ((), (name,))
    assert f"unlike in {name}" in other.text
    for metric in METRICS:
        assert other.errors[metric].median > plain.errors[metric].median
        assert other.errors[metric].p90 > plain.errors[metric].p90


def test_adapters_that_are_added_to_a_deployment_are_stated() -> None:
    plain = resolve(DeploymentOptions(model="llama-3.1-8b-instruct", latency_model="kernels"))
    assert plain.with_config(lora=LoraSettings(max_loras=1)).sureness.unlike == ("LoRA adapters",)


@pytest.mark.parametrize("predictor", ["kernels", "fitted"])
def test_what_no_recorded_server_did_has_the_intervals_of_all(predictor: str) -> None:
    """Even where the recordings of the server itself say most."""
    for model, tp in (("gpt-oss-120b", 2), ("qwen3-14b", 1)):
        own, other = (expected(predictor, choice(model, tp=tp, unmeasured=names)) for names in ((), ("KV offloading",)))
        narrow, wide = (found.ratios["itl"].factors(0.9) for found in (own, other))
        assert log(wide[1] / wide[0]) > 1.05 * log(narrow[1] / narrow[0])


def test_the_stated_error_is_that_of_the_kernels_of_the_experts_in_use() -> None:
    old, new = (
        resolve(
            DeploymentOptions(
                model="gpt-oss-120b", hardware="H100", tp=2, latency_model="kernels", vllm_version=release
            )
        ).sureness
        for release in ("0.11", "0.33")
    )
    assert "MXFP4 by Marlin on H100" in old.measured_on
    assert not old.unlike
    assert "precision" in new.unlike  # no server was measured on Hopper with Triton's kernels
    assert all(new.errors[name].median > old.errors[name].median for name in METRICS)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("model", "gpu", "tp"), [("gpt-oss-120b", "L40S", 2), ("gpt-oss-120b", "H20", 2), ("gpt-oss-20b", "H100", 2)]
)
def test_an_unmeasured_deployment_has_wider_ranges_than_the_measured_one(
    metric: str, model: str, gpu: str, tp: int
) -> None:
    measured, other = stated("gpt-oss-120b", tp=2), stated(model, gpu, tp)
    assert other.unlike
    assert other.errors[metric].median > measured.errors[metric].median
    assert other.errors[metric].p90 > measured.errors[metric].p90


def test_each_unlike_property_is_named() -> None:
    model = stated("gpt-oss-20b", "H100", 2)
    model_and_gpu = stated("gpt-oss-20b", "H20", 2)
    assert model.unlike == ("model",)
    assert set(model_and_gpu.unlike) == {"GPU", "model"}
    assert "no such server was measured" in model_and_gpu.text


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_nothing_is_surer_than_the_usual_recording_where_nothing_was_measured(predictor: str) -> None:
    """Coefficients of one server, and a few small errors, promise nothing for others."""
    for model, gpu, tp in (("llama-3.2-3b", "H200", 1), ("qwen3-14b", "A10", 2), ("mixtral-8x22b-v0.1", "H200", 8)):
        found = stated(model, gpu, tp, predictor)
        assert min(each.median for each in found.errors.values()) > 0.03, (model, gpu, found.text)


def test_the_server_that_coefficients_were_learned_from_is_measured_and_like_no_other() -> None:
    own, other = (stated("qwen3-14b", gpu, predictor="fitted") for gpu in ("H100", "H200"))
    assert "of qwen3-14b" in own.text
    assert "(dense models in 16 bits on H100, one GPU)" in own.text
    assert "qwen3-14b (dense models in 16 bits on H100, one GPU)" not in other.text
    assert own.expected_error < other.expected_error / 10


def test_few_recordings_do_not_promise_their_own_errors() -> None:
    measured = next(each for each in measured_kinds("kernels") if each.model == "llama-2-7b-hf")
    found = stated("llama-2-7b-hf")
    assert measured.num_recordings == found.num_recordings == 2
    assert found.errors["itl"].p90 > 1.2 * measured.errors["itl"].p90
    assert "as these are few" in found.text


def test_models_of_equal_shape_have_equal_statements() -> None:
    assert stated("llama-3.1-70b-instruct-fp8", tp=4) == stated("llama-3.3-70b-instruct-fp8", tp=4)


def test_exchange_over_pcie_beyond_two_gpus_is_said_to_be_unknown() -> None:
    unknown = "how long more than two GPUs exchange over PCIe is not known"
    assert all(unknown in stated("llama-3.1-70b", "L40S", tp).text for tp in (4, 8))
    assert unknown not in stated("llama-3.1-70b", "L40S", 2).text
    assert unknown not in stated("llama-3.1-70b", "H100", 8).text


def test_another_engine_is_unlike_the_servers_that_were_measured() -> None:
    vllm, blis = (expected("trained-physics", choice("qwen3-14b", engine=name)) for name in ("vllm", "blis"))
    assert "engine" in blis.unlike
    assert blis.expected_error > vllm.expected_error


def test_coefficients_of_the_deployment_itself_are_surer_than_those_of_another() -> None:
    path = str(LEARNED_COEFFICIENTS)
    here = expected("fitted", choice("qwen3-14b", coefficients=path))
    elsewhere = expected("fitted", choice("llama-3.1-8b", coefficients=path))
    assert "servers whose other recordings were learned from" in here.text
    assert here.expected_error < elsewhere.expected_error


@pytest.mark.parametrize(("name", "beta"), [("roofline", ()), ("adaptive-toy", ()), ("trained-physics", (1.0,) * 11)])
def test_what_was_never_compared_has_no_figure(name: str, beta: tuple[float, ...]) -> None:
    found = expected(name, replace(choice("qwen3-14b"), alpha=beta, beta=beta))
    assert (found.errors, found.text.partition(":")[0]) == ({}, "error not known")


def test_an_unknown_part_leaves_errors_without_a_bound() -> None:
    found = stated("llama-3.1-70b", "L40S", 8)
    assert "without a bound" in found.text
    assert (found.as_json["itl"]["p90"], found.as_json["unknown"]) == (None, found.unknown)
    assert stated("llama-3.1-70b", "L40S", 2).as_json["itl"]["p90"] > 0.1


@pytest.mark.parametrize("metric", METRICS)
def test_the_range_grows_with_the_number_of_unlike_properties(metric: str) -> None:
    known = [each for each in measured_kinds("kernels") if each.model == "gpt-oss-120b"]
    spread = {"all": [0.05, 0.13], "growth": [[1.5, 2.0], [1.6, 2.5], [1.8, 4.0]]}
    found = [errors_like(metric, Likeness(known[:1], ("GPU",), count), known, spread) for count in (1, 2, 3, 4)]
    assert found[0].p90 < found[1].p90 < found[2].p90 == found[3].p90
    assert found[0].median < found[2].median


def ratios() -> RatioSpread:
    """Servers that are slower than the centre by more than they are faster."""
    levels = [place / 100 for place in range(1, 100)]
    return RatioSpread([0.1 + 0.1 * log(level / (1 - level)) + 0.15 * level for level in levels], levels)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8, 0.9, 0.95])
def test_an_interval_holds_its_share_of_servers(share: float) -> None:
    low, high = ratios().factors(share)
    assert low < high
    assert ratios().probability(high) - ratios().probability(low) == pytest.approx(share)


def test_an_interval_is_the_shortest_of_its_share() -> None:
    """A long tail of slow servers costs more room than one of fast servers."""
    spread = ratios()
    low, high = spread.factors(0.8)
    for below in (0.02, 0.05, 0.1, 0.15, 0.18):
        assert high - low <= spread.factor_at(below + 0.8) - spread.factor_at(below)
    assert spread.probability(low) < 0.1 < 1 - spread.probability(high)


def test_a_server_stays_below_a_factor_with_the_probability_asked_for() -> None:
    for confidence in (0.1, 0.5, 0.75, 0.9, 0.95):
        assert ratios().probability(ratios().factor_at(confidence)) == pytest.approx(confidence)


def test_a_limit_far_from_what_is_predicted_is_met_as_surely_as_servers_are_known() -> None:
    assert ratios().probability(1e9) == pytest.approx(0.99)
    assert ratios().probability(1e-9) == pytest.approx(0.01)
    assert ratios().probability(0.0) == 0


def test_every_latency_model_with_measured_errors_has_intervals() -> None:
    for predictor in PREDICTORS:
        found = stated("gpt-oss-120b", tp=2, predictor=predictor)
        low, high = found.interval_ms("ttft", 100.0, 0.9) or (0.0, 0.0)
        assert 0 < low < high
    assert Sureness("roofline", {}).interval_ms("ttft", 100.0, 0.9) is None


@pytest.mark.parametrize(("ttft_ms", "e2e_ms", "waits"), [(9.9, 100.0, False), (10.0, 100.0, True), (0.0, 0.0, False)])
def test_requests_wait_that_have_no_token_for_a_tenth_of_their_time(ttft_ms: float, e2e_ms: float, waits: bool) -> None:
    assert is_waiting(ttft_ms, e2e_ms) is waits


@pytest.mark.parametrize("num_bursts", [19, 20])
def test_bursts_of_a_kind_that_has_none_are_as_those_of_others_if_there_are_enough(num_bursts: int) -> None:
    calm, burst = (
        MeasuredKind(
            ServerKind("dense models", "16 bits", gpu, "one GPU"),
            gpu,
            (1, 1),
            count,
            {},
            ratios={"itl": [ratio] * count},
            waiting=[waits] * count,
        )
        for gpu, ratio, waits, count in (("H100", 0.01, False, 30), ("B200", 0.5, True, num_bursts))
    )
    like = Likeness([calm], (), 0)
    found = [ratio_spread("itl", calm.kind, like, (calm, burst), waiting) for waiting in (True, False)]
    assert [each.factor_at(0.5) for each in found] == pytest.approx([exp(0.5 if num_bursts == 20 else 0.01), exp(0.01)])


@pytest.mark.parametrize(("tp", "is_wide"), [(1, False), (4, True)])
def test_first_tokens_are_less_sure_on_several_gpus_of_blackwell(tp: int, is_wide: bool) -> None:
    hopper, blackwell = (stated("llama-3.1-8b", gpu, tp).ratios["ttft"].factors(0.9) for gpu in ("H200", "B200"))
    assert (log(blackwell[1] / blackwell[0]) > 1.2 * log(hopper[1] / hopper[0])) is is_wide


def test_one_recording_of_many_promises_no_more_than_their_number() -> None:
    kind = ServerKind("dense models", "16 bits", "H100", "one GPU")
    few = MeasuredKind(kind, "few", (1, 1), 9, {}, ratios={"itl": [0.1 * place for place in range(9)]})
    spread = ratio_spread("itl", kind, Likeness([few], (), 0), (few,), False)
    assert spread.factors(0.95) == pytest.approx((1.0, exp(0.8)))
    assert 0.9 < spread.probability(1e9) < 0.95


@pytest.mark.parametrize("metric", METRICS)
def test_steps_are_less_sure_where_requests_wait_and_first_tokens_as_sure(metric: str) -> None:
    """Bursts of a kind that has some, and of one that has none."""
    for found in (stated("gpt-oss-120b", tp=2), stated("llama-3.1-70b", "B200", 4)):
        calm, burst = (found.interval_ms(metric, 100.0, 0.9, waiting=waiting) for waiting in (False, True))
        assert calm is not None
        assert burst is not None
        assert (burst == calm) if metric == "ttft" else (log(burst[1] / burst[0]) > 1.2 * log(calm[1] / calm[0]))
        factors = [found.as_json[metric][name] for name in ("factors_90", "factors_90_waiting")]
        assert [100 * each for pair in factors for each in pair] == pytest.approx([*calm, *burst], abs=0.01)


@pytest.mark.parametrize("metric", METRICS)
def test_what_was_measured_nowhere_has_wider_intervals(metric: str) -> None:
    """Each kind is stated twice: with its own recordings, and with those of others."""
    widths: dict[bool, list[float]] = {True: [], False: []}
    for each in measured_kinds("kernels"):
        if each.num_recordings < 8 or each.is_learned_from:
            continue
        for is_measured, shape in ((True, each.shape), (False, (1, 1))):
            low, high = sureness_of("kernels", each.kind, shape).ratios[metric].factors(0.9)
            widths[is_measured].append(log(high / low))
    assert median(widths[True]) < 0.92 * median(widths[False])
    assert sum(own < other for own, other in zip(widths[True], widths[False], strict=True)) > 0.6 * len(widths[True])
