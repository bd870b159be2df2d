"""The latency model of each name, and the source of its coefficients."""

from pathlib import Path

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import LEARNED_COEFFICIENTS, load_model
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.registry import LATENCY_MODELS, build
from tests.coefficients_file import written

DECODES = BatchShape(decode_requests=4, decode_context_tokens=4000)


def choice(
    model: str = "qwen3-14b",
    gpu: str = "H100",
    tp: int = 1,
    dp: int = 1,
    alpha: int = 0,
    beta: int = 0,
    coefficients: str | None = None,
) -> LatencyChoice:
    """With so many alphas and betas, all 1."""
    return LatencyChoice(
        model=load_model(model),
        gpu=load_gpu(gpu),
        tp=tp,
        dp=dp,
        alpha=(1.0,) * alpha,
        beta=(1.0,) * beta,
        coefficients=coefficients,
    )


def test_every_latency_model_times_a_known_deployment(tmp_path: Path) -> None:
    file = str(written(tmp_path))
    times = {
        name: build(name, choice(coefficients=file if name == "fitted" else None)).step_time(DECODES)
        for name in LATENCY_MODELS
        if name != "operators"  # which ships no tables
    }
    assert times.keys() >= {"trained-physics", "roofline", "blackbox", "fitted"}
    assert min(times.values()) > 1


def test_trained_physics_ships_with_coefficients_for_all_models() -> None:
    latency = build("trained-physics", choice())
    times = (latency.queueing_time(100), latency.post_decode_time, latency.output_token_time)
    assert times == (15563, 777, 45)


def test_blackbox_looks_its_coefficients_up_by_model_gpu_and_tp() -> None:
    latency = build("blackbox", choice())
    assert latency.queueing_time(1000) == int(8888.089034078324 + 184.88961143592303)
    assert latency.step_time(DECODES) == int(13578.186662538783 + 4 * 27.3227753326911)


def test_blackbox_finds_a_gpu_by_its_other_name() -> None:
    assert build("blackbox", choice("llama-3.1-8b", "A100-80")).queueing_time(0) == 7739


def test_the_error_of_blackbox_without_coefficients_lists_the_models_that_have_them() -> None:
    with pytest.raises(
        EngineError, match=r"no blackbox coefficients for qwen3-14b on L40S with tp 1, there are H100 tp 1;"
    ):
        build("blackbox", choice(gpu="L40S"))
    with pytest.raises(EngineError, match=r"for yi-34b on H100 with tp 1, models that have some are codellama-34b"):
        build("blackbox", choice("yi-34b"))


def test_fitted_ships_with_what_was_learned_from_one_server(tmp_path: Path) -> None:
    shipped, same, others = (
        build("fitted", choice(coefficients=file))
        for file in (None, str(LEARNED_COEFFICIENTS), str(written(tmp_path, seen={})))
    )
    assert shipped.step_time(DECODES) == same.step_time(DECODES) != others.step_time(DECODES)
    assert shipped.queueing_time(100) == same.queueing_time(100) != others.queueing_time(100)


def test_given_coefficients_win_over_shipped_ones() -> None:
    assert build("blackbox", choice("yi-34b", alpha=3, beta=3)).step_time(DECODES) == 1 + 4
    assert build("trained-physics", choice(alpha=3, beta=7)).output_token_time == 1


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("fitted", choice(alpha=3, beta=3), "the fitted model takes no alpha_coeffs and beta_coeffs"),
        ("oracle", choice(), f"latency_model must be one of {', '.join(LATENCY_MODELS)}, got 'oracle'"),
        ("trained-physics", choice(alpha=3), "alpha_coeffs and beta_coeffs must be given together"),
        ("trained-physics", choice(beta=7), "alpha_coeffs and beta_coeffs must be given together"),
        ("roofline", choice(alpha=3, beta=3), "the roofline model takes no alpha_coeffs and beta_coeffs"),
        (
            "roofline",
            choice("mixtral-8x7b", dp=2),
            "the roofline model does not support dp, only trained-physics and kernels do",
        ),
        (
            "blackbox",
            choice("mixtral-8x7b", dp=2),
            "the blackbox model does not support dp, only trained-physics and kernels do",
        ),
        ("blackbox", choice(alpha=3, beta=4), "beta_coeffs must have 3 values, got 4"),
    ],
)
def test_a_choice_that_cannot_be_timed_is_refused(name: str, chosen: LatencyChoice, message: str) -> None:
    with pytest.raises(EngineError) as refusal:
        build(name, chosen)
    assert str(refusal.value).startswith(message)


def test_what_is_no_latency_model_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LATENCY_MODELS, "odd", lambda _choice: object())
    with pytest.raises(EngineError) as refusal:
        build("odd", choice())
    expected = "expected a subclass of blis_sim.engine.latency.model.LatencyModel, got object"
    assert str(refusal.value) == f"latency model odd: {expected}"
