"""The overheads of the host in a step, learned beside kernel times that stay as they were measured.

    python -m benchmarks.kernels_host RECORDINGS [--budget N] [--write FILE]

RECORDINGS is a folder with `train` and `server_config.json`, as for `accuracy.py`. `blis fit --latency-model kernels`
learns a scale for each class of kernels, too; here all of them are 1, so that what is learned belongs to the host and
carries over to other models. FILE is what `--latency-model kernels` takes where no coefficients are given.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.accuracy import options_of
from benchmarks.left_out import recordings_of
from blis_sim.engine.deployment import resolve
from blis_sim.engine.latency.kernels.placing import KernelPlacement
from calibrate.fit.kernel_terms import SCALES, KernelsDeployed, kernels_deployed
from calibrate.fit.learn import Budget, learn

BUDGET = 9_000
"""Requests in each of the last rounds: there are five coefficients, not twenty."""
_OF_STEPS = ("step_us", "prompt_us", "request_us", "burst", "burst_again")
_HEAD = """\
# Overheads of the host in a step beside measured kernels, for --latency-model kernels without --coefficients.
# Learned by `python -m benchmarks.kernels_host` from Qwen3-14B on one H100, with every scale of kernels at 1.
# spread: one standard deviation.
latency_model: kernels
"""


class HostAlone(KernelsDeployed):
    """A deployment of which scales of kernels are not learned."""

    __slots__ = ()

    def learnable(self) -> tuple[str, ...]:
        return tuple(name for name in self.terms.names if name not in SCALES)


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
    known = kernels_deployed(deployment.model, deployment.gpu, KernelPlacement(), deployment.config.max_num_seqs)
    host = HostAlone(known.model, known.gpu, known.tp, known.grids, known.sizes, decode_rows=known.decode_rows)
    recordings = [each.recording for each in recordings_of(folder / "train", deployment)]
    budget = Budget(num_requests // 3, num_requests, 3 * num_requests)
    estimate = learn(recordings, host, deployment.config, budget=budget).estimate
    places = {name: host.terms.place(name) for name in _OF_STEPS}
    sections = {"host": estimate.values, "spread": estimate.spreads}
    return _HEAD + "".join(
        f"{section}:\n" + "".join(f"  {name}: {values[place]:.5g}\n" for name, place in places.items())
        for section, values in sections.items()
    )


if __name__ == "__main__":
    sys.exit(main())
