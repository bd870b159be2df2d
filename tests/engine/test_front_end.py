"""How requests pass the API server: in the order of their arrival, and all of a burst before any goes on."""

from blis_sim.engine.core import FrontEnd
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.events import Scheduled
from tests.engine.test_core import engine
from tests.fakes import TestLatency, request, run


class SlowTokenizer(TestLatency):
    def queueing_time(self, input_tokens: int) -> int:
        return 10 * input_tokens


def scheduled(front_end_us: int = 0, **sizes: int) -> dict[str, int]:
    arrivals = [(0, request(name, input_tokens=tokens)) for name, tokens in sizes.items()]
    events = run(engine(SlowTokenizer(), engine="vllm", front_end_us=front_end_us), arrivals)
    return {event.sequence.request.id: event.at for event in events if isinstance(event, Scheduled)}


def test_a_short_prompt_does_not_overtake_a_long_one_that_came_before() -> None:
    assert scheduled(long=100, short=1)["short"] >= scheduled(long=100)["long"]


def test_a_short_prompt_that_comes_first_does_not_wait_for_a_long_one() -> None:
    assert scheduled(short=1, long=100)["short"] == scheduled(short=1)["short"]


def test_no_request_of_a_burst_goes_on_before_all_are_taken_up() -> None:
    front_end = FrontEnd(request_us=100)
    ready = [front_end.ready_at(name, 0, 7) for name in "abc"]
    assert ready == [107, 207, 307]
    assert [front_end.goes_on_at(name, at) for name, at in zip("abc", ready, strict=True)] == [300, 300, 307]


def test_a_request_waits_once_for_those_that_came_meanwhile() -> None:
    front_end = FrontEnd(request_us=100)
    first = front_end.ready_at("a", 0, 0)
    front_end.ready_at("b", 50, 0)
    later = front_end.goes_on_at("a", first)
    front_end.ready_at("c", 150, 0)
    assert (first, later, front_end.goes_on_at("a", later)) == (100, 200, 200)


def test_a_lone_request_waits_for_itself_alone() -> None:
    assert scheduled(front_end_us=500, alone=3) == {"alone": 530}


def test_old_releases_parse_chat_templates_for_each_request_except_those_of_gpt_oss() -> None:
    def front_end_us(model: str, release: str) -> int:
        return resolve(DeploymentOptions(model=model, hardware="H100", tp=1, vllm_version=release)).config.front_end_us

    assert front_end_us("qwen3-14b", "0.11") == 9_300
    assert front_end_us("gpt-oss-20b", "0.11") == 1_500
    assert front_end_us("qwen3-14b", "0.15") == 0
