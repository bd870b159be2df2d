"""An engine with vLLM's rules holds all that a healthy prefix cache must hold by the canary's reckoning."""

from dataclasses import dataclass
from functools import reduce
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.engine.core import Engine
from blis_sim.engine.request import HashedBlocks
from observe.proxy.cache_canary import CacheBound
from replay.arrivals import Arrival
from replay.simulation.simulate import simulate
from tests.examples import examples
from tests.fakes import TestLatency, config
from tests.fakes import request as new_request
from tests.replay.small_traces import row

BLOCK_TOKENS = 4
ROOT = b"model"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Prompts that begin as one of a few documents, up to some place, at a rate that the cache bears or does not."""

    seed: int
    num_requests: int
    num_documents: int
    gap_us: int
    num_blocks: int

    def prompts(self) -> list[list[int]]:
        random = Random(self.seed)
        documents = [[random.randrange(10**6) for _ in range(60)] for _ in range(self.num_documents)]
        found = []
        for _ in range(self.num_requests):
            shared = random.choice(documents)[: random.randint(0, 60)]
            found.append(shared + [random.randrange(10**6) for _ in range(random.randint(1, 30))])
        return found


def must_and_found(traffic: Traffic) -> list[tuple[int, int]]:
    """For each request that completed what it must find by the canary, and what it found in the engine."""
    random, prompts, at = Random(traffic.seed + 1), traffic.prompts(), 0
    arrivals = []
    for number, prompt in enumerate(prompts):
        at += random.randint(0, 2 * traffic.gap_us)
        ends = range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS)
        hashes = tuple(hash(tuple(prompt[:end])) for end in ends)
        made = new_request(str(number), len(prompt), random.randint(1, 40), HashedBlocks(str(number), hashes))
        arrivals.append(Arrival(at, made, row(number, at)))
    limits = config(traffic.num_blocks, BLOCK_TOKENS, engine="vllm", max_num_seqs=16, max_model_len=200)
    requests = simulate(Engine(limits, TestLatency(prefill_token_us=20)), arrivals).requests
    sent, ready = requests.arrived_at, requests.arrived_at + requests.ttft_us
    ended = requests.arrived_at + requests.e2e_us
    tokens = [len(prompt) + arrival.request.output_tokens for prompt, arrival in zip(prompts, arrivals, strict=True)]
    bound = CacheBound(BLOCK_TOKENS, traffic.num_blocks)
    found = []
    for place in sorted(range(len(prompts)), key=lambda each: (int(ended[each]), each)):
        in_flight = reduce(
            lambda total, each: total + tokens[each] * bool(sent[each] <= ended[place] < ended[each]),
            range(len(prompts)),
            0,
        )
        begun, first, last = (int(column[place]) for column in (sent, ready, ended))
        must = bound.must_hit(ROOT, prompts[place], begun, in_flight)
        outputs = arrivals[place].request.output_tokens
        bound.answered(place, ROOT, prompts[place], begun, first, last, outputs)
        found.append((must.num_tokens, int(requests.cached_tokens[place])))
    return found


traffics = st.builds(
    Traffic,
    seed=st.integers(0, 10**6),
    num_requests=st.integers(2, 60),
    num_documents=st.integers(1, 12),
    gap_us=st.sampled_from([100, 2_000, 20_000, 200_000]),
    num_blocks=st.integers(64, 600),
)


@settings(max_examples=examples(60), deadline=None)
@given(traffics)
def test_a_healthy_engine_holds_what_it_must(traffic: Traffic) -> None:
    assert all(must <= found for must, found in must_and_found(traffic))


@pytest.mark.parametrize("seed", range(3))
def test_almost_all_that_is_found_must_be_where_the_cache_has_room(seed: int) -> None:
    found = must_and_found(Traffic(seed, 60, 3, 200_000, 4000))
    most = sum(max(0, hits - BLOCK_TOKENS) for _, hits in found)  # the last block is never counted on
    assert sum(must for must, _ in found) > 0.98 * most > 0


def test_the_request_that_computed_a_block_is_named_and_a_cache_that_was_emptied_holds_nothing() -> None:
    bound = CacheBound(BLOCK_TOKENS, 100)
    prompt = list(range(20))
    bound.answered(7, ROOT, prompt, 10, 20, 30, output_tokens=2)
    assert bound.must_hit(ROOT, prompt, 40) == (12, 7)  # four of its five blocks may match, and the last is left out
    assert bound.must_hit(ROOT, [*prompt, 1, 2], 40) == (16, 7)
    assert bound.must_hit(ROOT, prompt, 15).num_tokens == 0  # it was not computed yet
    assert bound.must_hit(b"other", prompt, 40).num_tokens == 0
    assert bound.must_hit(ROOT, prompt, 40, in_flight_tokens=4 * 90).num_tokens == 0
    bound.occupied(4 * 90, 35)
    assert bound.must_hit(ROOT, prompt, 40).num_tokens == 0
    bound.forget()
    assert bound.must_hit(ROOT, prompt, 40).num_tokens == 0
