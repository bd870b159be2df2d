"""Laws that every step obeys, on a grid of models, GPUs, tensor parallelism, precisions and expert parallelism.

    python -m workshop.step_laws [--models A,B] [--gpus A,B] [--most SHARE]

Three laws are checked with `--latency-model kernels`: a step takes at least what its bytes and its arithmetic take at
the GPU's peaks; a step with more in it is never faster; and twice the GPUs of an instance make no step slower, the
exchange between them left out. Prints the largest exception to each law of each model and GPU, and their number. Exit
code 1 where an exception exceeds --most.
"""

import argparse
from collections.abc import Iterator
from itertools import pairwise, product
from typing import NamedTuple

from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.deployment import Deployment, model_of, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.kernels import CLASSES, KernelSteps
from blis_sim.engine.latency.model_operations import operations_of
from blis_sim.engine.latency.wrapped import WrappedLatency, step_peaks
from blis_sim.options import BlisError
from workshop.ending import run_command

MODELS = (
    *("qwen3-0.6b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "llama-3.1-8b-instruct", "llama-3.3-70b-instruct"),
    *("llama-3.1-8b-instruct-fp8", "llama-3.1-70b-instruct-fp8", "llama-2-7b-hf", "codellama-34b-instruct-hf"),
    *("qwen3-30b-a3b", "qwen3-30b-a3b-fp8", "qwen3-235b-a22b", "mixtral-8x7b-v0.1", "gpt-oss-20b", "gpt-oss-120b"),
    *("deepseek-v3", "mistral-7b-instruct-v0.3", "gemma-3-27b-it", "phi-4", "deepseek-r1", "deepseek-v3.2"),
    *("glm-4.5-air", "minimax-m2.5", "kimi-k2.5", "llama-4-scout-17b-16e-instruct-fp8-dynamic"),
    *("qwen3-30b-a3b-instruct-2507", "qwen2.5-7b-instruct", "llama-3.2-1b-instruct"),
)
GPUS = (
    *("A100-SXM", "H100", "H200", "B200", "B300", "GB200", "L40S", "RTX-PRO-6000", "L4", "A10", "T4", "MI300X"),
    "H20",
)
TPS = (1, 2, 4, 8)
BATCHES, CONTEXTS, PROMPTS = (1, 2, 4, 8, 16, 32, 64, 128, 256), (128, 512, 2048, 8192), (16, 64, 256, 1024, 2048, 8192)
_EXCHANGE = CLASSES.index("all_reduce")
LAWS = ("faster than the peaks", "faster with more", "slower on more GPUs")


class Breach(NamedTuple):
    """A step that breaks a law, by a share of its time."""

    law: str
    share: float
    case: str


def prompt(tokens: int, decoding: int = 0, context: int = 0) -> BatchShape:
    """Return a step with one prompt, beside requests that decode."""
    return BatchShape(1, tokens, tokens * tokens, 0, 0, tokens * tokens, decoding, decoding * context)


def rows() -> Iterator[tuple[str, list[BatchShape]]]:
    """Yield rows of steps, each with more in it than the one before."""
    for context in CONTEXTS:
        yield f"decodes at {context}", [decodes(each, each * context) for each in BATCHES]
    for batch in BATCHES:
        yield f"{batch} decodes, longer", [decodes(batch, batch * each) for each in CONTEXTS]
    yield "one prompt", [prompt(each) for each in PROMPTS]
    yield "one prompt beside 32 decodes", [prompt(each, 32, 1024) for each in PROMPTS]
    yield "a prompt of 512 beside decodes", [prompt(512, each, 1024) for each in BATCHES]


def deployment(model: str, gpu: str, tp: int, precision: str, *, experts: bool) -> tuple[DeploymentOptions, Deployment]:
    """Return a deployment and its options. Raises BlisError."""
    options = DeploymentOptions(
        model=model,
        hardware=gpu,
        tp=tp,
        quantization=precision,
        enable_expert_parallel=experts,
        latency_model="kernels",
    )
    return options, resolve(options)


def exceptions(model: str, gpu: str) -> Iterator[Breach | None]:
    """Yield the exceptions of a model on a GPU, and None for each deployment that was looked at."""
    is_moe = model_of(DeploymentOptions(model=model), []).is_moe
    for precision, experts in product(("", "fp8"), (False, True) if is_moe else (False,)):
        before: dict[str, float] = {}
        for tp in TPS:
            try:
                options, found = deployment(model, gpu, tp, precision, experts=experts and tp > 1)
            except BlisError:
                before = {}
                continue
            latency = found.latency
            while isinstance(latency, WrappedLatency):
                latency = latency.model
            if not isinstance(latency, KernelSteps):
                raise EngineError(f"{model} on {gpu}: not timed by kernels")
            yield None
            place = f"tp {tp} {precision or 'checkpoint'}{' ep' if experts else ''}"
            peaks = step_peaks(operations_of(found.model, options.kernel_placement(tp, found.gpu)), found.gpu)
            alone: dict[str, float] = {}
            for name, shapes in rows():
                times = [latency.step_time(each) for each in shapes]
                for shape, time_us in zip(shapes, times, strict=True):
                    case = f"{place} {name} {shape.num_tokens}"
                    yield Breach(LAWS[0], peaks.step_us(shape) / time_us - 1, case)
                    alone[f"{name} {shape.num_tokens} {shape.decode_context_tokens}"] = (
                        time_us - 1e3 * latency.operation_times_ms(shape)[_EXCHANGE]
                    )
                for (less, more), shape in zip(pairwise(times), shapes[1:], strict=True):
                    yield Breach(LAWS[1], less / more - 1, f"{place} {name} {shape.num_tokens}")
            if before:
                yield from (Breach(LAWS[2], alone[each] / before[each] - 1, f"{place} {each}") for each in before)
            before = alone


def main() -> int:
    """Print the exceptions of each model and GPU; exit code 1 where one is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--gpus", default=",".join(GPUS))
    parser.add_argument("--most", type=float, default=0.03, help="largest exception that is no failure")
    given = parser.parse_args()
    is_fine, num_deployments, num_steps = True, 0, 0
    for model, gpu in product(given.models.split(","), given.gpus.split(",")):
        found: list[Breach] = []
        for each in exceptions(model, gpu):
            num_deployments += each is None
            num_steps += each is not None
            if each is not None and each.share > 0.001:
                found.append(each)
        for law in LAWS:
            of_law = [each for each in found if each.law == law]
            if of_law:
                worst = max(of_law, key=lambda each: each.share)
                is_fine = is_fine and worst.share <= given.most
                print(f"{model} {gpu}: {len(of_law)} {law}, up to {worst.share:.1%}: {worst.case}", flush=True)
    print(f"{num_deployments} deployments, {num_steps} comparisons")
    return 0 if is_fine else 1


if __name__ == "__main__":
    run_command(main)
