"""LoRA adapters on the metrics page. The lists of adapters are those of a vLLM 0.33 server."""

from mockserve.metrics.counters import MOST_ADAPTER_CHARACTERS, MOST_ADAPTER_LISTS, Adapters
from tests.wire.plain_http import call, complete
from tests.wire.serving import running_server


def step(adapters: Adapters, request_started: str = "", request_ended: str = "") -> None:
    """A step that brings first tokens of requests with some adapters and ends others; a letter is an adapter."""
    for adapter in request_started:
        adapters.request_started(adapter)
    adapters.step_ended()
    for adapter in request_ended:
        adapters.request_ended(adapter)


def test_a_request_of_one_token_is_never_seen() -> None:
    adapters = Adapters()
    step(adapters, request_started="a", request_ended="a")
    assert list(adapters.last_seen()) == [""]


def test_a_request_is_seen_from_its_first_to_its_last_but_one_token() -> None:
    adapters = Adapters()
    step(adapters, request_started="b")
    step(adapters)
    step(adapters, request_ended="b")
    assert list(adapters.last_seen()) == ["b", ""]


def test_adapters_are_listed_in_the_order_in_which_they_came() -> None:
    adapters = Adapters()
    step(adapters, request_started="d")
    step(adapters, request_started="c")
    step(adapters, request_ended="d")
    step(adapters, request_started="d")
    step(adapters, request_ended="dc")
    assert list(adapters.last_seen()) == ["d", "d,c", "c", "c,d", ""]


def test_two_requests_of_an_adapter_are_seen_until_both_have_ended() -> None:
    adapters = Adapters()
    step(adapters, request_started="xyx")
    step(adapters, request_ended="x")
    step(adapters, request_ended="x")
    assert list(adapters.last_seen()) == ["x,y", "y"]


def test_a_list_seen_again_has_the_later_time() -> None:
    adapters = Adapters()
    step(adapters)
    before = adapters.last_seen()[""]
    step(adapters, request_started="y")
    step(adapters, request_ended="y")
    assert adapters.last_seen()[""] > before
    assert before < adapters.last_seen()["y"]


def test_requests_without_an_adapter_change_no_list() -> None:
    adapters = Adapters()
    adapters.request_started("")
    adapters.step_ended()
    adapters.request_ended("")
    adapters.request_aborted("")
    assert list(adapters.last_seen()) == [""]


def test_a_client_that_hangs_up_was_seen_in_the_step_before() -> None:
    adapters = Adapters()
    step(adapters, request_started="a")
    adapters.request_aborted("a")
    step(adapters)
    assert list(adapters.last_seen()) == ["a", ""]


def test_the_lists_seen_longest_ago_are_forgotten() -> None:
    adapters = Adapters()
    for number in range(MOST_ADAPTER_LISTS + 10):
        adapters.request_started(str(number))
        adapters.step_ended()
        adapters.request_aborted(str(number))
    seen = list(adapters.last_seen())
    assert (len(seen), seen[0], seen[-1]) == (MOST_ADAPTER_LISTS, "10", str(MOST_ADAPTER_LISTS + 9))


def test_long_names_leave_less_lists() -> None:
    adapters = Adapters()
    for number in range(9):
        name = f"{number}" * (MOST_ADAPTER_CHARACTERS // 4)
        adapters.request_started(name)
        adapters.step_ended()
        adapters.request_aborted(name)
    assert [names[0] for names in adapters.last_seen()] == ["5", "6", "7", "8"]


def test_the_metric_is_there_only_where_adapters_are_taken() -> None:
    for takes_adapters, is_there in ((False, False), (True, True)):
        with running_server(enable_lora=takes_adapters, max_loras=3) as server:
            complete(server, max_tokens=2)
            page = call(server, "GET", "/metrics").body.decode()
        line = 'vllm:lora_requests_info{max_lora="3",running_lora_adapters="",waiting_lora_adapters=""}'
        assert (line in page) == is_there
