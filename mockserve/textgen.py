"""What the model that is not there says: how long an answer is, and which kind of text it is.

The whole answer is known when a request arrives, so its length, a stop string and the text of every token are too.
"""

import math
from random import Random

from mockserve.content.answer import Answer
from mockserve.content.prose import Prose
from mockserve.content.split import Split
from mockserve.content.stops import stopped
from mockserve.protocol.bodies import Ending
from mockserve.protocol.sampling import Sampling

MEDIAN_OUTPUT_TOKENS = 200
OUTPUT_TOKENS_SIGMA = 0.7
"""Without a length asked for, answers are log-normal: half are between 125 and 320 tokens."""


def compose(
    random: Random, prose: Prose, eos_token_id: int, sampling: Sampling, budget: int, fixed_tokens: int | None = None
) -> Answer:
    """An answer of at most `budget` tokens, at least 1. `fixed_tokens` replaces the drawn length.

    An answer that ends by itself spends its last token on the end marker, which has no text, as vLLM counts it.
    """
    num_tokens = fixed_tokens or natural_length(random)
    num_tokens = max(num_tokens, sampling.min_tokens + 1)
    if sampling.ignore_eos or num_tokens > budget:
        return stopped(prose.write(random, budget), Ending("length"), sampling)
    said = prose.write(random, num_tokens - 1)
    return stopped(Split([*said.ids, eos_token_id], [*said.pieces, ""]), Ending("stop"), sampling)


def natural_length(random: Random) -> int:
    """Tokens of an answer that nobody limits, the end marker included."""
    return max(2, round(random.lognormvariate(math.log(MEDIAN_OUTPUT_TOKENS), OUTPUT_TOKENS_SIGMA)))
