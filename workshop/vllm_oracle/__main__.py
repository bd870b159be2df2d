"""Our scheduling against vLLM's own, line by line, on random workloads.

    PYTHON_WITH_VLLM -m workshop.vllm_oracle --seeds 0:1000 --both
    PYTHON_WITH_VLLM -m workshop.vllm_oracle --seeds 0:300 --features windows,drafts,2-stages
    PYTHON_WITH_VLLM -m workshop.vllm_oracle --seeds 0:3000 --mixed

Run it from the root of the checkout with the Python of an environment that has vLLM 0.33 installed; the one with
`VLLM_TARGET_DEVICE=empty`, which needs neither a GPU nor CUDA, is enough. Ours needs nothing there but numpy. Compared
are all compositions (instant, tokens per request in batch order, new block ids, preemptions, running and waiting
requests, free blocks, prefix cache queries and hits), all processed outputs and all hang-ups. Then ours is run once
more without reporting steps, which must change nothing.

`--features` names what the workloads have, and `--mixed` draws it for each. With drafts, both accept the same: our
draws. Where the model has several kinds of layers, all block tables of the requests in a step are compared. With
pipeline stages vLLM's core keeps its queue of batches. Pictures have an encoder, which computes and keeps them.
Offloading copies KV blocks to CPU memory and loads them from there. It is vLLM's OffloadingConnector, whose transfers
take virtual time. `tiers` puts vLLM's file-system tier behind that memory. `content` compares the events of what the
prefix cache holds, too. `ranks` and `experts` compare data-parallel ranks, and which of them each request goes to. A
table at the end has a row for each pair of features.
"""

import argparse
import os
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from blis_sim.engine.errors import EngineError
from workshop.ending import run_command
from workshop.vllm_oracle.features import ALTERNATIVES, FEATURES, KINDS, draw_features, drawn_workload
from workshop.vllm_oracle.simulated import changes, simulated_story
from workshop.vllm_oracle.table import block_rows, composition_rows, content_rows
from workshop.vllm_oracle.workload import (
    AbortedRequest,
    ProcessedOutputs,
    Reported,
    RunRecord,
    ScheduledStep,
    Workload,
)

if TYPE_CHECKING:
    from workshop.vllm_oracle.genuine import Oracle

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
COUNTED = ("workloads", "steps", "differences", "refused by vLLM", "refused by ours")
"""Columns of the table of pairs."""
MOST_PRINTED = 20
"""Most differences that are printed."""


@dataclass(slots=True)
class Tally:
    """What was compared, by pair of features, and what either side refused."""

    pairs: dict[tuple[str, ...], Counter[str]] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    num_differences: int = 0

    def count(self, features: Sequence[str], **counts: int) -> None:
        """Count a workload with `features`."""
        for pair in combinations(features, 2) if len(features) > 1 else [tuple(features)]:
            self.pairs.setdefault(pair, Counter()).update(workloads=1, **counts)

    def print(self) -> None:
        """Print a row for each pair, then what was refused and how many workloads differ."""
        print(f"{'pair':24}" + "".join(f"{name:>17}" for name in COUNTED))
        for pair, counts in sorted(self.pairs.items()):
            print(f"{' x '.join(pair):24}" + "".join(f"{counts[name]:17,}" for name in COUNTED))
        for words, number in self.refusals.most_common():
            print(f"{number} refused by {words}")
        print(f"{self.num_differences} differences")


def main() -> int:
    """Return the exit code: 1 with differences."""
    arguments = _arguments()
    os.environ.update(ENVIRONMENT)
    from workshop.vllm_oracle.genuine import Oracle  # vLLM reads its environment when it is imported

    oracle = Oracle()
    tally = Tally()
    for async_scheduling in arguments.kinds:
        seen: Counter[str] = Counter()
        for seed in arguments.seeds:
            features = draw_features(seed) if arguments.mixed else arguments.features
            story, difference = _compared(oracle, seed, async_scheduling, features, tally, seen)
            if arguments.table and story is not None:
                print("\n".join(_rows(features, async_scheduling, seed, story)))
            if difference and tally.num_differences <= MOST_PRINTED:
                print(f"{_kind(async_scheduling)}, seed {seed}, {','.join(features)}: {difference}", flush=True)
        figures = ", ".join(f"{seen[name]} {name}" for name in FIGURES)
        print(
            f"{_kind(async_scheduling)}: {seen['workloads']} workloads, {seen['steps']} steps ({figures})", flush=True
        )
    tally.print()
    return min(1, tally.num_differences)


def _kind(async_scheduling: bool) -> str:
    return "async" if async_scheduling else "sync"


def _compared(
    oracle: "Oracle", seed: int, async_scheduling: bool, features: Sequence[str], tally: Tally, seen: Counter[str]
) -> tuple[RunRecord | None, str]:
    """Return vLLM's record of a workload, and where ours first differs. No record where either side refuses it."""
    try:
        workload = drawn_workload(seed, async_scheduling, features)
    except EngineError as error:
        tally.refusals[f"ours: {error}"] += 1
        tally.count(features, **{"refused by ours": 1})
        return None, ""
    try:
        story = oracle.story(workload)
    except Exception as error:  # noqa: BLE001 - whatever vLLM says
        tally.refusals[f"vLLM: {_words(error)}"] += 1
        tally.count(features, **{"refused by vLLM": 1})
        return None, ""
    difference = _difference(workload, story)
    _count(seen, workload, story)
    num_steps = sum(isinstance(line, ProcessedOutputs) for line in story.lines)
    tally.count(features, steps=num_steps, differences=bool(difference))
    tally.num_differences += bool(difference)
    return story, difference


def _difference(workload: Workload, story: RunRecord) -> str:
    """Return where ours first differs from vLLM's record; empty where it does not."""
    try:
        simulated = simulated_story(workload)
        theirs, ours = story.reported(), simulated.reported()
        if theirs != ours:
            return _first_difference(workload, theirs, ours)
        if story.content != simulated.content and not story.is_endless:
            return _first_difference(workload, story.content, simulated.content)
        if not story.is_endless and simulated.changes != changes(workload, reports_steps=False):
            return f"leaping over steps changes the run\n{workload.config}"
    except Exception:  # noqa: BLE001 - a difference, too
        return f"ours fails\n{workload.config}\n{traceback.format_exc()}"
    return ""


def _words(error: Exception) -> str:
    """Return an error of vLLM's with the place that raises it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    file = place.filename.rpartition("site-packages/")[2]
    return f"{type(error).__name__}: {str(error) or place.line} ({file}:{place.lineno})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="vllm_oracle", description="Our scheduling against vLLM's own.")
    parser.add_argument("--seeds", type=_seeds, default=range(1000), help="one seed, or FIRST:END")
    features = parser.add_mutually_exclusive_group()
    features.add_argument("--features", type=_features, default=[], help=f"some of {','.join(FEATURES)}")
    features.add_argument("--mixed", action="store_true", help="draw the features of each workload")
    parser.add_argument("--table", action="store_true", help="print vLLM's compositions as rows of a table")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--sync", dest="kinds", action="store_const", const=(False,))
    kinds.add_argument("--async", dest="kinds", action="store_const", const=(True,))
    kinds.add_argument("--both", dest="kinds", action="store_const", const=(False, True))
    parser.set_defaults(kinds=(False, True))
    return parser.parse_args()


def _seeds(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def _features(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := set(chosen) - FEATURES.keys():
        raise argparse.ArgumentTypeError(f"unknown features: {', '.join(sorted(unknown))}")
    for alternatives in ALTERNATIVES:
        if len(set(chosen).intersection(alternatives)) > 1:
            raise argparse.ArgumentTypeError(f"at most one of {', '.join(alternatives)}")
    return [name for name in FEATURES if name in chosen]


def _rows(features: Sequence[str], async_scheduling: bool, seed: int, story: RunRecord) -> Iterator[str]:
    name = " ".join(each for each in features if each != "content")
    if "content" in features:
        return content_rows(name, async_scheduling, seed, story.content)
    if not KINDS.keys().isdisjoint(features):
        return block_rows(name, async_scheduling, seed, story.reported())
    num_stages = next((int(each[0]) for each in features if each.endswith("stages")), 1)
    return composition_rows(num_stages, async_scheduling, seed, story.reported())


def _first_difference(workload: Workload, theirs: Sequence[object], ours: Sequence[object]) -> str:
    index = next(
        (i for i, (their, our) in enumerate(zip(theirs, ours, strict=False)) if their != our),
        min(len(theirs), len(ours)),
    )
    step = sum(isinstance(line, ScheduledStep) for line in theirs[:index])
    return "\n".join(
        [
            f"line {index} (step {step}) differs",
            f"{workload.config}\n{workload.latency}",
            *(f"  both   {line}" for line in theirs[max(0, index - 3) : index]),
            f"  vLLM   {theirs[index] if index < len(theirs) else 'nothing more'}",
            f"  ours   {ours[index] if index < len(ours) else 'nothing more'}",
        ]
    )


def _count(seen: Counter[str], workload: Workload, story: RunRecord) -> None:
    seen["workloads"] += 1
    seen["requests"] += len(workload.arrivals)
    seen["changes of content"] += len(story.content)
    seen["endless"] += story.is_endless
    lines: list[Reported] = story.reported()
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
