"""Our scheduling against vLLM's own, line by line, on random workloads.

    PYTHON_WITH_VLLM -m workshop.vllm_oracle --seeds 0:1000 --both

Run it from the root of the checkout with the Python of an environment that has vLLM 0.33 installed; the one with
`VLLM_TARGET_DEVICE=empty`, which needs neither a GPU nor CUDA, is enough. Ours needs nothing there but numpy. Compared
are all compositions (instant, tokens per request in batch order, new block ids, preemptions, running and waiting
requests, free blocks, prefix cache queries and hits), all processed outputs and all hang-ups. Then ours is run once
more without reporting steps, which must change nothing. With `--speculation` tokens are drafted, in any of the
supported ways, and both accept the same: our draws. With `--groups` the model has several kinds of layers: windows,
chunks, recurrent states; compared are then all block tables of the requests in a step. With `--pipeline-parallel-size
N` there are N pipeline stages, and vLLM's core keeps its queue of batches. With `--media` prompts have pictures, which
an encoder has to compute and to keep. With `--offloading` KV blocks are copied to CPU memory and loaded from there, by
vLLM's OffloadingConnector, whose transfers take virtual time. With `--tiers` vLLM's file-system tier is behind that
memory. With `--content` the events of what the prefix cache holds are compared too.
"""

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from workshop.ending import run_command
from workshop.vllm_oracle.budgets import with_budgets
from workshop.vllm_oracle.content import with_content
from workshop.vllm_oracle.groups import KINDS, with_groups
from workshop.vllm_oracle.media import with_media
from workshop.vllm_oracle.offloaded import with_offloading, with_tiers
from workshop.vllm_oracle.pipeline import with_pipeline
from workshop.vllm_oracle.simulated import changes, simulated_story
from workshop.vllm_oracle.speculation import with_speculation
from workshop.vllm_oracle.table import block_rows, composition_rows, content_rows
from workshop.vllm_oracle.workload import (
    AbortedRequest,
    ProcessedOutputs,
    Reported,
    ScheduledStep,
    Workload,
    draw_workload,
)

ENVIRONMENT = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
"""No GPU is asked for and no model hub."""
FIGURES = (
    "requests",
    "preemptions",
    "hit tokens",
    "loaded tokens",
    "blocks from devices",
    "drafts",
    "accepted tokens",
    "hang-ups",
    "endless",
    "changes of content",
)


def main() -> int:
    """Exit code 1 at the first difference."""
    arguments = _arguments()
    os.environ.update(ENVIRONMENT)
    from workshop.vllm_oracle.genuine import Oracle  # vLLM reads its environment when it is imported

    oracle = Oracle()
    for async_scheduling in arguments.kinds:
        kind = "async" if async_scheduling else "sync"
        seen: Counter[str] = Counter()
        for seed in arguments.seeds:
            workload = _workload(arguments, seed, async_scheduling)
            story = oracle.story(workload)
            simulated = simulated_story(workload)
            theirs, ours = story.reported(), simulated.reported()
            if arguments.table:
                rows = content_rows(arguments.groups, async_scheduling, seed, story.content)
                print("\n".join(rows if arguments.content else _rows(arguments, async_scheduling, seed, theirs)))
            if arguments.trace:
                print("\n".join(map(str, ours)))
            if theirs != ours:
                _print_difference(kind, seed, workload, theirs, ours)
                return 1
            if story.content != simulated.content and not story.is_endless:
                _print_difference(kind, seed, workload, story.content, simulated.content)
                return 1
            seen["changes of content"] += len(story.content)
            if changes(workload, reports_steps=True) != changes(workload, reports_steps=False):
                print(f"{kind}, seed {seed}: leaping over steps changes the run\n{workload.config}")
                return 1
            seen["endless"] += story.is_endless
            _count(seen, workload, theirs)
        figures = ", ".join(f"{seen[name]} {name}" for name in FIGURES)
        print(f"{kind}: {len(arguments.seeds)} workloads, {seen['steps']} steps, 0 differences ({figures})", flush=True)
    return 0


def _workload(arguments: argparse.Namespace, seed: int, async_scheduling: bool) -> Workload:
    """Return the workload of a seed, with the features that the command line names."""
    workload = draw_workload(seed, async_scheduling)
    if arguments.groups and arguments.offloading:  # which vLLM does only with prefix caching where blocks differ
        workload = replace(workload, config=replace(workload.config, enable_prefix_caching=True))
    if arguments.groups:
        workload = with_groups(workload, seed, arguments.groups)
    if arguments.speculation:
        workload = with_speculation(workload, seed)
    if arguments.media:
        workload = with_media(workload, seed)
    if arguments.budgets:
        workload = with_budgets(workload, seed)
    if arguments.offloading:
        workload = with_offloading(workload, seed)
    if arguments.tiers:
        workload = with_tiers(workload, seed)
    if arguments.pipeline_parallel_size > 1:
        workload = with_pipeline(workload, seed, arguments.pipeline_parallel_size)
    if arguments.content:
        workload = with_content(workload, seed)
    return workload


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="vllm_oracle", description="Our scheduling against vLLM's own.")
    parser.add_argument("--seeds", type=_seeds, default=range(1000), help="one seed, or FIRST:END")
    parser.add_argument("--speculation", action="store_true", help="with speculative decoding")
    parser.add_argument("--groups", choices=KINDS, help="what the layers of the model keep in the KV cache")
    parser.add_argument("--pipeline-parallel-size", type=int, default=1, help="pipeline stages")
    parser.add_argument("--media", action="store_true", help="with pictures in prompts, and limits of their encoder")
    parser.add_argument("--budgets", action="store_true", help="with limits of a step that few deployments set")
    parser.add_argument("--offloading", action="store_true", help="with CPU memory to which KV blocks are copied")
    parser.add_argument("--tiers", action="store_true", help="with --offloading: with devices behind that memory")
    parser.add_argument("--content", action="store_true", help="with the changes of the content of the prefix cache")
    parser.add_argument("--table", action="store_true", help="print vLLM's compositions as rows of a table")
    parser.add_argument("--trace", action="store_true", help="print all lines of ours")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--sync", dest="kinds", action="store_const", const=(False,))
    kinds.add_argument("--async", dest="kinds", action="store_const", const=(True,))
    kinds.add_argument("--both", dest="kinds", action="store_const", const=(False, True))
    parser.set_defaults(kinds=(False, True))
    return parser.parse_args()


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def _rows(arguments: argparse.Namespace, async_scheduling: bool, seed: int, lines: list[Reported]) -> Iterator[str]:
    if arguments.groups:
        return block_rows(arguments.groups, async_scheduling, seed, lines)
    return composition_rows(arguments.pipeline_parallel_size, async_scheduling, seed, lines)


def _print_difference(
    kind: str, seed: int, workload: Workload, theirs: Sequence[object], ours: Sequence[object]
) -> None:
    index = next(
        (i for i, (their, our) in enumerate(zip(theirs, ours, strict=False)) if their != our),
        min(len(theirs), len(ours)),
    )
    step = sum(isinstance(line, ScheduledStep) for line in theirs[:index])
    print(f"{kind}, seed {seed}: line {index} (step {step}) differs\n{workload.config}\n{workload.latency}")
    for line in theirs[max(0, index - 3) : index]:
        print(f"  both   {line}")
    print(f"  vLLM   {theirs[index] if index < len(theirs) else 'nothing more'}")
    print(f"  ours   {ours[index] if index < len(ours) else 'nothing more'}", flush=True)


def _count(seen: Counter[str], workload: Workload, lines: list[Reported]) -> None:
    seen["requests"] += len(workload.arrivals)
    steps = [line for line in lines if isinstance(line, ScheduledStep)]
    seen["blocks from devices"] += steps[-1].num_behind[0] if steps and steps[-1].num_behind else 0
    for line in lines:
        if isinstance(line, ScheduledStep):
            seen["preemptions"] += len(line.preempted)
            seen["hit tokens"] += line.hit_tokens
            seen["loaded tokens"] += line.loaded_tokens
        if isinstance(line, ProcessedOutputs):
            seen["steps"] += 1
            num_drafts, _, num_accepted, *_ = line.drafts or (0, 0, 0)
            seen["drafts"] += num_drafts
            seen["accepted tokens"] += num_accepted
        seen["hang-ups"] += isinstance(line, AbortedRequest)


if __name__ == "__main__":
    run_command(main)
