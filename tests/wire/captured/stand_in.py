"""Writes the words of the model of the captured servers: they ran without one, and chose their tokens by a rule."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from mockserve.generation.answer import Answer, Prose, RenderOptions, apply_stops, render_tokens
from mockserve.generation.tokenizer import Split, Tokenizer
from mockserve.generation.writing import PLAIN, OutputSpec, Steps
from mockserve.protocol.bodies import Ending
from mockserve.protocol.sampling import SamplingParams
from tests.wire.captured.parsed import START, segments

WORDS = (2023, 2003, 1037, 3231, 1997, 1996, 2944, 6434, 1010, 2029, 4247, 2616, 1012)
"""Token ids, said over and over."""


class StandIn:
    """Takes the place of a server's composer. `asked` are the `vllm_xargs` of the request that comes next."""

    uses_prompt_text = False

    def __init__(self, tokenizer: Tokenizer, has_reasoning: bool = False) -> None:
        self.prose = Prose(tokenizer)
        self.asked: dict[str, Any] = {}
        self._tokenizer = tokenizer
        self._has_reasoning = has_reasoning

    def is_long(self, sampling: SamplingParams, budget: int, form: OutputSpec, prompt: Sequence[int]) -> bool:
        """Answers are short."""
        return False

    def compose_in_steps(
        self,
        random: Random,
        sampling: SamplingParams,
        budget: int,
        form: OutputSpec = PLAIN,
        prompt: Sequence[int] = (),
    ) -> Steps:
        """The answer, without a job: it follows from the rule."""
        yield from ()
        return self.compose(random, sampling, budget, form, prompt)

    def compose(
        self,
        random: Random,
        sampling: SamplingParams,
        budget: int,
        form: OutputSpec = PLAIN,
        prompt: Sequence[int] = (),
    ) -> Answer:
        """An answer of the rule's tokens, ended as requests end theirs."""
        ends_by_itself = self.asked.get("fx_eos_at") is not None and not sampling.ignore_eos
        num_words = min(budget, int(self.asked["fx_eos_at"])) if ends_by_itself else budget
        script = self.asked.get("fx_tokens") or WORDS
        ids = [int(script[index % len(script)]) for index in range(num_words)]
        if form.is_parsed:
            return self._parsed(ids, sampling, budget, form)
        pieces = list(self._pieces(ids))
        if num_words == budget:
            return apply_stops(Split(ids, pieces), Ending("length"), sampling)
        said = Split([*ids, self._tokenizer.eos_token_id], [*pieces, ""])
        return apply_stops(said, Ending("stop"), sampling)

    def _parsed(self, ids: list[int], sampling: SamplingParams, budget: int, form: OutputSpec) -> Answer:
        """The answer as a server with parsers reads it."""
        text = self._tokenizer.decode(ids)
        script = segments(text, self._has_reasoning, has_calls=form.tools is not None)
        names_function = form.tools is not None and form.tools.is_named
        answer = render_tokens(script, RenderOptions(self._tokenizer, sampling, budget, names_function))
        # vLLM counts what stands between the marks, and without the first there is nothing between them.
        return answer if text.startswith(START) else answer._replace(num_reasoning_tokens=0)

    def _pieces(self, ids: list[int]) -> Iterator[str]:
        """Return the text that each token adds, which goes on where the prompt ended."""
        shown = self._tokenizer.decode(WORDS[:1])
        for count in range(1, len(ids) + 1):
            text = self._tokenizer.decode([*WORDS[:1], *ids[:count]])
            yield text[len(shown) :]
            shown = text
