"""Titles of results: what was simulated, in one line."""


def run_title(
    *,
    model: str,
    gpu: str = "",
    gpus_per_instance: int | None = None,
    instances: int | None = None,
    engine: str = "",
    latency_model: str = "",
    step_error: float | None = None,
) -> str:
    """Return model, GPUs, engine and latency model in one line, of which all but the model may be unknown."""
    parts = []
    if gpu:
        num_gpus = f"{gpus_per_instance} x " if gpus_per_instance else ""
        times = f"{instances} instances of " if (instances or 1) > 1 else ""
        parts.append(f"{model} on {times}{num_gpus}{gpu}")
    elif model:
        parts.append(model)
    if engine:
        parts.append(f"{engine} engine")
    if latency_model:
        error = "" if step_error is None else f" (expected error {step_error:.0%})"
        parts.append(f"{latency_model} step times{error}")
    return ", ".join(parts)
