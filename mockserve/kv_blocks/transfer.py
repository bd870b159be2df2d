"""Prefill here, decode there: handing a prompt's KV blocks from one instance to another, as vLLM's NIXL connector does.

No bytes are moved. The instance that computed a prompt says so in its reply; the one that is told finds the prompt
computed, after the time that the transfer would have taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blis_sim.engine.request import ExternalPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTransfer:
    """One instance's end of transfers. `bytes_per_token` is what each GPU holds of a token; GPUs send side by side."""

    engine_id: str
    host: str
    port: int
    tp: int
    block_size_tokens: int
    bytes_per_token: float
    gb_per_s: float
    latency_us: int

    def incoming(self, params: Mapping[str, Any] | None, prompt_tokens: int) -> ExternalPrompt | None:
        """What another instance has computed of a prompt, according to a request."""
        if not params or not params.get("do_remote_prefill") or not params.get("remote_block_ids"):
            return None
        told = params.get("remote_num_tokens")
        num_tokens = min(prompt_tokens, told) if isinstance(told, int) and told > 0 else prompt_tokens
        transfer_us = self.latency_us + round(num_tokens * self.bytes_per_token / (self.gb_per_s * 1e3))
        return ExternalPrompt(num_tokens, transfer_us)

    def outgoing(self, params: Mapping[str, Any] | None, num_tokens: int, request_id: str) -> dict[str, Any] | None:
        """What a later instance must be told about the blocks of so many tokens, if a request wants that.

        The numbers of blocks are made up: nobody here looks at them.
        """
        if not params or not params.get("do_remote_decode"):
            return None
        num_blocks = -(-num_tokens // self.block_size_tokens)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1, num_blocks + 1))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": self.tp,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": num_tokens,
            "remote_blocks_expiry_time": None,
            "remote_registration_generation": 0,
            "transfer_mode": "pull",
        }
