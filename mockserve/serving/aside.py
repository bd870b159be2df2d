"""Work beside the event loop: in worker processes what a client's demand may make costly, in a thread what is long."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from mockserve.content.writing import too_big
from mockserve.serving.admission import too_busy
from mockserve.serving.open_replies import OpenReplies
from mockserve.workers.job import Job
from mockserve.workers.pool import OverLimitError, PoolBusyError, WorkerPool

Result = TypeVar("Result")

MODULES = ("mockserve.content.constraints.validation", "mockserve.content.writing", "llguidance")
"""What the jobs of a server need."""


class Aside:
    """One server's worker processes and its thread. None of them exists before it has something to do."""

    def __init__(self, answering: OpenReplies | None = None, pool: WorkerPool | None = None) -> None:
        """`answering` counts what is under way here as a reply that is open."""
        self._answering = answering or OpenReplies()
        self.pool = pool or WorkerPool(preloaded=MODULES)
        # One thread, so that the event loop never waits for more than one to let it run.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="aside")

    async def done(self, job: Job[Result]) -> Result:
        """The result of a job, made in place if it is small. Raises ApiError for one over the limits."""
        if job.is_small:
            return job.done()
        try:
            with self._answering:
                return await self.pool.run(job.function, *job.arguments)
        except (OverLimitError, RecursionError):
            raise too_big() from None
        except PoolBusyError:
            raise too_busy("max_num_queued_reqs") from None

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """What a function makes of its arguments, which may take longer than the event loop can wait."""
        with self._answering:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def close(self) -> None:
        """End the worker processes and the thread."""
        self.pool.close()
        self._thread.shutdown(wait=False, cancel_futures=True)
