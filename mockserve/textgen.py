"""What the model that is not there says: how long an answer is, and which kind of text it is.

The whole answer is known when a request arrives, so its length, a stop string and the text of every token are too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from mockserve.content.answer import Answer, Kind
from mockserve.content.constraint import GENEROSITIES, Constraint, constrained_text
from mockserve.content.dataset import Dataset
from mockserve.content.form import PLAIN, AnswerForm
from mockserve.content.prose import Prose
from mockserve.content.script import Performance, Segment, perform, sorted_by_kind
from mockserve.content.split import Split
from mockserve.content.stops import stopped
from mockserve.protocol.bodies import Ending
from mockserve.protocol.sampling import Sampling
from mockserve.tokenizer import Tokenizer

MEDIAN_OUTPUT_TOKENS = 200
OUTPUT_TOKENS_SIGMA = 0.7
"""Without a length asked for, answers are log-normal: half are between 125 and 320 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composer:
    """One server's way of answering. `fixed_tokens` replaces the drawn length of answers that end by themselves."""

    tokenizer: Tokenizer
    prose: Prose
    fixed_tokens: int | None = None
    echoes: bool = False
    dataset: Dataset | None = None

    @property
    def quotes(self) -> bool:
        """Whether answers may depend on the text of the prompt."""
        return self.echoes or self.dataset is not None

    def compose(
        self, random: Random, sampling: Sampling, budget: int, form: AnswerForm = PLAIN, prompt: Sequence[int] = ()
    ) -> Answer:
        """An answer of at most `budget` tokens, at least 1.

        One that ends by itself spends its last token on the end marker, which has no text, as vLLM counts it.
        """
        how = Performance(self.tokenizer, sampling, budget, form.stop_token_ids)
        if form.constraint is not None:
            return perform([Segment(Kind.CONTENT, self._fitting(form.constraint, random, budget))], how)
        known = self._known_text(form, prompt)
        if known is not None:
            return perform([Segment(Kind.CONTENT, self._filled(known, how))], how)
        answer = stopped(*self._prose(random, sampling, budget), sampling, form.stop_token_ids)
        if not form.is_parsed:
            return answer
        script = [Segment(Kind.CONTENT, "".join(answer.texts))]
        return replace(answer, deltas=sorted_by_kind(answer.texts, script))

    def _prose(self, random: Random, sampling: Sampling, budget: int) -> tuple[Split, Ending]:
        num_tokens = self.fixed_tokens or natural_length(random)
        num_tokens = max(num_tokens, sampling.min_tokens + 1)
        if sampling.ignore_eos or num_tokens > budget:
            return self.prose.write(random, budget), Ending("length")
        said = self.prose.write(random, num_tokens - 1)
        return Split([*said.ids, self.tokenizer.eos_token_id], [*said.pieces, ""]), Ending("stop")

    def _fitting(self, constraint: Constraint, random: Random, budget: int) -> str:
        """A text of the form demanded, with the end marker within the budget if the least one is."""
        text = ""
        for generosity in GENEROSITIES:
            text = constrained_text(constraint, random, generosity)
            if self.tokenizer.count(text) < budget:
                break
        return text

    def _known_text(self, form: AnswerForm, prompt: Sequence[int]) -> str | None:
        """The text of an echo or of the data set; None when there is none and the answer must be made up."""
        if not self.quotes:
            return None
        asked = form.asked or (self.tokenizer.decode(prompt),)
        if self.echoes:
            return asked[0]
        return None if self.dataset is None else self.dataset.answer(asked, prompt)

    def _filled(self, text: str, how: Performance) -> str:
        """`text`, said again and again if more must be said than it has."""
        least = how.budget if how.sampling.ignore_eos else how.sampling.min_tokens
        num_tokens = self.tokenizer.count(text)
        if not num_tokens or num_tokens >= least:
            return text
        return " ".join([text] * math.ceil(least / num_tokens))


def natural_length(random: Random) -> int:
    """Tokens of an answer that nobody limits, the end marker included."""
    return max(2, round(random.lognormvariate(math.log(MEDIAN_OUTPUT_TOKENS), OUTPUT_TOKENS_SIGMA)))
