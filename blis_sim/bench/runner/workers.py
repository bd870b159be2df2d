"""Calls on many processes, on this machine or on a Ray cluster; results come in the order of completion."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import ModuleType
from typing import TypeVar

from blis_sim.bench import BenchError
from blis_sim.bench.runner.cores import default_num_processes
from observe.on_ray.senders import ray_cluster

Job = TypeVar("Job")
Result = TypeVar("Result")

_PACKAGES = ("blis_sim", "calibrate", "mockserve", "observe", "replay", "traces")


class Pool:
    """Processes that start with the first jobs and are kept for later jobs; a pool of one runs jobs in this process."""

    def __init__(self, num_processes: int) -> None:
        self._num_processes = num_processes
        self._executor: ProcessPoolExecutor | None = None

    def each(self, work: Callable[[Job], Result], jobs: Sequence[Job]) -> Generator[tuple[Job, Result], None, None]:
        """Do each job, and yield it with its result as soon as the result is there.

        Raises BenchError when a process is killed.
        """
        if self._num_processes <= 1:
            for job in jobs:
                yield job, work(job)
            return
        if self._executor is None:
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(self._num_processes, context, initializer=_init_worker)
        futures: dict[Future[Result], Job] = {}
        try:
            with _sigint_deferred(), _without_main_module():
                futures.update({self._executor.submit(work, job): job for job in jobs})
            for future in as_completed(futures):
                yield futures[future], future.result()
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


class RayPool:
    """Tasks of a Ray cluster that is connected."""

    def each(self, work: Callable[[Job], Result], jobs: Sequence[Job]) -> Generator[tuple[Job, Result], None, None]:
        """Do each job as a task, and yield it with its result as soon as the result is there.

        Raises BenchError when a task is lost.
        """
        import ray
        from ray.exceptions import RayError

        task = ray.remote(work)
        waiting = {task.remote(job): job for job in jobs}
        while waiting:
            (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
            try:
                result = ray.get(ready)
            except RayError as error:
                raise BenchError(f"a task of the Ray cluster is lost: {' '.join(str(error).split())[:200]}") from error
            yield waiting.pop(ready), result


@contextmanager
def ray_pool(address: str | None) -> Iterator[RayPool]:
    """Connect to the Ray cluster at an address, else start one on this host; workers get these packages."""
    with ray_cluster(address, _PACKAGES):
        yield RayPool()


def on_ray(
    work: Callable[[Job], Result], jobs: Sequence[Job], address: str | None
) -> Generator[tuple[Job, Result], None, None]:
    """Do each job as a task of a Ray cluster, as `ray_pool` connects to it. Raises BenchError for a lost task."""
    with ray_pool(address) as pool:
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
