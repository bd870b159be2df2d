"""Attacks the commands that read files with mutated ones, and reports each that is not answered as it should be.

    python -m workshop.attack.files [--count 20000] [--seed 0] [--only WORD]

Every case writes one mutated file beside valid ones and runs a real command on it, in this process. hypothesis draws
the mutations, and finds the smallest file with each finding. A case is answered well when the command succeeds, or ends
with exit code 2, a server also with 1, and one line that names the file, within limits of time and memory. Equal
arguments make equal cases. The exit code is 1 when a case is not answered well.
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
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from unittest.mock import patch

from hypothesis import given, seed, settings
from hypothesis import strategies as st

from blis_sim.cli.main import run
from workshop.attack.file_samples import FileSample, samples
from workshop.attack.mutations import ATTACK, mutated_file

MOST_SECONDS = 10
"""Processor time of one case."""
MOST_GROWTH_MB = 1000
"""Half a million requests that wait at once, which a rate of 1e6 per second makes, take 600 MB."""
MOST_MEMORY_BYTES = 8 << 30
MOST_CHARACTERS_OF_A_LINE = 2000
_ELSEWHERE = (
    *("--", " chunks: ", " chunks, as a spec ", "the workload", "Got unexpected extra argument"),
    *("To serve at least one request", "Unknown quantization method"),
)
"""Marks of errors that name no file: flags, folders, the workload made by a spec, and error texts of vLLM."""
_UNREACHABLE = "cannot reach http://127.0.0.1:9"


class _TooSlowError(BaseException):
    """Ends a case that has used its processor time; a `BaseException`, so that no command catches it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A mutated file and the outcome of its command. `finding` describes a wrong outcome and is empty otherwise."""

    sample: FileSample
    content: bytes
    code: int | None
    finding: str = ""
    detail: str = ""


def cases(only: str = "") -> st.SearchStrategy[tuple[FileSample, bytes]]:
    """Samples, as often as they weigh, each with a mutated content; `only` keeps those with this word in their name."""
    known = [each for each in samples() if only in each.name]
    weighed = [each for each in known for _ in range(each.weight // 2)]
    return st.sampled_from(weighed).flatmap(
        lambda each: st.tuples(st.just(each), mutated_file(each.kind, each.content))
    )


def attacked(sample: FileSample, content: bytes, folder: Path) -> Case:
    """Run the command of a sample in a folder that holds only its files, one of them mutated."""
    _fill(folder, sample, content)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = io.StringIO()
    code: int | None = None
    finding = detail = ""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said), _limited():
            code = run(list(sample.command))
    except BaseException as error:  # noqa: BLE001 (every exception is a finding)
        finding = "too slow" if isinstance(error, _TooSlowError) else f"{type(error).__name__}: {error}"[:200]
        detail = _frames(error)
    growth_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) // 1024
    if not finding:
        finding = _judged(sample, code, said.getvalue())
    if not finding and growth_mb > MOST_GROWTH_MB:
        finding = f"memory grew by more than {MOST_GROWTH_MB} MB"
    return Case(sample, content, code, finding, detail or said.getvalue()[-600:])


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


def _judged(sample: FileSample, code: int | None, said: str) -> str:
    """Describe a wrong outcome; return an empty string for a right one."""
    lines = said.splitlines()
    if code == 0 or (code == 1 and _UNREACHABLE in said):
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


def attack(count: int, first_seed: int, only: str = "") -> tuple[Counter[str], dict[tuple[str, str], Case]]:
    """Run all cases, and more to shrink findings.

    Returns counts by outcome, and the smallest case with each finding by sample and finding.
    """
    outcomes, bad = Counter[str](), dict[tuple[str, str], Case]()
    known: set[tuple[str, str]] = set()
    with prepared() as folder:

        def check(drawn: tuple[FileSample, bytes]) -> None:
            case = attacked(*drawn, folder)
            code, refused = case.code, refusal_codes(case.sample)
            outcomes["accepted" if code == 0 else "refused" if code in refused else "other"] += 1
            key = case.sample.name, case.finding
            if case.finding and key not in known:
                bad[key] = case
                raise AssertionError(key)

        while True:
            known = set(bad)
            try:
                seed(first_seed)(settings(ATTACK, max_examples=count)(given(cases(only))(check)))()
            except Exception:
                if len(bad) == len(known):
                    raise
            else:
                return outcomes, bad


def main() -> int:
    """Report the findings. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only samples with this word in their name")
    arguments = parser.parse_args()
    outcomes, bad = attack(arguments.count, arguments.seed, arguments.only)
    for (name, finding), case in bad.items():
        print(f"{name}: {finding}\n  {case.detail[:500]}\n  {' '.join(case.sample.command)}\n  {case.content!r}")
    print(f"{sum(outcomes.values())} cases: {dict(outcomes)}, {len(bad)} kinds of findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
