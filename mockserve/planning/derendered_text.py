"""Completions made of token ids that came from elsewhere, whole or as what a chunk adds."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mockserve.planning.derendering import GivenChoice, continued_text, cut_text, readable_ids, readable_text
from mockserve.protocol.asked.sampling import Sampling
from mockserve.protocol.bodies import Ending
from mockserve.protocol.completions.text import parse_completion
from mockserve.protocol.logprob_shapes import completion_logprobs
from mockserve.serving.service import Service


class TextReader(NamedTuple):
    """Reads the choices of one completion request."""

    service: Service
    sampling: Sampling
    shows_ids: bool
    prompt: Sequence[int]

    def text(self, choice: GivenChoice) -> tuple[str, Ending]:
        """The text of a whole choice, and why it ended."""
        ids, reason = readable_ids(choice, self.sampling, self.service.planner.tokenizer.eos_token_id)
        text, reason = cut_text(self._decoded(ids), choice, self.sampling, reason)
        return text, Ending("stop" if choice.ending is None else choice.ending.finish_reason, reason)

    def delta(self, choice: GivenChoice, earlier: Sequence[int]) -> str:
        """What the tokens of a chunk add to those that came before."""
        ids, _ = readable_ids(choice, self.sampling, self.service.planner.tokenizer.eos_token_id)
        tokenizer, hides_special = self.service.planner.tokenizer, self.sampling.skip_special_tokens
        before = readable_text(tokenizer, self.prompt, earlier, hides_special)
        return readable_text(tokenizer, self.prompt, [*earlier, *ids], hides_special)[len(before) :]

    def logprobs(self, choice: GivenChoice, text_offset: int) -> dict[str, Any] | None:
        """The log-probabilities of a choice whose text begins there."""
        if choice.scored is None:
            return None
        wanted = self.sampling.num_logprobs
        found = completion_logprobs(choice.scored, None if wanted is None else wanted + 1, False, text_offset)
        tops = zip(choice.scored, found["top_logprobs"], strict=True)
        return {**found, "top_logprobs": [shown if each.shown else None for each, shown in tops]}

    def token_ids(self, choice: GivenChoice) -> list[int] | None:
        """The ids of a choice, if they are to be shown."""
        return list(choice.token_ids) if self.shows_ids else None

    def _decoded(self, ids: Sequence[int]) -> str:
        return continued_text(self.service.planner.tokenizer, self.prompt, ids, self.sampling.skip_special_tokens)


def text_reader(service: Service, body: Mapping[str, Any], prompt: Sequence[int]) -> TextReader:
    """What reads the choices of a checked body. Raises ApiError for a completion request that is refused."""
    asked = parse_completion(dict(body.get("completion_request") or {"prompt": " "}))
    return TextReader(service, asked.sampling, asked.wanted.token_ids, prompt)
