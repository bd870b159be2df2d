"""Calls on many processes, on this machine or on a cluster; results come in the order of completion."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from queue import SimpleQueue
from types import ModuleType
from typing import Any, Protocol, TypeVar

from blis_sim.bench import BenchError
from blis_sim.bench.cores import default_num_processes
from blis_sim.options.registry import Registry

Job = TypeVar("Job")
Result = TypeVar("Result")


class JobPool(Protocol):
    """Does jobs in other processes."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the processes may be on other machines, with other folders."""
        ...

    def each(self, work: Callable[[Job], Result], jobs: Sequence[Job]) -> Generator[tuple[Job, Result], None, None]:
        """Do each job, and yield it with its result as soon as the result is there."""
        ...


class Pool:
    """Processes that start with the first jobs and are kept for later jobs; a pool of one runs jobs in this process."""

    is_elsewhere = False

    def __init__(self, num_processes: int) -> None:
        self._num_processes = num_processes
        self._executor: ProcessPoolExecutor | None = None

    def each(self, work: Callable[[Job], Result], jobs: Sequence[Job]) -> Generator[tuple[Job, Result], None, None]:
        """Do each job, and yield it with its result as soon as the result is there.

        Jobs that are appended while results are taken are done, too. Raises BenchError when a process is killed.
        """
        if self._num_processes <= 1:
            for job in jobs:
                yield job, work(job)
            return
        if self._executor is None:
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(self._num_processes, context, initializer=_init_worker)
        futures: dict[Future[Result], Job] = {}
        ended: SimpleQueue[Future[Result]] = SimpleQueue()
        num_begun = 0
        try:
            while futures or num_begun < len(jobs):
                if num_begun < len(jobs):
                    with _sigint_deferred(), _without_main_module():
                        for job in jobs[num_begun:]:
                            future = self._executor.submit(work, job)
                            futures[future] = job
                            future.add_done_callback(ended.put)
                    num_begun = len(jobs)
                # Ctrl-C within `concurrent.futures.wait` would leave locks of futures held, and the end would hang.
                future = ended.get()
                yield futures.pop(future), future.result()
        except BrokenProcessPool as error:
            raise BenchError(
                "one of the processes that compute was killed, maybe because memory ran out; fewer --processes need "
                "less"
            ) from error

    def close(self) -> None:
        """Cancel jobs that have not begun, and end the processes."""
        # Once: a second call, as that at the end of a `with`, may undo the cancelling before it has been done.
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)


@contextmanager
def process_pool(num_processes: int | None) -> Iterator[Pool]:
    """Open a pool of processes, by default one per core, for jobs in several rounds."""
    pool = Pool(num_processes or default_num_processes())
    try:
        yield pool
    finally:
        pool.close()


def run_on_processes(
    work: Callable[[Job], Result], jobs: Sequence[Job], num_processes: int | None
) -> Generator[tuple[Job, Result], None, None]:
    """Do each job in a pool of processes, by default one per core; a pool of one is this process itself.

    Closing the iterator cancels jobs that have not begun. Raises BenchError when a process is killed.
    """
    with process_pool(min(num_processes or default_num_processes(), len(jobs))) as pool:
        yield from pool.each(work, jobs)


POOLS: Registry[Any] = Registry("blis.pools")
"""Pools of installed packages by name: functions that open a JobPool at an address, as context managers."""


def run_on_cluster(
    work: Callable[[Job], Result], jobs: Sequence[Job], name: str, address: str | None
) -> Generator[tuple[Job, Result], None, None]:
    """Do each job in a pool of POOLS, opened at an address. Raises BenchError for a job that is lost."""
    with POOLS[name](address) as pool:
        yield from pool.each(work, jobs)


@contextmanager
def _sigint_deferred() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block; processes that start in the block do not get the signal.

    A process that the signal ends during its start would block the pool.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[int] = []
    resource_tracker.ensure_running()  # which would lift the mask, were it begun under it
    # The mask is for the processes, which inherit it; the signal may still be delivered to other threads of this one.
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if interrupts and callable(handler):
        handler(signal.SIGINT, None)


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Start processes without importing the main module: a script without a guard would run in each process."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _init_worker() -> None:
    """Ignore Ctrl-C, which the parent handles, and exit when the parent ends.

    A parent that is killed cannot end its workers, which would wait for jobs forever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
