"""vLLM's own data-parallel ranks on a workload: engine cores, coordinator and load balancer, in virtual time.

The busy loops are vLLM's, each in a thread of its own, of which one goes on at a time. Messages take no time. Only
processes, sockets and the model step are left out. Ranks that share experts run vLLM's loop of waves, dummy batches and
all-reduces. A forward pass begins when all ranks have handed over theirs, and ends when the slowest is done.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec.msgpack
import vllm.config.parallel as parallel_module  # type: ignore[import-not-found]
import vllm.v1.engine.coordinator as coordinator_module  # type: ignore[import-not-found]
import vllm.v1.engine.core as core_module  # type: ignore[import-not-found]
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.core import (
    DPEngineCoreProc,
    EngineCoreProc,
    EngineShutdownState,
)

from workshop.vllm_oracle.balancing import genuine_client
from workshop.vllm_oracle.genuine import Drafts, VirtualRun, VirtualTime
from workshop.vllm_oracle.genuine_transfers import VirtualTransfers
from workshop.vllm_oracle.workload import Arrival, Choice, RunRecord, Workload, joined

MOST_EMPTY_FORWARDS = 200
"""Forward passes without tokens, in a row, after which a run is taken to be over."""
SLEEP_US = 1_000
"""What a core sleeps that has composed no step while requests are left."""
START_US = -200_000
"""The coordinator has begun before, and made its first report."""
EPOCH_S = 1_000_000
"""What clocks show at the instant 0."""
COORDINATOR = -1
"""vLLM's number of the receiver of outputs that are for the coordinator."""


class Stopped(SystemExit):
    """The run is over, and each loop ends."""


class Process:
    """A thread that goes on only when it is told to."""

    def __init__(self, run: Callable[[], None], stopping: threading.Event, is_service: bool) -> None:
        self.is_service = is_service
        """Whether it wakes for ever, even when nothing else happens."""
        self.is_ready: Callable[[], bool] = lambda: True
        self.until: Fraction | int | None = None
        self.error: BaseException | None = None
        self.has_ended = False
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._stopping = stopping
        self._thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Go on until the process waits again, or ends."""
        self._go.release()
        self._paused.acquire()

    def pause(self, is_ready: Callable[[], bool], until: Fraction | int | None) -> None:
        """Called by the process: wait."""
        self.is_ready, self.until = is_ready, until
        self._paused.release()
        self._go.acquire()
        if self._stopping.is_set():
            raise Stopped

    def _run(self, run: Callable[[], None]) -> None:
        self._go.acquire()
        try:
            if not self._stopping.is_set():
                run()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - the run raises it
            self.error = error
        self.has_ended = True
        self._paused.release()


class Processes:
    """Processes that go on in turn, the first that can; time passes when none can."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._processes: list[Process] = []
        self._stopping = threading.Event()
        self._current: Process | None = None
        self.is_over: Callable[[], bool] = lambda: False

    def add(self, run: Callable[[], None], is_service: bool = False) -> None:
        self._processes.append(Process(run, self._stopping, is_service))

    def wait(self, is_ready: Callable[[], bool], until: Fraction | int | None = None) -> None:
        """Called by a process: wait until `is_ready`, or until an instant."""
        assert self._current is not None
        self._current.pause(is_ready, until)

    def run(self) -> None:
        """Let all go on until nothing is left that could happen."""
        try:
            while not self.is_over():
                alive = [each for each in self._processes if not each.has_ended]
                now = self._time.now
                able = (p for p in alive if p.is_ready() or (p.until is not None and p.until <= now))
                self._current = next(able, None)
                if self._current is not None:
                    self._current.go_on()
                    if self._current.error is not None:
                        raise self._current.error
                    continue
                waiting = [each for each in alive if each.until is not None]
                if all(each.is_service for each in waiting):
                    return
                self._time.now = min(each.until for each in waiting)  # type: ignore[assignment,type-var]
        finally:
            self._stopping.set()
            for each in self._processes:
                if not each.has_ended:
                    each.go_on()


class Messages:
    """A queue of messages to a process, which waits for them in virtual time."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._messages: deque[Any] = deque()

    def __bool__(self) -> bool:
        return bool(self._messages)

    def empty(self) -> bool:
        return not self._messages

    def put_nowait(self, message: Any) -> None:
        self._messages.append(message)

    def get_nowait(self) -> Any:
        if not self._messages:
            raise queue.Empty
        return self._messages.popleft()

    def get(self, block: bool = True) -> Any:
        if block and not self._messages:
            self._processes.wait(lambda: bool(self._messages))
        return self.get_nowait()


class JointForwards:
    """The forward passes of ranks that share experts, and their all-reduces."""

    def __init__(self, processes: Processes, time: VirtualTime, num_ranks: int) -> None:
        self._processes, self._time, self._num_ranks = processes, time, num_ranks
        self._handed_over = [0] * num_ranks
        self._arrived: list[int] = []
        """For each forward pass how many ranks have handed it over, and in `_longest` how long the slowest takes."""
        self._longest: list[int] = []
        self._ends: list[int] = []
        """Ends of the forward passes that have begun."""
        self.num_empty = 0
        """Forward passes without tokens since the last one with some, or since a transfer was under way."""
        self._has_tokens: list[bool] = []
        self._sums: list[Any] = []
        self._num_reduced = [0] * num_ranks
        self._num_joined: list[int] = []

    def hand_over(self, rank: int, step_us: int, has_tokens: bool) -> int:
        """Hand over the next forward pass of a rank. Returns its number."""
        number = self._handed_over[rank]
        self._handed_over[rank] += 1
        if number == len(self._arrived):
            self._arrived.append(0)
            self._longest.append(0)
            self._has_tokens.append(False)
        self._arrived[number] += 1
        self._longest[number] = max(self._longest[number], step_us)
        self._has_tokens[number] |= has_tokens
        if self._arrived[number] == self._num_ranks:
            begins_at = max(self._time.now, self._ends[-1] if self._ends else 0)
            self._ends.append(begins_at + self._longest[number])
            self.num_empty = 0 if self._has_tokens[number] else self.num_empty + 1
        return number

    def num_handed_over(self, rank: int) -> int:
        """Forward passes that a rank has handed over."""
        return self._handed_over[rank]

    def has_begun(self, number: int) -> bool:
        """Whether all ranks have handed over a forward pass, whose end is known then; True for -1, which is none."""
        return number < len(self._ends)

    def end_of(self, number: int) -> int:
        """Return the end of a forward pass that has begun."""
        return self._ends[number] if number >= 0 else 0

    def await_begin(self, number: int) -> None:
        """Wait until all ranks have handed over a forward pass, which each then knows."""
        self._processes.wait(lambda: len(self._ends) > number)

    def await_end(self, number: int) -> None:
        """Wait until a forward pass has ended."""
        self.await_begin(number)
        if self._ends[number] > self._time.now:
            self._processes.wait(lambda: False, self._ends[number])

    def all_reduce(self, rank: int, tensor: Any) -> None:
        """Wait until all ranks are here, and set the tensor to the sum of all."""
        number = self._num_reduced[rank]
        self._num_reduced[rank] += 1
        if number == len(self._sums):
            self._sums.append(tensor.clone())
            self._num_joined.append(1)
        else:
            self._sums[number] += tensor
            self._num_joined[number] += 1
        self._processes.wait(lambda: self._num_joined[number] == self._num_ranks)
        tensor.copy_(self._sums[number])


class LockstepTransfers(VirtualTransfers):
    """Transfers of a rank in lockstep: each behind the forward passes that the rank had handed over before."""

    def __init__(self, run: "RankRun", block_us: float, forwards: JointForwards, rank: int) -> None:
        super().__init__(run, block_us)
        self._forwards, self._rank = forwards, rank
        self._submitted: deque[tuple[str, int, int, int, int]] = deque()

    def get_finished(self) -> list[Any]:
        while self._submitted and self._forwards.has_begun(self._submitted[0][-1]):
            kind, job, num_blocks, at, number = self._submitted.popleft()
            self._begin(kind, job, num_blocks, max(at, self._forwards.end_of(number)))
        return super().get_finished()

    @property
    def is_moving(self) -> bool:
        """Whether a transfer is under way or was submitted."""
        return bool(self._submitted or self._ends)

    def _submit(self, kind: str, job: int, num_blocks: int) -> bool:
        number = self._forwards.num_handed_over(self._rank) - 1
        self._submitted.append((kind, job, num_blocks, self._clock.now, number))
        return True


class ReducingGroup:
    """The group of a rank for all-reduces."""

    def __init__(self, forwards: JointForwards, rank: int, num_ranks: int) -> None:
        self.forwards, self.rank, self._num_ranks = forwards, rank, num_ranks

    def size(self) -> int:
        return self._num_ranks


class RankRun(VirtualRun):
    """One engine core in vLLM's busy loop."""

    def __init__(self, scheduler: Any, config: Any, workload: Workload, group: "RankRuns", number: int) -> None:
        self._group, self._number = group, number
        super().__init__(scheduler, config, workload, group.time)
        self._drafts = Drafts(workload.config.speculation, ())
        core = self._core
        core.input_queue = self.inputs = Messages(group.processes)
        core.output_queue = SimpleNamespace(put_nowait=self._put_out)
        core.engine_index = core.dp_rank = number
        core.engines_running = False
        core.shutdown_state = EngineShutdownState.RUNNING
        core.reject_new_requests = core.enable_fault_tolerance = False
        core.process_input_queue_block = core.has_coordinator = core.publish_dp_lb_stats = True
        core.last_counts = (0, 0)
        core._idle_state_callbacks = []
        core.step_fn = core.step if core.batch_queue is None else core.step_with_batch_queue
        core.step_counter = core.current_wave = 0
        core.pending_pause = core.ignore_start_dp_wave = False
        core.eep_scaling_state = None
        core.prefill_schedule_interval = config.scheduler_config.prefill_schedule_interval
        core.dp_sync_interval = config.parallel_config.dp_sync_interval
        self._forwards = group.forwards
        self._moving: LockstepTransfers | None = None
        if group.forwards and workload.config.offload is not None:
            self._moving = LockstepTransfers(self, workload.config.offload.block_us, group.forwards, number)
            self._transfers = self._worker.worker = self._moving
        core.dp_group = ReducingGroup(group.forwards, number, group.num_ranks) if group.forwards else None
        self._idle: tuple[object, ...] = ()
        self._num_idle = 0

    @property
    def core(self) -> Any:
        return self._core

    @property
    def is_moving(self) -> bool:
        """Whether transfers of a rank in lockstep are under way."""
        if self._moving is None:
            return False
        return self._moving.is_moving or (self._tiers is not None and self._tiers.next_end() is not None)

    @property
    def record(self) -> RunRecord:
        return self._story

    def run(self) -> None:
        """vLLM's busy loop."""
        self._core.run_busy_loop()

    def record_content(self) -> None:
        """Add the changes of the prefix cache to the record."""
        self._story.content = self._contents.changes

    def request(self, arrival: Arrival) -> Any:
        """Return vLLM's request for an arrival, of which the rank has the next draws."""
        self._drafts.enter(arrival)
        return self._request(arrival)

    def execute_dummy_batch(self) -> None:
        """The executor's dummy batch, which returns when all ranks have handed over the same forward pass.

        vLLM's worker computes a token and as many drafts as a request that decodes has.
        """
        assert self._forwards is not None
        step_us = self._workload.latency.time_of(1 + self._drafts.num_tokens, 1)
        self._forwards.await_begin(self._forwards.hand_over(self._number, step_us, False))

    @property
    def is_sleeping(self) -> bool:
        return False

    def sleep(self) -> None:
        """Let time pass until something happens, where the core only waits; in lockstep what vLLM's core sleeps."""
        if self._forwards is not None:
            self._wait_until(self._time.now + SLEEP_US)
            return
        moved = sum(each.num_changes for each in (self._transfers, self._tiers) if each is not None)
        idle = (self._time.now, len(self._story.lines), moved)
        self._num_idle = self._num_idle + 1 if idle == self._idle else 0
        self._idle = idle
        if self._num_idle > 8:
            ends = (
                self._transfers.next_end(self._time.now) if self._transfers else None,
                self._tiers.next_end() if self._tiers else None,
            )
            until = min((at for at in ends if at is not None), default=None)
            self._group.processes.wait(lambda: bool(self.inputs), until)

    def _new_core(self) -> Any:
        return object.__new__(DPEngineCoreProc if self._group.forwards else EngineCoreProc)

    def _put_out(self, output: tuple[int, Any]) -> None:
        self._group.put_out(self._number, *output)

    def _begin_step(self, num_tokens: int, num_requests: int, samples: bool) -> int:
        if self._forwards is None:
            return super()._begin_step(num_tokens, num_requests, samples)
        step_us = self._workload.latency.time_of(num_tokens, num_requests)
        return self._forwards.hand_over(self._number, step_us, True)

    def _await_step(self, end: int) -> None:
        if self._forwards is None:
            self._wait_until(end)
        else:
            self._forwards.await_end(end)

    def _await_drafts(self) -> None:
        if self._forwards is None:
            self._wait_until(self._busy_until)

    def _wait_until(self, end: int) -> None:
        if end > self._time.now:
            self._group.processes.wait(lambda: False, end)


class Front:
    """The front end: chooses ranks as vLLM's client does, and hears of the coordinator's reports at once."""

    def __init__(self, group: "RankRuns", workload: Workload) -> None:
        self._group, self._workload = group, workload
        self._client = genuine_client(group.num_ranks, 1, 0)
        self._client.current_wave = 0
        self.choices: list[Choice] = []

    def run(self) -> None:
        workload, time = self._workload, self._group.time
        leaving = [*workload.hang_ups, *((each.deadline_us, each.id) for each in workload.arrivals if each.deadline_us)]
        todo: list[tuple[int, int, Any]] = [(each.at, 0, each) for each in workload.arrivals]
        todo += [(at, 1, name) for at, name in sorted(leaving, key=lambda each: each[0])]
        for at, kind, what in sorted(todo, key=lambda each: each[:2]):
            if at > time.now:
                self._group.processes.wait(lambda: False, at)
            if kind:
                self._hang_up(what)
            else:
                self._send(what)

    def processed(self, outputs: Any) -> None:
        """Take the outputs of a rank."""
        processing = type(self._client).process_engine_outputs(self._client, outputs)
        try:
            processing.send(None)
        except StopIteration:
            return
        raise AssertionError("it waits for something")

    def reported(self, message: bytes) -> None:
        """Take a report of the coordinator, as vLLM's task does."""
        counts, wave, running = msgspec.msgpack.decode(message)
        self._client.current_wave, self._client.engines_running = wave, running
        if counts is not None:
            self._client.lb_engines = counts

    def _send(self, arrival: Arrival) -> None:
        client = self._client
        asked = SimpleNamespace(request_id=arrival.id, resumable=False, data_parallel_rank=None, pooling_params=None)
        rank = client.core_engines.index(client.get_core_engine_for_request(asked))
        self.choices.append(Choice(arrival.id, rank))
        run = self._group.runs[rank]
        run.inputs.put_nowait((EngineCoreRequestType.ADD, (run.request(arrival), client.current_wave)))

    def _hang_up(self, name: str) -> None:
        engine = self._client.reqs_in_flight.get(name)
        if engine is not None:
            run = self._group.runs[self._client.core_engines.index(engine)]
            run.core.aborts_queue.put_nowait([name])
            run.inputs.put_nowait((EngineCoreRequestType.ABORT, [name]))


class Socket:
    """A socket of the coordinator's, which has only what is used of it."""

    def __init__(self, messages: Messages | tuple[()], **methods: Callable[..., Any]) -> None:
        self.messages = messages
        self.__dict__.update(methods)


class Coordinator:
    """vLLM's coordinator, whose sockets are queues."""

    def __init__(self, group: "RankRuns") -> None:
        self._group = group
        self._proc = object.__new__(coordinator_module.DPCoordinatorProc)
        self._proc.ctx = None
        self._proc.engines = [coordinator_module.EngineState() for _ in range(group.num_ranks)]
        self._proc.stats_update_interval_ms = 100
        self._proc.enable_wave_coordination = group.forwards is not None
        self.outputs = Messages(group.processes)
        self._ranks = Messages(group.processes)
        for _ in range(group.num_ranks):
            self._ranks.put_nowait(b"\x01")

    def run(self) -> None:
        """vLLM's loop."""
        self._proc.process_input_socket("front", "outputs", "ranks")

    @contextmanager
    def socket(self, path: str, **_: Any) -> Iterator[Any]:
        """Return a socket of the coordinator's, by the name given to `run`."""
        group = self._group
        if path == "front":
            yield Socket(messages=(), send=group.front.reported)
        elif path == "outputs":
            yield Socket(messages=self.outputs, recv=self.outputs.get_nowait)
        else:
            yield Socket(
                messages=self._ranks,
                recv=self._ranks.get_nowait,
                send=lambda _: None,
                send_multipart=self._start_wave,
            )

    def poller(self) -> Any:
        """Return a poller of the coordinator's, whose instants are exact."""
        sockets: list[Any] = []

        def poll(timeout: Fraction) -> list[tuple[Any, int]]:
            processes, time = self._group.processes, self._group.time
            processes.wait(lambda: any(each.messages for each in sockets), time.now + timeout * 1000)
            return [(each, 1) for each in sockets if each.messages]

        return SimpleNamespace(register=lambda socket, _: sockets.append(socket), poll=poll)

    def _start_wave(self, frames: tuple[Any, bytes]) -> None:
        wave, excluded = msgspec.msgpack.decode(frames[1])
        for run in self._group.runs:
            run.inputs.put_nowait((EngineCoreRequestType.START_DP_WAVE, (wave, excluded)))


class RankRuns:
    """All ranks, the coordinator and the front end of a workload."""

    def __init__(self, schedulers: list[Any], config: Any, workload: Workload) -> None:
        assert workload.ranks is not None
        self.time = VirtualTime(START_US)
        self.processes = processes = Processes(self.time)
        self.num_ranks = len(schedulers)
        shares = workload.ranks.share_experts
        self.forwards = JointForwards(processes, self.time, self.num_ranks) if shares else None
        self.front = Front(self, workload)
        self.runs = [RankRun(each, config, workload, self, number) for number, each in enumerate(schedulers)]
        self.coordinator = Coordinator(self)
        self._has_sent = False

    def story(self) -> RunRecord:
        """Return what all ranks did: the lines of each behind its number, and the choices."""
        processes = self.processes
        processes.is_over = self._is_over
        processes.add(self._run_front)
        for run in self.runs:
            processes.add(run.run)
        processes.add(self.coordinator.run, is_service=True)
        with self._patched():
            processes.run()
        for run in self.runs:
            run.record_content()
        return joined([run.record for run in self.runs], self.front.choices)

    def put_out(self, rank: int, receiver: int, outputs: Any) -> None:
        """Hand outputs of a rank to the front end or the coordinator."""
        outputs.engine_index = rank
        if receiver == COORDINATOR:
            self.coordinator.outputs.put_nowait(outputs)
        else:
            self.front.processed(outputs)

    def _run_front(self) -> None:
        self.front.run()
        self._has_sent = True

    def _is_over(self) -> bool:
        if any(run.record.is_endless for run in self.runs):
            return True
        is_idle = all(not run.core.has_work() and not run.inputs for run in self.runs)
        if self.forwards is not None and any(run.is_moving for run in self.runs):
            self.forwards.num_empty = 0
        is_stuck = self.forwards is not None and self.forwards.num_empty > MOST_EMPTY_FORWARDS
        return self._has_sent and (is_idle or is_stuck)

    @contextmanager
    def _patched(self) -> Iterator[None]:
        time = self.time
        clock = SimpleNamespace(time=lambda: EPOCH_S + Fraction(time.now, 1_000_000))
        zmq = SimpleNamespace(**dict.fromkeys(("XPUB", "PULL", "POLLIN")), Poller=self.coordinator.poller)

        def all_reduce(tensor: Any, group: ReducingGroup, timeout: Any) -> None:
            group.forwards.all_reduce(group.rank, tensor)

        with ExitStack() as patches:
            replaced = [
                (coordinator_module, "time", clock),
                (coordinator_module, "int", lambda each: each),  # instants are exact, not cut to milliseconds
                (coordinator_module, "zmq", zmq),
                (coordinator_module, "make_zmq_socket", self.coordinator.socket),
                (coordinator_module, "MsgpackDecoder", lambda _: SimpleNamespace(decode=lambda outputs: outputs)),
                (core_module, "time", SleepingTime(self)),
                (parallel_module, "cpu_all_reduce_", all_reduce),
            ]
            for module, name, value in replaced:
                patches.enter_context(mock.patch.object(module, name, value, create=True))
            yield


class SleepingTime:
    """The module `time`, of which a core's sleep passes time in lockstep and where it only waits."""

    def __init__(self, group: RankRuns) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        import time

        return getattr(time, name)

    def sleep(self, _: float) -> None:
        current = self._group.processes._current
        index = self._group.processes._processes.index(current)  # type: ignore[arg-type]
        self._group.runs[index - 1].sleep()
