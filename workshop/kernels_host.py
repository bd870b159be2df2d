"""The overheads of the host in a step, learned beside kernel times that stay as they were measured.

    python -m workshop.kernels_host RECORDINGS [--budget N] [--write FILE]

RECORDINGS is a folder with `train` and `server_config.json`, as for `accuracy.py`. `blis fit --latency-model kernels`
learns a scale for each class of kernels, too; here all of them are 1, so that what is learned carries over to other
models. FILE is what `--latency-model kernels` takes where no coefficients are given.
"""

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path

from blis_sim.engine.deployment import resolve
from blis_sim.engine.latency.model_operations import KernelPlacement
from calibrate.fit.learn import Budget, learn
from calibrate.fit.terms import SCALES, KernelsDeployment, kernels_deployment
from workshop.accuracy import options_of
from workshop.ending import run_command
from workshop.left_out import recordings_of

BUDGET = 9_000
"""Requests in each of the last rounds: there are four coefficients, not twenty."""
_OF_STEPS = ("step_us", "prompt_us", "request_us", "burst", "burst_again")
_HEAD = """\
# Overheads of a step beside measured kernels, for --latency-model kernels without --coefficients.
# Learned by `python -m workshop.kernels_host` from Qwen3-14B on one H100, with every scale of kernels at 1.
# step_us is that of a model with so many layers, request_us with so large a vocabulary. prompt_us is expected.
# spread: one standard deviation.
latency_model: kernels
"""


class HostOverheadsOnly(KernelsDeployment):
    """A deployment of which scales of kernels are not learned, nor what a prompt costs.

    Nearly all prompts of the recordings have 1,000 tokens. What such a prompt takes longer than its kernels would be
    learned as the cost of any prompt, and added to those of which the prefix cache has all but a few tokens.
    """

    __slots__ = ()

    def learnable(self) -> tuple[str, ...]:
        return tuple(name for name in self.terms.names if name not in (*SCALES, "prompt_us"))


def main() -> int:
    """Print the file, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--write", type=Path, default=None)
    arguments = parser.parse_args()
    text = _learned(arguments.recordings, arguments.budget)
    sys.stdout.write(text)
    if arguments.write is not None:
        arguments.write.write_text(text)
    return 0


def _learned(folder: Path, num_requests: int) -> str:
    server = json.loads((folder / "server_config.json").read_text())
    deployment = resolve(options_of(server, "vllm", None))
    known = kernels_deployment(deployment.model, deployment.gpu, KernelPlacement(), deployment.config.max_num_seqs)
    host = HostOverheadsOnly(**{each.name: getattr(known, each.name) for each in fields(known)})
    recordings = [each.recording for each in recordings_of(folder / "train", deployment)]
    budget = Budget(num_requests // 3, num_requests, 3 * num_requests)
    estimate = learn(recordings, host, deployment.config, budget=budget).estimate
    model = deployment.model
    learned_for = f"learned_for:\n  num_layers: {model.num_layers}\n  vocab_size: {model.vocab_size}\n"
    places = {name: host.terms.place(name) for name in _OF_STEPS}
    sections = {"host": estimate.values, "spread": estimate.spreads}
    return (
        _HEAD
        + learned_for
        + "".join(
            f"{section}:\n" + "".join(f"  {name}: {values[place]:.5g}\n" for name, place in places.items())
            for section, values in sections.items()
        )
    )


if __name__ == "__main__":
    run_command(main)
