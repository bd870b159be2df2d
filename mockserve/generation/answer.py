"""One answer: plausible prose, its parts in order, and by token its text, log-probabilities and early end."""

import math
import sqlite3
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b, sha256
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from blis_sim.options import OptionError
from blis_sim.options.files import check_open_file
from blis_sim.options.option import load_json
from mockserve.generation.tokenizer import WORDS, Split, Tokenizer, whole_characters
from mockserve.protocol.bodies import Ending
from mockserve.protocol.errors import ApiError
from mockserve.protocol.sampling import RepetitionDetectionParams, SamplingParams

# Texts of answers: plausible prose of a given number of tokens, or texts of a file, looked up by prompt.

MIN_WORDS = 16
"""Minimum number of single-token words of an English vocabulary; any other vocabulary uses its own pieces as words."""

NUM_SENTENCES = 4096
"""Number of different sentences: enough for texts to differ, few enough to write each once."""

MOST_PROBED_TOKENS = 4000
MOST_REPAIRS = 40

FEW_TEXTS = 16
"""Maximum number of texts for a linear search; a longer list is looked up by every part of a word."""


@dataclass(frozen=True, slots=True)
class UnitVocabulary:
    """Pieces of one token each. `words` carry the space before them; `openers` may begin a text or a sentence.

    `weights` are cumulative, one for each word.
    """

    words: Sequence[str]
    openers: Sequence[str]
    weights: Sequence[float]
    comma: str = ""
    full_stop: str = ""


class Prose:
    """Writes prose in the vocabulary of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._units = _units_of(tokenizer)
        self._sentences: dict[int, list[str]] = {}
        """Sentences written so far, by number."""
        self.token_ids: Sequence[int] = sorted({each for word in self._units.words for each in tokenizer.encode(word)})
        """Ids that may occur in a text."""

    def write(self, random: Random, num_tokens: int, continues_word: bool = False) -> Split:
        """Write a text of exactly `num_tokens` tokens, in the tokenizer's pieces.

        With `continues_word`, the text begins with a space, as after a word. The prompt and the text joined give equal
        tokens. If no text of the vocabulary has as many tokens, the nearest beginning of one is returned.
        """
        if num_tokens < 1:
            return Split([], [])
        written = "".join(self._draft(random, num_tokens))
        if continues_word:
            written = " " + written
        split = self._tokenizer.split(written)
        for _ in range(MOST_REPAIRS):
            if split.num_tokens == num_tokens:
                return split
            if split.num_tokens > num_tokens:
                written = "".join(split.pieces[:num_tokens])
            else:
                written += "".join(self._draft(random, num_tokens - split.num_tokens + 1)[1:])
            again = self._tokenizer.split(written)
            if again.num_tokens < num_tokens <= split.num_tokens:
                return self._with_exact_length(written, num_tokens) or split.first(num_tokens)
            split = again
        return split.first(num_tokens)

    def without(self, bad_words: Sequence[str]) -> "Prose":
        """Return this prose without the words that contain one of these; with all of them if none is left."""
        units = self._units
        bad = {each.strip() for each in bad_words}
        kept = [index for index, word in enumerate(units.words) if not _has_any(word, bad)]
        if not kept:
            return self
        found = copy(self)
        found._sentences = {}
        found._units = UnitVocabulary(
            [units.words[index] for index in kept],
            [each for each in units.openers if not _has_any(each, bad)],
            list(accumulate(1 / (rank + 8) for rank in range(len(kept)))),
            "" if units.comma in bad else units.comma,
            "" if units.full_stop in bad else units.full_stop,
        )
        return found

    def _with_exact_length(self, text: str, num_tokens: int) -> Split | None:
        """Return `text` shortened and completed by one word to have exactly `num_tokens` tokens; None if impossible."""
        for dropped in range(4):
            kept = "".join(self._tokenizer.split(text).pieces[: num_tokens - 1 - dropped])
            for word in (*self._units.words[:MIN_WORDS], *self._units.openers[:MIN_WORDS]):
                split = self._tokenizer.split(kept + word * (dropped + 1))
                if split.num_tokens == num_tokens:
                    return split
        return None

    def _draft(self, random: Random, count: int) -> list[str]:
        """The first `count` units of some sentences."""
        units, known, draw = self._units, self._sentences, random.random
        pieces: list[str] = []
        while len(pieces) < count:
            number = int(draw() * NUM_SENTENCES)
            pieces += known.get(number) or self._sentence(number)
        if units.openers and not units.full_stop:  # only the first token of a sentence is recognizable
            pieces[0] = random.choice(units.openers)
        if pieces[0].startswith(" "):
            pieces[0] = pieces[0][1:]
        return pieces[:count]

    def _sentence(self, number: int) -> list[str]:
        """Return sentence `number` of the fixed set: 5 to 13 words, with a comma if it is long."""
        units, random = self._units, Random(number)
        length = random.randrange(5, 14)
        sentence = random.choices(units.words, cum_weights=units.weights, k=length)
        if units.openers and units.full_stop:
            sentence[0] = random.choice(units.openers)
        if length > 9 and units.comma:
            sentence.insert(length // 2, units.comma)
        if units.full_stop:
            sentence.append(units.full_stop)
        self._sentences[number] = sentence
        return sentence


def _has_any(word: str, texts: set[str]) -> bool:
    """Whether `word` contains one of `texts`, at a cost independent of their number."""
    if len(texts) <= FEW_TEXTS:
        return any(each in word for each in texts)
    parts = (word[start:end] for start in range(len(word) + 1) for end in range(start, len(word) + 1))
    return not texts.isdisjoint(parts)


def tokens_of(allowed: Sequence[int], tokenizer: Tokenizer, random: Random, num_tokens: int) -> Split:
    """Return `num_tokens` of the allowed tokens in random order. Marks and parts of characters have no text."""
    ids = random.choices([each for each in allowed if each != tokenizer.eos_token_id] or allowed, k=num_tokens)
    texts = {each: tokenizer.decode([each], skip_special_tokens=True) for each in set(ids)}
    return Split(ids, ["" if "\ufffd" in texts[each] else texts[each] for each in ids])


def _units_of(tokenizer: Tokenizer) -> UnitVocabulary:
    """Return English words if the vocabulary has them, else pieces of the vocabulary."""
    words = [word for word in (" " + each for each in WORDS) if _is_one_token(tokenizer, word)]
    if len(words) < MIN_WORDS:
        return _units_of_vocabulary(tokenizer)
    capitalized = [" " + word[1:].capitalize() for word in words]
    openers = [each for each in capitalized if _is_one_token(tokenizer, each) and _can_open_text(tokenizer, each)]
    if not openers:
        openers = [word for word in words if _can_open_text(tokenizer, word)]
    return UnitVocabulary(
        words,
        openers,
        list(accumulate(1 / (rank + 8) for rank in range(len(words)))),
        "," if _is_one_token(tokenizer, ",") else "",
        "." if _is_one_token(tokenizer, ".") else "",
    )


def _is_one_token(tokenizer: Tokenizer, unit: str) -> bool:
    """Whether `unit` is one token between words, and decodes to itself."""
    text = f" of{unit} of{unit}"
    split = tokenizer.split(text)
    if list(split.pieces) != [" of", unit, " of", unit]:
        return False
    return tokenizer.decode(split.ids).strip() == text.strip()


def _can_open_text(tokenizer: Tokenizer, unit: str) -> bool:
    """Whether `unit`, without the space before it, is one token at the beginning of a text."""
    return list(tokenizer.split(unit.strip() + " of").pieces) == [unit.strip(), " of"]


def _units_of_vocabulary(tokenizer: Tokenizer) -> UnitVocabulary:
    """Return pieces of the vocabulary that remain single tokens beside one another, letters first."""
    step = max(1, tokenizer.vocabulary_size // MOST_PROBED_TOKENS)
    found = []
    for token_id in range(0, tokenizer.vocabulary_size, step):
        text = "" if token_id in tokenizer.special_ids else tokenizer.decode([token_id])
        for unit in (text, " " + text):
            if text.strip() and "\ufffd" not in text and list(tokenizer.split(unit * 3).ids) == [token_id] * 3:
                found.append(unit)
                break
    found.sort(key=lambda unit: not unit.strip().isalpha())
    letters = [unit for unit in found if unit.strip().isalpha()] or found or list("abcdefgh")
    return UnitVocabulary(letters, [], list(accumulate(1 for _ in letters)))


SQLITE_HEADER = b"SQLite format 3\x00"
ANSWER_FIELDS = ("answer", "response", "completion", "output")


class Dataset(Protocol):
    """Answers by prompt."""

    def answer(self, prompt_texts: Sequence[str], prompt: Sequence[int]) -> str | None:
        """Return the answer to the first of the texts `prompt_texts` with one, else to the token ids of the prompt."""
        ...


class LinesDataset:
    """A data set with all answers in memory."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers

    def answer(self, prompt_texts: Sequence[str], prompt: Sequence[int]) -> str | None:
        return next((self._answers[each] for each in prompt_texts if each in self._answers), None)


class TableDataset:
    """A SQLite table, read as needed: `prompt` and `answer`, or `prompt_hash` and `gen_tokens`.

    The second form is llm-d-inference-sim's: a digest of the prompt and a JSON list of token texts. The digest is
    SHA-256 of the text, or of token ids as little-endian 32-bit integers.
    """

    def __init__(self, file: Path, table: str) -> None:
        self._connection = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        quoted = '"' + table.replace('"', '""') + '"'
        columns = {row[1] for row in self._connection.execute(f"PRAGMA table_info({quoted})")}
        self._by_hash = "prompt_hash" in columns
        key, value = ("prompt_hash", "gen_tokens") if self._by_hash else ("prompt", "answer")
        if not {key, value} <= columns:
            raise OptionError(
                f"--dataset-path: table {table!r} of {file} must have the columns prompt and answer, or prompt_hash "
                f"and gen_tokens; it has {', '.join(sorted(columns)) or 'none, or there is no such table'}"
            )
        self._query = f"SELECT {value} FROM {quoted} WHERE {key} = ? LIMIT 1"

    def answer(self, prompt_texts: Sequence[str], prompt: Sequence[int]) -> str | None:
        for key in self._keys(prompt_texts, prompt):
            row = self._connection.execute(self._query, (key,)).fetchone()
            if row is not None:
                return _as_json_list(row[0]) if self._by_hash else str(row[0])
        return None

    def _keys(self, prompt_texts: Sequence[str], prompt: Sequence[int]) -> Iterable[str | bytes]:
        if not self._by_hash:
            return prompt_texts
        packed = array("I", prompt).tobytes()
        return [sha256(each).digest() for each in (*(text.encode() for text in prompt_texts), packed)]


def open_dataset(path: str, table: str) -> Dataset:
    """Open the data set in a SQLite or JSON Lines file. Raises OptionError for any other file."""
    file = Path(path)
    try:
        with file.open("rb") as stream:
            check_open_file(stream.fileno())
            is_database = stream.read(len(SQLITE_HEADER)) == SQLITE_HEADER
        return TableDataset(file, table) if is_database else LinesDataset(_read_lines(file))
    except (OSError, UnicodeDecodeError, sqlite3.Error) as error:
        raise OptionError(f"--dataset-path: cannot read {path}: {error}") from error


def _read_lines(file: Path) -> dict[str, str]:
    """One JSON object per line, with `prompt` and `answer` (or `response`, `completion`, `output`)."""
    answers: dict[str, str] = {}
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                prompt, answer = _read_line(line, f"--dataset-path: {file} line {number}")
                answers.setdefault(prompt, answer)
    return answers


def _read_line(line: str, where: str) -> tuple[str, str]:
    try:
        row: Any = load_json(line)
    except ValueError as error:
        raise OptionError(f"{where} must be a JSON object: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
        raise OptionError(f"{where} must have a prompt as text, got {line.strip()[:80]!r}")
    answer = next((row[name] for name in ANSWER_FIELDS if isinstance(row.get(name), str)), None)
    if answer is None:
        raise OptionError(f"{where} must have one of {', '.join(ANSWER_FIELDS)} as text, got {line.strip()[:80]!r}")
    return row["prompt"], answer


def _as_json_list(tokens: Any) -> str:
    """The text of a JSON list of token texts."""
    found = load_json(tokens)
    return "".join(map(str, found)) if isinstance(found, list) else str(found)


# One answer, token by token: its text, kinds of text, log-probabilities and early end.


class Kind(Enum):
    """The kind of a part of an answer."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_NAME = "tool_name"
    TOOL_ARGUMENTS = "tool_arguments"
    MARKUP = "markup"
    """Marks around reasoning and tool calls. They cost tokens and are never sent to the client."""
    NOTHING = "nothing"
    """An event of a stream with a null content."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A stretch of text of one kind. `call` is the number of the tool call that the text belongs to."""

    kind: Kind
    text: str
    call: int = 0


class CutCalls(NamedTuple):
    """Function calls that were cut short. `text` is all of the text after the reasoning.

    `is_within_call`: the text ends within an incomplete call.
    """

    text: str
    num_complete: int = 0
    is_within_call: bool = True


class Answer(NamedTuple):
    """One answer. `texts[k-1]` is the text that a client may read when token k arrives; it may be empty.

    `texts` joined are the whole text, as the model wrote it. `token_texts` are the texts of the single tokens, before
    anything is held back or cut. `deltas[k-1]` is the text of token k sorted by kind, without markup. `deltas` is None
    where all text is content.
    """

    texts: Sequence[str]
    ending: Ending
    token_texts: Sequence[str]
    token_ids: Sequence[int]
    deltas: Sequence[Sequence[Delta]] | None = None
    num_reasoning_tokens: int = 0
    cut: CutCalls | None = None
    """Place where function calls were cut short. A whole message shows the calls that vLLM's parser finds in the
    complete text. A stream shows every part of a call that was generated."""
    streamed_ending: Ending | None = None
    """Ending of a stream, where it differs from the ending of a whole message."""

    @property
    def num_tokens(self) -> int:
        return len(self.texts)


def as_beam(answer: Answer, eos_token_id: int, keeps_end: bool) -> Answer:
    """Return the answer with its end marker as the stop reason. `keeps_end` keeps the marker among the tokens.

    A beam that is only the marker always keeps it, since the engine needs a request of at least one token.
    """
    if not answer.token_ids or answer.token_ids[-1] != eos_token_id or answer.ending.finish_reason == "length":
        return answer
    answer = answer._replace(ending=Ending(answer.ending.finish_reason, eos_token_id))
    if keeps_end or answer.num_tokens == 1:
        return answer
    return answer._replace(
        texts=answer.texts[:-1],
        token_texts=answer.token_texts[:-1],
        token_ids=answer.token_ids[:-1],
        deltas=None if answer.deltas is None else answer.deltas[:-1],
    )


MIN_TOP_PROBABILITY = 0.2
MAX_TOP_PROBABILITY = 0.98
MAX_RANK = 20
"""Lowest rank of a drawn token, as with the usual top-k sampling."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one step: the chosen token, and the most likely ones in order.

    `top` includes the chosen token where its rank is within it.
    """

    token_id: int
    logprob: float
    rank: int
    top: Sequence[tuple[int, float]]


def token_logprobs(
    seed: int,
    token_id: int,
    num_top: int,
    candidates: Sequence[int],
    is_greedy: bool = False,
    max_rank: int = MAX_RANK,
) -> TokenLogprobs:
    """The likeliest `num_top` tokens of the step that chose `token_id`; the other ids come from `candidates`.

    Probabilities fall geometrically, so that all of a step add up to less than 1. A token is ranked as if drawn by
    them: first when greedy, `max_rank` at most. Equal arguments give equal values, and a longer list begins with the
    shorter one. Values have single precision, as a GPU's. Cost: about 5 us, and 1 us more per id of the list.
    """
    draw = Random(seed * 1_000_003 + token_id)
    top = draw.uniform(MIN_TOP_PROBABILITY, MAX_TOP_PROBABILITY)
    falloff = 1 - top
    drawn = 1 + int(math.log(1 - draw.random()) / math.log(falloff))
    rank = 1 if is_greedy else min(drawn, max_rank)
    ids = _draw_other_ids(draw, token_id, max(0, num_top - (rank <= num_top)), candidates)
    if rank <= num_top:
        ids.insert(min(rank - 1, len(ids)), token_id)
    listed = [(each, _geometric_logprob(top, falloff, place)) for place, each in enumerate(ids, start=1)]
    return TokenLogprobs(token_id, _geometric_logprob(top, falloff, rank), rank, listed)


def _geometric_logprob(top: float, falloff: float, rank: int) -> float:
    """Return the log-probability by the geometric law, lowered by 1e-6 to keep the rounded sum below 1."""
    value: float = struct.unpack("f", struct.pack("f", math.log(top) + (rank - 1) * math.log(falloff) - 1e-6))[0]
    return value


def _draw_other_ids(draw: Random, token_id: int, count: int, candidates: Sequence[int]) -> list[int]:
    """Return `count` different ids other than `token_id`, or fewer if there are not as many."""
    if len(candidates) < 2 * (count + 1):
        few = [each for each in dict.fromkeys(candidates) if each != token_id]
        draw.shuffle(few)
        return few[:count]
    chosen = {token_id: None}
    tries = 0
    while len(chosen) <= count and tries < 100 * (count + 1):  # equal candidates could leave none to find
        chosen.setdefault(candidates[int(draw.random() * len(candidates))])
        tries += 1
    return list(chosen)[1:]


LOGIT_SPREAD = 6.0
"""Logits of labels lie between -SPREAD and 0."""
LOGIT_NORMALIZER = 130.0
"""Keeps the sum of 128 labels, the most that a request may name, below 1."""


def label_score(prompt_digest: object, label_ids: Sequence[int], seed: int, applies_softmax: bool) -> float:
    """Return the probability of the first label: among the labels with `applies_softmax`, else in the whole
    vocabulary."""
    weights = {label: math.exp(_drawn_logit(prompt_digest, label, seed)) for label in label_ids}
    total = sum(weights.values()) if applies_softmax else LOGIT_NORMALIZER
    return weights[label_ids[0]] / total


def _drawn_logit(prompt_digest: object, label: int, seed: int) -> float:
    drawn = blake2b(f"{seed} {prompt_digest!r} {label}".encode(), digest_size=8).digest()
    return -LOGIT_SPREAD * int.from_bytes(drawn, "big") / 2**64


def apply_stops(tokens: Split, ending: Ending, sampling: SamplingParams) -> Answer:
    """Return the answer cut by stop tokens, stop strings and repetition. None of them applies before `min_tokens`."""
    if sampling.repetition is not None:
        tokens, ending = _cut_at_repetition(tokens, ending, sampling, sampling.repetition)
    if sampling.stop_token_ids:
        tokens, ending = _cut_at_stop_token(tokens, ending, sampling, frozenset(sampling.stop_token_ids))
    if not sampling.stop:
        return Answer(tokens.pieces, ending, tokens.pieces, tokens.ids)
    return _cut_at_stop_string(tokens, ending, sampling)


def _cut_at_repetition(
    tokens: Split, ending: Ending, sampling: SamplingParams, repetition: RepetitionDetectionParams
) -> tuple[Split, Ending]:
    num_tokens = first_repetition(tokens.ids, repetition)
    if num_tokens is None or not sampling.min_tokens <= num_tokens < tokens.num_tokens:
        return tokens, ending
    return tokens.first(num_tokens), Ending("repetition", STOP_REASON)


def _cut_at_stop_token(
    tokens: Split, ending: Ending, sampling: SamplingParams, stop_ids: frozenset[int]
) -> tuple[Split, Ending]:
    """A stop token is counted; its text is shown only with `include_stop_str_in_output`."""
    # The end marker of an answer that ends by itself is never a stop token, even if the client lists it.
    last = len(tokens.ids) - (ending.finish_reason == "stop")
    for index in range(sampling.min_tokens, last):
        if tokens.ids[index] in stop_ids:
            pieces = [*tokens.pieces[: index + 1]]
            if not sampling.include_stop_str_in_output:
                pieces[-1] = ""
            return Split(tokens.ids[: index + 1], pieces), Ending("stop", tokens.ids[index])
    return tokens, ending


def _cut_at_stop_string(tokens: Split, ending: Ending, sampling: SamplingParams) -> Answer:
    text = "".join(tokens.pieces)
    ends = list(accumulate(map(len, tokens.pieces)))
    match = _first_match(text, ends, sampling)
    kept = len(text)
    if match is not None:
        start, end, stop = match
        ending = Ending("stop", stop)
        num_tokens = bisect_left(ends, end) + 1
        tokens = Split(tokens.ids[:num_tokens], tokens.pieces[:num_tokens])
        kept = end if sampling.include_stop_str_in_output else start
    held_back = 0 if sampling.include_stop_str_in_output else max(map(len, sampling.stop)) - 1
    shown = [max(0, min(end - held_back, kept)) for end in ends[: tokens.num_tokens]]
    shown[-1] = kept
    texts = [text[start:end] for start, end in zip([0, *shown], shown, strict=False)]
    return Answer(texts, ending, tokens.pieces, tokens.ids)


def _first_match(text: str, ends: list[int], sampling: SamplingParams) -> tuple[int, int, str] | None:
    """Return start, end and text of the stop string that is complete first; the earlier of the list wins a tie.

    A match has to end after the first `min_tokens` tokens.
    """
    not_before = ends[sampling.min_tokens - 1] if sampling.min_tokens else 0
    best: tuple[int, int, str] | None = None
    for stop in sampling.stop:
        start = text.find(stop, max(0, not_before - len(stop) + 1))
        if start >= 0 and (best is None or start + len(stop) < best[1]):
            best = (start, start + len(stop), stop)
    return best


STOP_REASON = "repetition_detected"

FEW_SIZES = 32
MOST_COMPARISONS = 32_768
"""Maximum number of pattern sizes for a separate search of each."""


def is_slow(repetition: RepetitionDetectionParams) -> bool:
    """Whether the search for repetition may take more than a few milliseconds."""
    return repetition.max_pattern_size - repetition.min_pattern_size >= FEW_SIZES


def first_repetition(token_ids: Sequence[int], repetition: RepetitionDetectionParams) -> int | None:
    """Return how many tokens an answer has when it first ends in a pattern repeated `min_count` times in a row.

    None if it never does. Cost: the number of tokens times its logarithm.
    """
    num_tokens = len(token_ids)
    longest = min(repetition.max_pattern_size, num_tokens // repetition.min_count)
    sizes = range(max(1, repetition.min_pattern_size), longest + 1)
    if len(sizes) * num_tokens <= MOST_COMPARISONS:
        found = (_first_of_size(token_ids, size, repetition.min_count) for size in sizes)
        return min((each for each in found if each is not None), default=None)
    from mockserve.generation.pattern_search import PatternSearch  # needs numpy, which a worker process rarely does

    return PatternSearch(token_ids, repetition.min_count).first(sizes)


def _first_of_size(token_ids: Sequence[int], size: int, min_count: int) -> int | None:
    num_equal = 0
    for index in range(size, len(token_ids)):
        num_equal = num_equal + 1 if token_ids[index] == token_ids[index - size] else 0
        if num_equal >= size * (min_count - 1):
            return index + 1
    return None


# The parts of an answer in their order: reasoning and its length, text, tool calls; and their split into tokens.


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one kind. With `shown`, the client gets `shown` at once in place of the text when the stretch is
    complete."""

    kind: Kind
    text: str
    call: int = 0
    shown: str | None = None


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Settings for writing a script: the vocabulary, the number of tokens, and the sampling fields."""

    tokenizer: Tokenizer
    sampling: SamplingParams
    budget: int
    names_function: bool = False
    """Whether the client named the function to call. The answer then ends after the call, without an end marker."""
    is_parsed: bool = True
    """Whether a parser of the server reads the answer; without one all of it is content."""


def render_tokens(script: Sequence[Segment], options: RenderOptions) -> Answer:
    """Render the script as an answer: cut at the budget or at a stop, else ended by the end marker.

    With `ignore_eos`, or below `min_tokens`, end markers without text follow, as from a model that has no more to
    generate.
    """
    script = [_encodable(each) for each in script]
    tokens = options.tokenizer.split("".join(each.text for each in script))
    answer = apply_stops(*_end_within_budget(tokens, options), options.sampling)
    if not options.is_parsed:
        return answer
    answer = answer._replace(
        deltas=sorted_by_kind(answer.texts, script),
        num_reasoning_tokens=_num_reasoning_tokens(answer.token_texts, script),
    )
    if not any(each.kind is Kind.TOOL_NAME for each in script):
        return answer
    num_chars = sum(map(len, answer.texts))
    calls = answer.ending.finish_reason == "stop" and not options.names_function
    ending = Ending("tool_calls", answer.ending.stop_reason) if calls else None
    if num_chars < _chars_to_last_call(script):
        has_name = any(delta.kind is Kind.TOOL_NAME for deltas in answer.deltas or () for delta in deltas)
        return answer._replace(cut=_cut_calls(script, num_chars), streamed_ending=ending if has_name else None)
    return answer if ending is None else answer._replace(ending=ending)


def _chars_to_last_call(script: Sequence[Segment]) -> int:
    """Return the number of characters of a script within which the parser finds all calls, with or without the last end
    mark."""
    num_chars = sum(len(each.text) for each in script)
    last = script[-1]
    return num_chars - len(last.text.removeprefix("}")) if last.text.endswith(">") else num_chars


def _cut_calls(script: Sequence[Segment], num_chars: int) -> CutCalls:
    """Return the calls of a script that is cut after `num_chars` characters."""
    ends = list(accumulate(len(each.text) for each in script))
    num_begun = num_complete = 0
    for place, segment in enumerate(script):
        if segment.kind is Kind.TOOL_NAME:
            mark = script[place - 1].text if place else ""
            start = ends[place] - len(segment.text) - len(mark)
            num_begun += num_chars >= start + mark.find(">") + 1
        elif segment.kind is Kind.TOOL_ARGUMENTS:
            # The brace behind the arguments ends the call.
            num_complete += num_chars > ends[place]
    text = _after_reasoning(script)[: max(0, num_chars - _reasoning_chars(script))]
    return CutCalls(text, num_complete, num_begun > num_complete)


def _encodable(segment: Segment) -> Segment:
    """Return the segment without characters that UTF-8 cannot encode."""
    text = whole_characters(segment.text)
    if text == segment.text:
        return segment
    return replace(segment, text=text, shown=None if segment.shown is None else whole_characters(segment.shown))


def _reasoning_chars(script: Sequence[Segment]) -> int:
    """Return the number of characters of a script that are reasoning and its marks, which precede all other text."""
    kinds = [each.kind for each in script]
    if Kind.REASONING not in kinds:
        return 0
    return sum(len(each.text) for each in script[: kinds.index(Kind.REASONING) + 2])


def _after_reasoning(script: Sequence[Segment]) -> str:
    return "".join(each.text for each in script)[_reasoning_chars(script) :]


def _end_within_budget(tokens: Split, options: RenderOptions) -> tuple[Split, Ending]:
    """Return the text within the budget, and how it ends."""
    if tokens.num_tokens >= options.budget:
        return tokens.first(options.budget), Ending("length")
    least = options.budget if options.sampling.ignore_eos else max(options.sampling.min_tokens, tokens.num_tokens) + 1
    num_tokens = min(least, options.budget)
    num_marks = num_tokens - tokens.num_tokens
    whole = Split([*tokens.ids, *[options.tokenizer.eos_token_id] * num_marks], [*tokens.pieces, *[""] * num_marks])
    ends_by_itself = not options.sampling.ignore_eos and least <= options.budget
    return whole, Ending("stop" if ends_by_itself else "length")


def sorted_by_kind(texts: Sequence[str], script: Sequence[Segment]) -> list[tuple[Delta, ...]]:
    """Return for each token the readable part of its text by kind. `texts` joined are a beginning of the script.

    Equal tokens within a segment share one delta. A long answer has few different words, and an object for each token
    would take three times the memory.
    """
    ends = list(accumulate(len(each.text) for each in script))
    deltas: list[tuple[Delta, ...]] = []
    shared: dict[tuple[int, str], tuple[Delta, ...]] = {}
    at = 0
    current = 0
    for text in texts:
        until = at + len(text)
        if text and current < len(script) and until < ends[current] and script[current].shown is None:
            known = shared.get((current, text))
            if known is None:
                segment = script[current]
                whole = (Delta(segment.kind, text, segment.call),)
                known = shared[current, text] = () if segment.kind is Kind.MARKUP else whole
            deltas.append(known)
            at = until
            continue
        found: list[Delta] = []
        # A segment without text comes with the end of the one before it.
        while current < len(script) and (at < until or not script[current].text):
            segment, end = script[current], ends[current]
            upto = min(until, end)
            delta = _shown_part(segment, at - (end - len(segment.text)), upto - (end - len(segment.text)))
            if delta is not None:
                found.append(delta)
            at = upto
            if at == end:
                current += 1
        deltas.append(tuple(found))
    return deltas


def _shown_part(segment: Segment, start: int, end: int) -> Delta | None:
    """Return the text that a client reads of characters `start` to `end` of a segment."""
    if segment.kind is Kind.MARKUP:
        return None
    if segment.shown is not None:
        return Delta(segment.kind, segment.shown, segment.call) if end == len(segment.text) else None
    text = segment.text[start:end]
    return Delta(segment.kind, text, segment.call) if text else None


def _num_reasoning_tokens(token_texts: Sequence[str], script: Sequence[Segment]) -> int:
    """Tokens that begin within reasoning."""
    spans = []
    at = 0
    for segment in script:
        if segment.kind is Kind.REASONING:
            spans.append((at, at + len(segment.text)))
        at += len(segment.text)
    if not spans:
        return 0
    starts = [0, *accumulate(map(len, token_texts))]
    return sum(
        any(first <= start < last for first, last in spans)
        for start, text in zip(starts, token_texts, strict=False)
        if text
    )


TOKENS_BY_EFFORT = {"minimal": 25, "low": 100, "medium": 250, "high": 500, "xhigh": 1000, "max": 2000}
"""Median number of reasoning tokens for each `reasoning_effort`."""

TOKENS_SIGMA = 0.3
EFFORT_OFF = "none"
THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables of chat templates that disable thinking."""

REQUIRED_VARIABLES: Mapping[str, Sequence[str]] = {
    "deepseek_v3": THINKING_SWITCHES,
    "gemma4": ("enable_thinking",),
    "hy_v3": ("reasoning_effort",),
    "poolside_v1": THINKING_SWITCHES,
}
"""Variables by parser. One of them must be set for the parser to parse reasoning. Other parsers always do."""
ENABLE_THINKING_ONLY = frozenset(
    {"gemma4", "granite_thinking_parser", "mimo", "minicpmv", "nemotron_v3", "plamo3", "qwen3", "seed_oss"}
)
"""Parsers that read only `enable_thinking`."""
SUPPORTED_EFFORTS: Mapping[str, Sequence[str]] = {"k2_horizon": ("high", "medium", "low")}
"""Efforts that each parser supports; other parsers take any."""
SHOWN_AS_CONTENT = "minimax_m2_append_think"
"""The parser that leaves reasoning in the content, with its marks."""
NO_THINKING = (None, False, "", "no_think")

UNLIMITED = -1
START, END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Thinking:
    """Number of reasoning tokens: `median_tokens` on average, `budget_tokens` at most."""

    median_tokens: int
    budget_tokens: int | None = None
    is_fixed: bool = False
    is_shown_as_content: bool = False
    """Whether the reply has the reasoning as content, with its marks."""

    def num_tokens(self, random: Random, most: int) -> int:
        """Draw the number of reasoning tokens, at most `most`."""
        drawn = self.median_tokens
        if not self.is_fixed:
            drawn = max(1, round(random.lognormvariate(math.log(max(1, drawn)), TOKENS_SIGMA)))
        limits = [drawn, most] if self.budget_tokens is None else [drawn, most, self.budget_tokens]
        return max(0, min(limits))


def read_thinking(
    body: Mapping[str, Any], variables: Mapping[str, Any], fixed_tokens: int | None, parser: str = ""
) -> Thinking | None:
    """Return the length of the reasoning before the answer to `body`; None for no reasoning.

    `variables` are the variables of the chat template. Raises ApiError for an effort that the parser does not support.
    """
    _check_effort(variables, parser)
    effort = body.get("reasoning_effort")
    switches = THINKING_SWITCHES[:1] if parser in ENABLE_THINKING_ONLY else THINKING_SWITCHES
    if effort == EFFORT_OFF or any(variables.get(each) is False for each in switches):
        return None
    needed = REQUIRED_VARIABLES.get(parser)
    if needed is not None and all(variables.get(each) in NO_THINKING for each in needed):
        return None
    budget = body.get("thinking_token_budget")
    median = TOKENS_BY_EFFORT.get(str(effort), TOKENS_BY_EFFORT["medium"])
    return Thinking(
        median if fixed_tokens is None else fixed_tokens,
        None if type(budget) is not int or budget == UNLIMITED else budget,
        is_fixed=fixed_tokens is not None,
        is_shown_as_content=parser == SHOWN_AS_CONTENT,
    )


def _check_effort(variables: Mapping[str, Any], parser: str) -> None:
    efforts = SUPPORTED_EFFORTS.get(parser)
    if efforts is None:
        return
    effort = variables.get("reasoning_effort", efforts[0])
    if effort not in efforts:
        raise ApiError(f"Unsupported reasoning_effort {effort!r}. Supported values: {', '.join(efforts)}.")


def reasoning_segments(thinking: Thinking, random: Random, prose: Prose, budget: int) -> list[Segment]:
    """Return the reasoning between its marks. Reasoning takes at most half of the budget, to leave room for the
    answer."""
    tokens = prose.write(random, thinking.num_tokens(random, most=budget // 2))
    text = "".join(tokens.pieces)
    if thinking.is_shown_as_content:
        return [Segment(Kind.CONTENT, f"{START}{text}{END}")]
    return marked_reasoning(text)


def marked_reasoning(text: str) -> list[Segment]:
    """Return reasoning between its marks."""
    return [Segment(Kind.MARKUP, START), Segment(Kind.REASONING, text), Segment(Kind.MARKUP, END)]
