"""The calls that a frontend makes of its engine beside requests: sleep, pauses, caches, adapters, workers."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from blis_sim.wings.engine_core.core import RankCore
from blis_sim.wings.engine_core.messages import LoraRequest
from mockserve.options.server import tasks_of
from mockserve.protocol.errors import ApiError
from mockserve.realtime.suspension import PauseMode

_logger = logging.getLogger(__name__)

PAUSE_MODES = ("abort", "wait", "keep")
LONGEST_SHOWN = 200


class CallError(Exception):
    """Raised where vLLM's engine would raise an error; the frontend gets its message."""


class Calls:
    """The calls of one rank."""

    def __init__(self, core: RankCore) -> None:
        self._core = core
        self._service = core.service
        self._suspension = core.service.delivery.suspension
        self._methods: Mapping[str, Callable[..., Any]] = {
            "get_supported_tasks": self._tasks,
            "get_kv_cache_group_metadata": self._cache_groups,
            **dict.fromkeys(("profile", "reset_mm_cache", "reset_encoder_cache", "execute_dummy_batch"), _nothing),
            "reset_prefix_cache": self._reset_prefix_cache,
            "pause_scheduler": self._pause_scheduler,
            "pause_generation": self._pause_generation,
            "resume_scheduler": self._suspension.resume,
            "is_scheduler_paused": lambda: self._suspension.is_paused,
            "sleep": self._sleep,
            "wake_up": self._suspension.wake_up,
            "is_sleeping": lambda: self._suspension.is_sleeping,
            "release_kv_cache_memory": self._suspension.release_kv_cache,
            "add_lora": self._add_lora,
            "remove_lora": self._remove_lora,
            "list_loras": lambda: sorted(core.adapters),
            "pin_lora": self._pin_lora,
            "set_weight_version": self._set_weight_version,
            "get_weight_version": lambda: core.outputs.weight_version,
            "collective_rpc": self._collective_rpc,
        }

    async def result(self, method: str, arguments: Sequence[Any]) -> Any:
        """Return the result of a call. Raises CallError with vLLM's words where it fails."""
        function = self._methods.get(method)
        shown = method[:LONGEST_SHOWN]
        if function is None:
            raise CallError(f"Call to {shown} method failed: 'EngineCoreProc' object has no attribute '{shown}'")
        try:
            found = function(*arguments)
            return await found if asyncio.iscoroutine(found) else found
        except ApiError as error:
            prefix = f"Call to {shown} method failed: "
            raise CallError(prefix + error.message.removeprefix(prefix)) from None
        except (TypeError, ValueError, KeyError, CallError, msgspec.ValidationError) as error:
            raise CallError(f"Call to {shown} method failed: {error}") from None

    def _tasks(self) -> list[str]:
        return sorted(tasks_of(self._service.options.routes))

    def _cache_groups(self) -> list[dict[str, Any]]:
        memory = self._service.model.deployment.memory
        size = self._core.block_size_tokens
        if memory is None:
            return [{"group_idx": 0, "kind": "full_attention", "block_size": size, "sliding_window": None}]
        return [
            {
                "group_idx": number,
                "kind": str(each.kind),
                "block_size": size,
                "sliding_window": getattr(each, "window_tokens", None) or None,
            }
            for number, each in enumerate(memory.groups)
        ]

    def _reset_prefix_cache(self, reset_running_requests: bool = False, _reset_connector: bool = False) -> bool:
        is_reset = self._suspension.reset_prefix_cache(bool(reset_running_requests))
        if is_reset:
            self._core.statistics.cache_was_reset()
        return is_reset

    async def _pause_scheduler(self, mode: str = "abort", clear_cache: bool = True) -> None:
        """Pause without refusing new requests, which wait."""
        await self._suspension.sleep(0, _mode(mode))
        if clear_cache:
            self._reset_prefix_cache(True)

    async def _pause_generation(self, mode: str = "abort", clear_cache: bool = True) -> None:
        await self._suspension.pause(_mode(mode), bool(clear_cache))

    async def _sleep(self, level: int = 1, mode: str = "abort") -> None:
        if level not in (0, 1, 2):
            raise CallError(f"the level of sleep must be 0, 1 or 2, got {level!r}"[:LONGEST_SHOWN])
        await self._suspension.sleep(level, _mode(mode))

    def _add_lora(self, request: Any) -> bool:
        self._core.adapter(msgspec.convert(request, LoraRequest))
        return True

    def _remove_lora(self, number: int) -> bool:
        adapter = self._core.adapters.pop(number, None)
        if adapter is None:
            return False
        if adapter.name in self._service.model.adapters:
            self._service.model.adapters.unload(adapter.name)
        return True

    def _pin_lora(self, number: int) -> bool:
        if number not in self._core.adapters:
            raise CallError(f"LoRA {number} is not registered.")
        return True

    def _set_weight_version(self, version: str) -> None:
        if not isinstance(version, str):
            raise CallError("the version of the weights must be a text")
        self._core.outputs.weight_version = version

    def _collective_rpc(
        self, method: str, _timeout: float | None = None, _args: Any = (), _kwargs: Any = None
    ) -> list[Any]:
        """Return what each worker answers. A worker without weights has an answer to few methods."""
        answers: Mapping[str, Any] = {
            "check_health": None,
            "echo_rank": None,
            "list_loras": sorted(self._core.adapters),
            "get_supported_tasks": self._tasks(),
            "synchronize_device": None,
        }
        if not isinstance(method, str):
            raise CallError("a method must be named: functions are not unpacked here")
        if method not in answers:
            raise CallError(f"Method {method[:LONGEST_SHOWN]!r} is not implemented.")
        deployment = self._service.model.deployment
        num_workers = max(1, deployment.tp * deployment.pp)
        return [answers[method]] * num_workers


def _mode(text: str) -> PauseMode:
    if text not in PAUSE_MODES:
        raise CallError(f"Invalid pause mode: {text}"[:LONGEST_SHOWN])
    return text  # type: ignore[return-value]  # one of PAUSE_MODES


def _nothing(*_arguments: Any) -> None:
    """Succeed: there is no kernel to profile, no medium and no batch to compute."""
