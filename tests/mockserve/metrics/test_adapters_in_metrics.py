"""What the metrics page says of LoRA adapters."""

from mockserve.metrics.engine import Adapters
from tests.wire.plain_http import call, complete
from tests.wire.serving import running_server


def test_adapters_are_named_while_a_request_of_theirs_has_tokens() -> None:
    adapters = Adapters()
    adapters.seen()
    for name in ("x", "y", "x", ""):
        adapters.began(name)
    adapters.seen()
    for name in ("x", "x", ""):
        adapters.ended(name)
    adapters.seen()
    assert list(adapters.last_seen) == ["", "x,y", "y"]
    first = dict(adapters.last_seen)
    adapters.ended("y")
    adapters.seen()
    assert adapters.last_seen[""] > first[""]
    assert adapters.last_seen["y"] == first["y"]


def test_the_metric_is_there_only_where_adapters_are_taken() -> None:
    for takes_adapters, is_there in ((False, False), (True, True)):
        with running_server(enable_lora=takes_adapters, max_loras=3) as server:
            complete(server, max_tokens=2)
            page = call(server, "GET", "/metrics").body.decode()
        line = 'vllm:lora_requests_info{max_lora="3",running_lora_adapters="",waiting_lora_adapters=""}'
        assert (line in page) == is_there
