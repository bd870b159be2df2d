"""Plans the choices of a reply from a prompt and sampling fields, within the limits of the served model."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from threading import local
from zlib import crc32

from blis_sim.engine.request import Request, UniqueBlocks
from mockserve.engines import StructuredOutputBackend
from mockserve.executor.executor import OffloadExecutor, run_to_completion
from mockserve.executor.worker import Job
from mockserve.generation.answer import Answer, Prose, as_beam
from mockserve.generation.chat_templates import ChatRenderer
from mockserve.generation.composer import MOST_TOKENS_AT_ONCE, Composer, next_job
from mockserve.generation.structured_outputs.kinds import DeferredForm
from mockserve.generation.tokenizer import PromptTokenCache, Tokenizer
from mockserve.generation.writing import PLAIN, OutputSpec, ScriptResult, Steps, constraint_check_jobs
from mockserve.kv_events.naming import GLOBAL_SCOPE, Lora, NameBlocks, Scope, token_digest
from mockserve.protocol.errors import ApiError, EmptyPromptError, bad_value, mark_late
from mockserve.protocol.sampling import (
    NO_DEFAULTS,
    GenerationDefaults,
    SamplingParams,
    check_engine_message,
    check_sampling,
)
from mockserve.reply.reply import (
    CHOICE_OVERHEAD_TOKENS,
    MOST_PLANNED_TOKENS,
    PROMPT_TOKENS_PER_ANSWER_TOKEN,
    LazyChoices,
    PlannedChoice,
    PlannedChoices,
    PlannedPrompt,
)

CHECKS_PER_TURN = 16
"""Functions whose schemas are checked before the event loop gets control back."""

TYPICAL_MAX_TOKENS = 500
"""Upper estimate for the length of an answer without a requested length."""


def draft_request(request_id: str, adapter: Lora | None = None, priority: int = 0) -> Request:
    """Return the request to the engine as far as it is known before its prompt and its answer.

    A smaller `priority` is more urgent under priority scheduling.
    """
    name = "" if adapter is None else adapter.name
    return Request(request_id, 0, 0, UniqueBlocks(request_id), priority=priority, adapter=name)


def scope_of(cache_salt: str | None, adapter: Lora | None = None) -> Scope:
    """Return the scope of a prompt's blocks: prompts share cached blocks only with equal salt and adapter."""
    return GLOBAL_SCOPE if adapter is None and not cache_salt else Scope(cache_salt or "", adapter)


class _ThreadRandom(local):
    """A thread-local random generator: reseeding one object costs half as much as creating a new one."""

    def __init__(self) -> None:
        self.random = Random()


class Planner:
    """Turns prompts into choices, under one model's limits.

    Equal server seed, prompt and request seed give equal answers. Without a request seed, every request with a
    temperature above 0 gets a different answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_model_len: int,
        name_blocks: NameBlocks,
        seed: int = 0,
        composer: Composer | None = None,
        conversations: ChatRenderer | None = None,
        numbers: Iterator[int] | None = None,
        executor: OffloadExecutor | None = None,
        structured_outputs: StructuredOutputBackend | None = None,
        defaults: GenerationDefaults = NO_DEFAULTS,
        vocabulary_size: int = 0,
    ) -> None:
        """`numbers` make request ids unique; planners that share an engine must have disjoint numbers.

        `vocabulary_size` comes from the model's configuration and may exceed the tokenizer's number of tokens; 0 uses
        the tokenizer's.
        """
        self.tokenizer = tokenizer
        self.conversations = conversations or ChatRenderer()
        self.composer = composer or Composer(tokenizer=tokenizer, prose=Prose(tokenizer))
        self._remembered = PromptTokenCache(tokenizer)
        self.max_model_len = max_model_len
        self.defaults = defaults
        self.vocabulary_size = vocabulary_size or tokenizer.vocabulary_size
        self._name_blocks = name_blocks
        self._seed = seed
        self._thread_random = _ThreadRandom()
        self._numbers = itertools.count() if numbers is None else numbers
        self.executor = executor or OffloadExecutor()
        self._structured_outputs = structured_outputs or StructuredOutputBackend()

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of a prompt. Raises ApiError if it is longer than the context."""
        self.check_characters(text)
        ids = self._remembered.ids(text, add_special_tokens)
        if len(ids) > self.max_model_len:
            raise _too_long(self.max_model_len, self.max_model_len + 1, "at least ")  # vLLM stops counting there
        return ids

    def check_characters(self, text: str) -> None:
        """Raise ApiError for a text with more characters than a full context of tokens can have."""
        limit = self.max_model_len
        most_chars = limit * self.tokenizer.longest_piece_chars
        if len(text) > most_chars:
            message = (
                f"This model's maximum context length is {limit} tokens. However, your prompt contains {len(text)} "
                f"characters (more than {most_chars} characters, which is the upper bound for {limit} input tokens). "
                "Please reduce the length of the input prompt."
            )
            raise bad_value(message, "input_text", len(text))

    def check_length(self, num_tokens: int) -> None:
        """Raise ApiError for a prompt with more token ids than the context."""
        if num_tokens > self.max_model_len:
            raise _too_long(self.max_model_len, num_tokens, "")

    def check_ids(self, token_ids: Sequence[int]) -> None:
        """Raise ApiError for a prompt of token ids that is too long or has an unknown id."""
        self.check_length(len(token_ids))
        largest = max(token_ids)
        if largest >= max(self.vocabulary_size, self.tokenizer.vocabulary_size):
            raise mark_late(ApiError(f"Token id {largest} is out of vocabulary"))

    def budget(self, sampling: SamplingParams, num_prompt_tokens: int, has_ceiling: bool = True) -> int:
        """Return the maximum number of tokens of an answer. Raises ApiError for sampling fields out of bounds.

        Without `has_ceiling` a limit of output tokens that the request sets is not lowered to the server's.
        """
        budget = self.defaults.output_budget(sampling, num_prompt_tokens, self.max_model_len, has_ceiling)
        check_sampling(sampling, budget)
        return budget

    async def plan(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        draft: Request,
        scope: Scope = GLOBAL_SCOPE,
        form: OutputSpec = PLAIN,
        has_ceiling: bool = True,
        num_prompts: int = 1,
    ) -> PlannedChoices:
        """Return the `sampling.n` choices for one of `num_prompts` prompts that are planned together.

        `draft` is their request to the engine, without what depends on the prompt and the answer.

        Choices that would not all fit into memory are planned when they are requested, on a thread for long work.

        Raises ApiError for sampling fields out of bounds, and for structured outputs that no answer satisfies.
        """
        budget = self.budget(sampling, len(prompt), has_ceiling)
        backend = None if form.constraint is None else form.constraint.backend
        if form.tools is not None or form.constraint is not None:
            backend = await self._checked_backend(form, backend)
        check_engine_message(draft.id, draft.priority or 0, sampling)
        if backend is not None:
            self._structured_outputs.claim(backend)
        numbers = [next(self._numbers) for _ in range(sampling.n)]
        make = partial(self._planned_choice, prompt, sampling, budget, draft, scope, form, token_digest(prompt))
        if num_prompts * sampling.n * self._planned_tokens(sampling, len(prompt), budget) > MOST_PLANNED_TOKENS:
            return LazyChoices(lambda index, number: run_to_completion(make(index, number)), numbers)
        return [await make(index, number) for index, number in enumerate(numbers)]

    def _planned_tokens(self, sampling: SamplingParams, num_prompt_tokens: int, budget: int) -> int:
        """The size of one choice in memory, in tokens of an answer."""
        num_tokens = likely_tokens(sampling, budget) + num_prompt_tokens // PROMPT_TOKENS_PER_ANSWER_TOKEN
        return CHOICE_OVERHEAD_TOKENS + num_tokens

    async def _planned_choice(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        budget: int,
        draft: Request,
        scope: Scope,
        form: OutputSpec,
        digest: int,
        index: int,
        number: int,
    ) -> PlannedChoice:
        """Return one choice. Equal arguments give equal choices."""
        repeatable = sampling.is_greedy or sampling.seed is not None
        seed = f"{self._seed} {digest} {sampling.seed} {index} {'' if repeatable else number}"
        is_long = self.composer.is_long(sampling, budget, form, prompt)
        if is_long or form.tools is not None or isinstance(form.constraint, DeferredForm):
            random = Random(seed)  # an answer made in several turns gets a generator of its own
        else:
            random = self._thread_random.random
            random.seed(seed)
        steps = self.composer.compose_in_steps(random, sampling, budget, form, prompt)
        answer = await self._compose_answer(steps, is_long)
        if sampling.use_beam_search:
            answer = as_beam(answer, self.tokenizer.eos_token_id, sampling.include_stop_str_in_output)
        engine_id = f"{draft.id}-{number}"
        # Blocks cover prompt and answer: a next turn that repeats both finds both in the cache.
        token_ids = [*prompt, *answer.token_ids]
        if len(answer.texts) > MOST_TOKENS_AT_ONCE:
            blocks = await self.executor.in_thread(self._name_blocks, engine_id, token_ids, scope)
        else:
            blocks = self._name_blocks(engine_id, token_ids, scope)
        request = draft._replace(
            id=engine_id,
            input_tokens=len(prompt),
            output_tokens=len(answer.texts),
            blocks=blocks,
            max_output_tokens=budget,
            reads_prefix_cache=sampling.num_prompt_logprobs is None,
        )
        return PlannedChoice(request, answer=answer, seed=crc32(seed.encode("utf-8", "surrogatepass")))

    async def _checked_backend(self, form: OutputSpec, backend: str | None) -> str | None:
        """Return the structured-output backend for the answer. Raises ApiError if no backend supports it."""
        for number, check in enumerate(constraint_check_jobs(form), start=1):
            backend = await self.executor.done(check)
            if number % CHECKS_PER_TURN == 0:
                await asyncio.sleep(0)
        return backend

    async def _compose_answer(self, steps: Steps, is_long: bool) -> Answer:
        """Return the answer that `steps` end with. After one job that is not small, no later job counts as small."""
        written: ScriptResult | None = None
        while True:
            found = await self.executor.in_thread(next_job, steps, written) if is_long else next_job(steps, written)
            if not isinstance(found, Job):
                return found
            is_long = is_long or not found.is_small
            written = await self.executor.done(found)

    def recorded_request(
        self, prompt: Sequence[int], draft: Request, num_output_tokens: int, reply: Sequence[int] = ()
    ) -> Request:
        """Return the engine request for a recorded reply; `reply` has the known tokens of the reply."""
        whole = self.prefill_request([*prompt, *reply], draft, GLOBAL_SCOPE)
        return whole._replace(
            input_tokens=len(prompt), output_tokens=num_output_tokens, max_output_tokens=num_output_tokens
        )

    def prefill_request(self, prompt: Sequence[int], draft: Request, scope: Scope) -> Request:
        """Return a request that ends with the token of its prefill."""
        check_engine_message(draft.id, draft.priority or 0)
        engine_id = f"{draft.id}-{next(self._numbers)}"
        blocks = self._name_blocks(engine_id, prompt, scope)
        return draft._replace(
            id=engine_id, input_tokens=len(prompt), output_tokens=1, blocks=blocks, max_output_tokens=1
        )


def likely_tokens(sampling: SamplingParams, budget: int) -> int:
    """Return an upper estimate of the number of tokens of a choice."""
    can_end = not sampling.ignore_eos and sampling.allowed_token_ids is None
    return min(budget, max(sampling.min_tokens, TYPICAL_MAX_TOKENS)) if can_end else budget


def _too_long(limit: int, num_tokens: int, at_least: str) -> ApiError:
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {at_least}{num_tokens} "
        "input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt."
    )
    return bad_value(message, "input_tokens", num_tokens)


# Prompts as token ids.


def text_ids(planner: Planner, text: str, add_special_tokens: bool, sampling: SamplingParams) -> list[int]:
    """Return the ids of a text. Raises ApiError for a text that is too long and must not be cut, or is not valid
    Unicode."""
    check_unicode(text)
    limit = _truncated_length(sampling, planner.max_model_len)
    if limit is None:
        return _not_empty(planner.encode(text, add_special_tokens))
    ids = planner.tokenizer.encode(text, add_special_tokens)
    if sampling.truncation_side is not None:
        return _not_empty(_kept_by_sampling(ids, limit, sampling))
    before, after = _marks_around(planner, text, ids) if add_special_tokens else (0, 0)
    inner = ids[before : len(ids) - after]
    room = max(0, limit - before - after)
    kept = inner[len(inner) - room :] if room < len(inner) else inner
    return _not_empty([*ids[:before], *kept, *ids[len(ids) - after :]][:limit])


def given_ids(planner: Planner, token_ids: Sequence[int], sampling: SamplingParams) -> list[int]:
    """Return ids sent by the client. Raises ApiError for too many ids that must not be cut."""
    limit = _truncated_length(sampling, planner.max_model_len)
    ids = _not_empty(list(token_ids) if limit is None else _kept_by_sampling(token_ids, limit, sampling))
    planner.check_length(len(ids))
    return ids


def check_unicode(text: str) -> None:
    """Raise ApiError for half a surrogate pair, which JSON can express but no token can represent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        message = "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
        raise ApiError(message) from None


def check_truncation(limit: int | None, max_model_len: int) -> None:
    """Raise ApiError for a prompt that is to be cut to more tokens than a context has."""
    if limit is not None and limit > max_model_len:
        message = (
            f"truncate_prompt_tokens={limit} cannot be greater than max_model_len = {max_model_len}. "
            "Please request a smaller truncation size."
        )
        raise bad_value(message, "truncate_prompt_tokens", limit)


def _truncated_length(sampling: SamplingParams, max_model_len: int) -> int | None:
    """Return the number of tokens that a prompt is cut to. Raises ApiError for more than a context."""
    limit = sampling.truncate_prompt_tokens
    if limit is None:
        return None
    check_truncation(limit, max_model_len)
    return max_model_len - 1 if limit < 0 else limit


def _kept_by_sampling(ids: Sequence[int], limit: int, sampling: SamplingParams) -> list[int]:
    if sampling.truncation_side == "right":
        return list(ids[:limit])
    return list(ids[max(0, len(ids) - limit) :])


def _marks_around(planner: Planner, text: str, framed: Sequence[int]) -> tuple[int, int]:
    """Return the number of special tokens before and after the text; they are kept when the text is cut."""
    num_plain = planner.tokenizer.count(text)
    num_marks = len(framed) - num_plain
    special = planner.tokenizer.special_ids
    before = next((index for index, each in enumerate(framed[:num_marks]) if each not in special), max(0, num_marks))
    if before == num_marks and num_marks > 1:
        before = num_marks // 2
    return before, num_marks - before


def _not_empty(ids: list[int]) -> list[int]:
    if not ids:
        raise mark_late(EmptyPromptError("The decoder prompt cannot be empty"))
    return ids


# Long replies.

CHOICES_AT_ONCE = 256
LONG_US = 10_000
"""Maximum time of the event loop for one reply."""

TOKEN_US = 0.2
SCORE_US = 10.0
CANDIDATE_US = 4.0
"""Time per token of a reply, per log-probability, and per candidate."""

FULL_VOCABULARY = 100_000


def is_long_reply(sampling: SamplingParams, prompts: Sequence[PlannedPrompt], repeats_prompts: bool) -> bool:
    """Whether writing a reply would block the event loop for long.

    `repeats_prompts`: each choice has the text or the ids of its prompt.
    """
    answer_us = TOKEN_US + (0 if sampling.num_logprobs is None else _scoring_us(sampling.num_logprobs))
    prompt_us = TOKEN_US * repeats_prompts
    if sampling.num_prompt_logprobs is not None:
        prompt_us += _scoring_us(sampling.num_prompt_logprobs)
    num_choices, writing_us = 0, 0.0
    for prompt in prompts:
        if isinstance(prompt.choices, LazyChoices):
            return True
        num_choices += len(prompt.choices)
        writing_us += len(prompt.choices) * len(prompt.token_ids) * prompt_us
        for each in prompt.choices:
            writing_us += len(each.answer.texts) * answer_us
    return num_choices > CHOICES_AT_ONCE or writing_us > LONG_US


def _scoring_us(num_top: int) -> float:
    return SCORE_US + (FULL_VOCABULARY if num_top == -1 else num_top) * CANDIDATE_US
