"""Texts of answers: plausible prose of a given number of tokens, or texts of a file, looked up by prompt."""

import sqlite3
from array import array
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, Protocol

from blis_sim.options import OptionError
from blis_sim.options.files import check_open_file
from blis_sim.options.text import load_json
from mockserve.generation.tokenizer import WORDS, Split, Tokenizer

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
        """Write a text of exactly `num_tokens` tokens, whose pieces are those of the tokenizer.

        With `continues_word`, the text begins with a space, as after a word: the prompt and the text joined give
        the same tokens. If no text of the vocabulary has as many tokens, the nearest beginning of one is returned.
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

    The second form is that of llm-d-inference-sim: a SHA-256 of the prompt's text, or of its token ids as little-endian
    32-bit integers, and a JSON list of token texts.
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
                return _joined(row[0]) if self._by_hash else str(row[0])
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


def _joined(tokens: Any) -> str:
    """The text of a JSON list of token texts."""
    found = load_json(tokens)
    return "".join(map(str, found)) if isinstance(found, list) else str(found)
