"""Sends a captured conversation to a server of ours."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

import pytest

from mockserve.executor.executor import MODULES, OffloadExecutor, WorkerPool
from mockserve.executor.worker import Job, WorkerLimits
from mockserve.generation.composer import Composer
from tests.patience import PATIENCE_S
from tests.wire.captured.case_files import read_cases
from tests.wire.captured.differences import Difference, differences
from tests.wire.captured.setups import Setup, server_like
from tests.wire.captured.stand_in import StandIn
from tests.wire.captures import captures_by_name
from tests.wire.noting_worker import NOTED_IN
from tests.wire.plain_http import call
from tests.wire.reaching_out import noted_openings

T = TypeVar("T")


def found_differences(setup: Setup, shared: Path) -> list[Difference]:
    """All differences between the captured replies and those of a server started the same way, in order.

    Fails when a request makes the server or a worker process of it open a file or a connection.
    """
    captures = captures_by_name(shared / setup.capture_file)
    cases = read_cases([shared / "oracle" / f"{name}.py" for name in setup.case_files])
    assert {case.name for case in cases} >= set(captures)
    found = []
    with server_like(setup, shared) as server:
        stand_in = StandIn(server.service.model.planner.tokenizer, "reasoning_parser" in setup.settings)
        if setup.has_equal_text:
            server.service.model.planner.composer = cast(Composer, stand_in)
        with (
            noted_openings(shared) as opened,  # where the server's tokenizer lies
            workers_that_note(server.service.delivery.executor) as opened_by_workers,
        ):
            for case in cases:
                if case.name in captures:
                    stand_in.asked = case.extra_arguments
                    reply = call(server, case.method, case.path, case.body, case.headers)
                    found += differences(setup.name, case, captures[case.name], reply)
            assert not opened, f"a request opened {opened}"
            noted = opened_by_workers.read_text(encoding="utf-8")
            assert not noted, f"a worker process opened {noted}"
    return found


@contextmanager
def workers_that_note(executor: OffloadExecutor) -> Iterator[Path]:
    """A file to which worker processes add a line for all that they open, for as long as the block lasts.

    All jobs are theirs meanwhile: the server would do small ones in place. They may take as long as on a busy machine,
    where the usual limits would refuse what the captured server answered.
    """
    limits = WorkerLimits(cpu_s=int(PATIENCE_S), wall_s=PATIENCE_S)
    usual = OffloadExecutor.done

    async def done(self: OffloadExecutor, job: Job[T]) -> T:
        return await usual(self, replace(job, is_small=False))

    with tempfile.NamedTemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        patch.setenv(NOTED_IN, file.name)
        patch.setattr(OffloadExecutor, "done", done)
        executor.pool = WorkerPool(limits=limits, preloaded=(*MODULES, "tests.wire.noting_worker"))
        yield Path(file.name)
