"""Mixed clients: the libraries of OpenAI and Anthropic, LangChain where it is installed, an agent, and bare HTTP.

A conversation is a function of its number, so a second load says the words of the first.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import aiohttp

MODEL = "qwen/qwen3-14b"
WORDS = ("alpha", "beta", "gamma", "delta", "river", "stone", "light", "paper", "green", "cloud", "seven")
AGENT_ROUNDS = 4
AGENT_PAUSE_S = 0.05
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the library.",
            "parameters": {"type": "object", "properties": {"words": {"type": "string"}}, "required": ["words"]},
        },
    }
]


@dataclass(slots=True)
class LoadReplies:
    """Replies of one load: their words by conversation and round, and when each request was sent and ended."""

    words: dict[tuple[int, int], str] = field(default_factory=dict)
    times_s: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    num_cut: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of one client: its words and the most tokens of a reply."""

    number: int
    words: str
    most_tokens: int

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self.words}]


def plan_of(number: int) -> Plan:
    """The words of a conversation, drawn by its number."""
    chance = random.Random(number)
    num_words = round(math.exp(chance.uniform(math.log(10), math.log(2000))))
    words = " ".join(chance.choice(WORDS) for _ in range(num_words))
    return Plan(number, f"{number}: {words}", chance.randint(8, 64))


class Clients:
    """The clients of one server, which share connections as the users of a library do."""

    def __init__(self, url: str, session: aiohttp.ClientSession, stack: AsyncExitStack) -> None:
        self._url = url
        self._session = session
        self._stack = stack
        self._openai: Any = None
        self._anthropic: Any = None
        self._langchain: Any = None
        self.client_kinds: list[Callable[[Plan], AsyncIterator[str]]] = []
        """One way to hold a conversation for each kind of client; a text for each round."""

    async def begin(self) -> None:
        """Make the clients of the libraries that are installed; their shapes of requests go by bare HTTP else."""
        if find_spec("openai"):
            import openai

            self._openai = await self._stack.enter_async_context(
                openai.AsyncOpenAI(base_url=self._url + "/v1", api_key="sk-openai", max_retries=0)
            )
        if find_spec("anthropic"):
            import anthropic

            self._anthropic = await self._stack.enter_async_context(
                anthropic.AsyncAnthropic(base_url=self._url, api_key="sk-anthropic", max_retries=0)
            )
        if find_spec("langchain_openai"):
            from langchain_openai import ChatOpenAI  # type: ignore[import-not-found,unused-ignore]

            self._langchain = ChatOpenAI(
                base_url=self._url + "/v1", api_key="sk-lang", model=MODEL, stream_usage=True, max_retries=0
            )
        self.client_kinds = [
            self._chat if self._openai else self._bare_chat,
            self._completion if self._openai else self._bare_completion,
            self._message if self._anthropic else self._bare_message,
            self._response if self._openai else self._bare_chat,
            self._chain if self._langchain else self._bare_chat,
            self._agent,
        ]

    async def _chat(self, plan: Plan) -> AsyncIterator[str]:
        stream = await self._openai.chat.completions.create(
            model=MODEL,
            messages=plan.messages,
            max_tokens=plan.most_tokens,
            stream=True,
            stream_options={"include_usage": True},
        )
        yield "".join([each.choices[0].delta.content or "" async for each in stream if each.choices])

    async def _completion(self, plan: Plan) -> AsyncIterator[str]:
        stream = await self._openai.completions.create(
            model=MODEL,
            prompt=plan.words,
            max_tokens=plan.most_tokens,
            stream=True,
            stream_options={"include_usage": True},
        )
        yield "".join([each.choices[0].text async for each in stream if each.choices])

    async def _response(self, plan: Plan) -> AsyncIterator[str]:
        stream = await self._openai.responses.create(
            model=MODEL, input=plan.messages, max_output_tokens=plan.most_tokens, stream=True
        )
        yield "".join([each.delta async for each in stream if each.type == "response.output_text.delta"])

    async def _message(self, plan: Plan) -> AsyncIterator[str]:
        found = self._anthropic.messages.stream(model=MODEL, messages=plan.messages, max_tokens=plan.most_tokens)
        async with found as stream:
            yield "".join([each async for each in stream.text_stream])

    async def _chain(self, plan: Plan) -> AsyncIterator[str]:
        bound = self._langchain.bind(max_tokens=plan.most_tokens)
        yield "".join([str(each.content) async for each in bound.astream(plan.words)])

    async def _agent(self, plan: Plan) -> AsyncIterator[str]:
        """Rounds of one conversation, whose context grows by a reply and the result of a tool each."""
        system = {"role": "system", "content": "You are an agent. " + plan_of(-1).words}
        messages = [system, *plan.messages]
        for number in range(AGENT_ROUNDS):
            if number:
                await asyncio.sleep(AGENT_PAUSE_S)
            body = {"model": MODEL, "messages": messages, "max_tokens": plan.most_tokens, "tools": TOOLS}
            said = await self._streamed_text("/v1/chat/completions", {**body, "tool_choice": "none"})
            yield said
            result = {"role": "user", "content": f"search found: {plan_of(plan.number * 10 + number).words[:200]}"}
            messages = [*messages, {"role": "assistant", "content": said}, result]

    async def _bare_chat(self, plan: Plan) -> AsyncIterator[str]:
        body = {"model": MODEL, "messages": plan.messages, "max_tokens": plan.most_tokens}
        yield await self._streamed_text("/v1/chat/completions", body)

    async def _bare_completion(self, plan: Plan) -> AsyncIterator[str]:
        body = {"model": MODEL, "prompt": plan.words, "max_tokens": plan.most_tokens}
        yield await self._streamed_text("/v1/completions", body)

    async def _bare_message(self, plan: Plan) -> AsyncIterator[str]:
        body = {"model": MODEL, "messages": plan.messages, "max_tokens": plan.most_tokens}
        yield await self._streamed_text("/v1/messages", body)

    async def _streamed_text(self, path: str, body: dict[str, Any]) -> str:
        """The words of a stream."""
        if not path.endswith("/messages"):
            body = {**body, "stream_options": {"include_usage": True}}
        words = ""
        async with self._session.post(self._url + path, json={**body, "stream": True}) as reply:
            if reply.status != 200:
                raise RuntimeError(f"status {reply.status}: {await reply.text()}")
            async for line in reply.content:
                if line.startswith(b"data:") and b"[DONE]" not in line:
                    words += _event_text(json.loads(line[5:]))
        return words


def _event_text(event: dict[str, Any]) -> str:
    if event.get("choices"):
        choice = event["choices"][0]
        return str(choice.get("text") or (choice.get("delta") or {}).get("content") or "")
    return str((event.get("delta") or {}).get("text") or "")


def num_conversations(num_requests: int) -> int:
    """Return the number of conversations with `num_requests` requests: one of six has several rounds."""
    whole, rest = divmod(num_requests, 5 + AGENT_ROUNDS)
    return whole * 6 + min(rest, 5)


async def load(url: str, num_requests: int, rate: float, ends_when_cut: bool = False, first: int = 0) -> LoadReplies:
    """Send conversations at `rate` requests per second, from that of a number on.

    With `ends_when_cut` failed ones are counted.
    """
    replies = LoadReplies()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        clients = Clients(url, session, stack)
        await clients.begin()
        total = num_conversations(num_requests)
        pause_s = num_requests / total / rate
        start = time.monotonic()
        tasks = []
        chance = random.Random(7)
        due = start
        for number in range(first, first + total):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += chance.expovariate(1 / pause_s)
            tasks.append(asyncio.create_task(_converse(clients, number, replies, ends_when_cut)))
        await asyncio.gather(*tasks)
    return replies


async def _converse(clients: Clients, number: int, replies: LoadReplies, ends_when_cut: bool) -> None:
    plan = plan_of(number)
    began = time.time()
    index = 0
    try:
        async for words in clients.client_kinds[number % len(clients.client_kinds)](plan):
            replies.words[number, index] = words
            replies.times_s[number, index] = (began, time.time())
            began = time.time()
            index += 1
    except Exception:
        if not ends_when_cut:
            raise
        replies.num_cut += 1
