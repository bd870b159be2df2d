"""GET /query: which engine has which data-parallel rank, as decoders ask the bootstrap server of Mooncake."""

from aiohttp import web

from mockserve.protocol.json_text import compact_json
from mockserve.serving.service import SERVICE


async def query(request: web.Request) -> web.StreamResponse:
    """The engines that hand prompts on, by data-parallel rank, with the address of each of their workers."""
    service = request.app[SERVICE]
    transfer = service.transfer
    assert transfer is not None  # the gate of this route
    ranks = range(len(service.engines))
    workers = {str(worker): {"0": f"tcp://{transfer.host}:{transfer.port + worker}"} for worker in range(transfer.tp)}
    found = {
        str(rank): {
            "engine_id": transfer.engine_id if len(ranks) == 1 else f"{transfer.engine_id}_dp{rank}",
            "worker_addr": workers,
        }
        for rank in ranks
    }
    return web.Response(body=compact_json(found), content_type="application/json")
