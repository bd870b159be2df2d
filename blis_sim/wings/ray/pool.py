"""Simulations of `blis sweep` and `blis plan` as tasks of a Ray cluster."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from blis_sim.bench import BenchError
from blis_sim.wings.ray.senders import ray_cluster

Job = TypeVar("Job")
Result = TypeVar("Result")

_PACKAGES = ("blis_sim", "calibrate", "mockserve", "observe", "replay", "traces")


class RayPool:
    """Tasks of a Ray cluster that is connected."""

    is_elsewhere = True

    def each(self, work: Callable[[Job], Result], jobs: Sequence[Job]) -> Generator[tuple[Job, Result], None, None]:
        """Do each job as a task, and yield it with its result as soon as the result is there.

        Jobs that are appended while results are taken are done, too. Raises BenchError when a task is lost.
        """
        import ray
        from ray.exceptions import RayError

        task = ray.remote(work)
        waiting: dict[Any, Job] = {}
        num_begun = 0
        while waiting or num_begun < len(jobs):
            waiting |= {task.remote(job): job for job in jobs[num_begun:]}
            num_begun = len(jobs)
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
