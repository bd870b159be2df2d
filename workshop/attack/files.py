"""Attacks the commands that read files with mutated ones, and reports each that is not answered as it should be.

    python -m workshop.attack.files [--count 20000] [--first 0] [--seed 0] [--only WORD] [--keep FOLDER]

Every case writes one mutated file beside valid ones and runs a real command on it, in this process. hypothesis draws
the mutations, and with --shrink finds the smallest file with each finding. A case is answered well when the command
succeeds, or ends with exit code 2, a server also with 1, and one line that names the file, within limits of time and
memory, and when a strict second reading has no objection to a file that was accepted. Equal arguments make equal cases.
The exit code is 1 when a case is not answered well.
"""

import argparse
import contextlib
import io
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from types import FrameType
from unittest.mock import patch

from blis_sim.cli.main import run
from workshop.attack.file_samples import FileSample, samples
from workshop.attack.mutations import Draws, mutated_file
from workshop.attack.strict_files import objection

MOST_SECONDS = 10
"""Processor time of one case."""
MOST_GROWTH_MB = 1000
"""Half a million requests that wait at once, which a rate of 1e6 per second makes, take 600 MB."""
MOST_MEMORY_BYTES = 8 << 30
MOST_CHARACTERS_OF_A_LINE = 2000
_ELSEWHERE = (
    "--",
    " chunks: ",
    " chunks, as a spec ",
    "the workload",
    "Got unexpected extra argument",
    "To serve at least one request",
    "Unknown quantization method",
)
"""Marks of errors that name no file: flags, folders, the workload made by a spec, and error texts of vLLM."""
TOO_SLOW = "too slow"
_UNREACHABLE = "cannot reach http://127.0.0.1:9"


class _TooSlowError(BaseException):
    """Ends a case that has used its processor time; a `BaseException`, so that no command catches it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A mutated file and the outcome of its command. `finding` describes a wrong outcome and is empty otherwise."""

    number: int
    sample: FileSample
    content: bytes
    code: int | None
    finding: str = ""
    detail: str = ""


def cases(count: int, seed: int, only: str = "", first: int = 0) -> Iterator[tuple[int, FileSample, bytes]]:
    """Yield `count` numbered cases from `first` on; `only` keeps samples with this word in their name."""
    known = samples()
    weights = [sample.weight for sample in known]
    for number in range(first, first + count):
        sample = Random(f"{seed}/{number}").choices(known, weights)[0]
        if only in sample.name:
            yield number, sample, _draws(sample.kind, sample.content).one(f"{seed}/{number}")


@cache
def _draws(kind: str, text: str) -> Draws[bytes]:
    return Draws(mutated_file(kind, text))


def shrunk(case: Case, seed: int, folder: Path) -> bytes | None:
    """The smallest content that changes to the same finding."""
    if case.finding == TOO_SLOW:  # every try would take as long again
        return None
    return _draws(case.sample.kind, case.sample.content).smallest(
        f"{seed}/{case.number}", lambda each: attacked(0, case.sample, each, folder).finding == case.finding
    )


def attacked(number: int, sample: FileSample, content: bytes, folder: Path) -> Case:
    """Run the command of a sample in a folder that holds only its files, one of them mutated."""
    _fill(folder, sample, content)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = io.StringIO()
    code: int | None = None
    finding = detail = ""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said), _limited():
            code = run(list(sample.command))
    except _TooSlowError as error:
        finding, detail = TOO_SLOW, _frames(error)
    except BaseException as error:  # noqa: BLE001 (every exception is a finding)
        finding, detail = f"{type(error).__name__}: {error}"[:200], _frames(error)
    growth_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) // 1024
    if not finding:
        finding = _judged(sample, content, code, said.getvalue())
    if not finding and growth_mb > MOST_GROWTH_MB:
        finding = f"memory grew by more than {MOST_GROWTH_MB} MB"
    return Case(number, sample, content, code, finding, detail or said.getvalue()[-600:])


def _fill(folder: Path, sample: FileSample, content: bytes) -> None:
    for each in folder.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    for name, text in {**sample.others, sample.file: ""}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / sample.file).write_bytes(content)


def refusal_codes(sample: FileSample) -> tuple[int, ...]:
    """Return the exit codes with which a command refuses a file: a server has vLLM's, which tells its parser's."""
    return (1, 2) if sample.command[0] == "serve" else (2,)


def _judged(sample: FileSample, content: bytes, code: int | None, said: str) -> str:
    """Describe a wrong outcome; return an empty string for a right one."""
    lines = said.splitlines()
    if code == 0:
        found = objection(sample.name, content)
        return f"accepted: {_without_values(found)}" if found else ""
    if code == 1 and _UNREACHABLE in said:
        return ""
    if code not in refusal_codes(sample):
        return f"exit code {code}: {_without_values(lines[-1]) if lines else ''}"
    errors = [line for line in lines if ": error: " in line]
    if len(errors) != 1 or lines[-1] != errors[0]:
        return f"{len(errors)} lines of errors"
    if len(errors[0]) > MOST_CHARACTERS_OF_A_LINE:
        return f"a line of more than {MOST_CHARACTERS_OF_A_LINE} characters"
    if sample.name == "served flags":  # whose errors are those of flags, in words of vLLM
        return ""
    if not any(name in errors[0] for name in (sample.file, *sample.others, *_ELSEWHERE)):
        return f"names no file: {_without_values(errors[0])}"
    return ""


def _without_values(line: str) -> str:
    return "".join("#" if letter.isdigit() else letter for letter in line)[:160]


def _frames(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [each for each in frames if "site-packages" not in each.filename and "attack/files" not in each.filename]
    return " < ".join(f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in reversed(ours[-4:]))


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _TooSlowError

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPROF)}
    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def prepared() -> Iterator[Path]:
    """Yield an empty working folder, with memory limited and servers that stop as soon as they have started."""
    import mockserve.server as server

    async def stop(*_: object) -> None:
        return

    limits = resource.getrlimit(resource.RLIMIT_AS)
    here = Path.cwd()
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(server, "_wait_for_stop", stop),
        patch.object(server, "keep_what_exists"),
    ):
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, limits[1]))
            os.chdir(folder)
            yield Path(folder)
        finally:
            os.chdir(here)
            resource.setrlimit(resource.RLIMIT_AS, limits)


def attack(
    count: int, seed: int, only: str = "", progress: bool = False, first: int = 0
) -> tuple[Counter[str], list[Case]]:
    """Run all cases. Returns counts by outcome, and the cases with a finding."""
    outcomes: Counter[str] = Counter()
    bad: list[Case] = []
    begun = time.monotonic()
    with prepared() as folder:
        for done, (number, sample, content) in enumerate(cases(count, seed, only, first), start=1):
            case = attacked(number, sample, content, folder)
            outcomes[
                "accepted" if case.code == 0 else "refused" if case.code in refusal_codes(sample) else "other"
            ] += 1
            if case.finding:
                bad.append(case)
            if progress and done % 500 == 0:
                sys.stderr.write(f"{done} cases, {len(bad)} findings, {time.monotonic() - begun:.0f} s\n")
    return outcomes, bad


def main() -> int:
    """Report the findings by kind. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to run them in pieces")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only samples with this word in their name")
    parser.add_argument("--keep", help="write the files of all findings to this folder")
    parser.add_argument("--shrink", action="store_true", help="show the smallest file with each finding")
    given = parser.parse_args()
    outcomes, bad = attack(given.count, given.seed, given.only, progress=True, first=given.first)
    groups: dict[tuple[str, str, str], list[Case]] = defaultdict(list)
    for case in bad:
        groups[case.sample.name, case.finding, case.detail if "<" in case.detail else ""].append(case)
    for (name, finding, _), found in sorted(groups.items(), key=lambda each: -len(each[1])):
        sys.stdout.write(f"{len(found):5} {name}: {finding} (case {found[0].number})\n      {found[0].detail[:500]}\n")
        if given.shrink:
            with prepared() as folder:
                sys.stdout.write(f"      smallest: {shrunk(found[0], given.seed, folder)!r}\n")
        if given.keep:
            folder = Path(given.keep) / str(found[0].number)
            folder.mkdir(parents=True, exist_ok=True)
            _fill(folder, found[0].sample, found[0].content)
            (folder / "command").write_text(" ".join(found[0].sample.command) + "\n")
    sys.stdout.write(f"{sum(outcomes.values())} cases: {dict(outcomes)}, {len(bad)} findings of {len(groups)} kinds\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
