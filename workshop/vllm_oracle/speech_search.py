"""Sends a genuine server and ours the same recordings with the same fields, at random, and prints differing replies.

python -m workshop.vllm_oracle.speech_search --genuine http://127.0.0.1:18800 --ours http://127.0.0.1:18850

Both must serve a folder of Whisper's architecture whose vocabulary has the marks of languages and times. A form has any
of the documented fields, with values right and wrong; recordings have several lengths and sample formats, or are none.
Exit code 1 if replies differ. With `--record FILE` the requests and the genuine server's replies are appended to a
table such as `tests/wings/speech/speech_replies.jsonl`, and ours is not asked.
"""

import argparse
import json
import struct
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeAlias

from workshop.attack.uploads import MULTIPART, PATHS, Part, encoded, field
from workshop.ending import check_reachable, run_command
from workshop.vllm_oracle.replies import HttpReply, HttpRequest, answer, differences

NUMBERS = ("0", "1", "-1", "0.5", "2.5", "1e400", "nan", "x", "", "3", "100000", "-0.5")
FLAGS = ("true", "false", "1", "0", "yes", "x", "", "True")
VALUES: Mapping[str, Sequence[str]] = {
    "model": ("m", "nope", ""),
    "language": ("en", "de", "zh", "ja", "EN", "xx", "", "english", "haw", "yue", "jw", "af", "am", "zz"),
    "to_language": ("en", "xx", "", "DE"),
    "hotwords": ("a,b", ""),
    "prompt": ("", "hello there", "<|en|>", "x" * 600),
    "response_format": ("json", "text", "verbose_json", "srt", "vtt", "diarized_json", "x", ""),
    "timestamp_granularities[]": ("word", "segment", "x", ""),
    "stream": FLAGS,
    "stream_include_usage": FLAGS,
    "stream_continuous_usage_stats": FLAGS,
    "vllm_xargs": ("{}", "[]", "x", '{"a": null}', '{"a": {"b": 1}}', '{"a": [1, "b", 2.5]}', '{"a": true}', "3", ""),
    "use_beam_search": FLAGS,
    "n": ("1", "2", "0", "-1", "x", "", "1.0", "1.5"),
    "length_penalty": NUMBERS,
    "include_stop_str_in_output": FLAGS,
    "temperature": NUMBERS,
    "watermarking": FLAGS,
    "top_p": NUMBERS,
    "top_k": ("0", "1", "-1", "-2", "5", "1.5", "x", ""),
    "min_p": NUMBERS,
    "seed": ("0", "7", "-1", "x", "", "9223372036854775808", "1.5"),
    "frequency_penalty": NUMBERS,
    "repetition_penalty": NUMBERS,
    "presence_penalty": NUMBERS,
    "max_completion_tokens": ("1", "3", "0", "-1", "100000", "x", "", "1.0"),
    "unknown": ("x",),
}
"""Values of each field of a form, wrong ones among them."""

WORDS = [40, 41, 42]
ENDS = json.dumps({"fx_tokens": WORDS, "fx_eos_at": len(WORDS)})
"""Makes the genuine server's model generate three tokens and stop."""

Sound: TypeAlias = str | tuple[float, int, int, int] | None
"""Seconds, sample rate, channels and bits of a WAV file; or bytes that are none, in hexadecimal."""

LONG_ENOUGH = (2.25, 16_000, 1, 16)

SHOWN_CHARS = 700


def main() -> int:
    """Search, print the differences and the number of requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--genuine", required=True, help="URL of the genuine server")
    parser.add_argument("--ours", default="", help="URL of our server")
    parser.add_argument("--record", type=Path, help="table to append the genuine server's replies to")
    parser.add_argument("--count", type=int, default=300, help="number of requests")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    given = parser.parse_args()
    check_reachable(given.genuine, *([] if given.record else [given.ours]))
    random = Random(given.seed)
    asked: Counter[str] = Counter()
    num_different = 0
    for _ in range(given.count):
        speech_request = drawn(random)
        asked[speech_request.path] += 1
        theirs = answer(given.genuine, speech_request.ask())
        if given.record:
            _record(given.record, speech_request, theirs)
            continue
        found = found_differences(speech_request, theirs, answer(given.ours, speech_request.ask()))
        if found:
            num_different += 1
            sys.stdout.write(f"{speech_request}\n" + "".join(f"    {each[:SHOWN_CHARS]}\n" for each in found))
            sys.stdout.flush()
    sys.stdout.write(f"{asked.total()} requests to {len(asked)} paths, {num_different} answered differently\n")
    return 1 if num_different else 0


class SpeechRequest(NamedTuple):
    """A request: its path, its recording, and the other fields of its form."""

    path: str
    sound: Sound
    fields: Sequence[tuple[str, str]]

    def ask(self) -> HttpRequest:
        """The request as it is sent."""
        lines = (b'Content-Disposition: form-data; name="file"; filename="a.wav"', b"Content-Type: audio/wav")
        parts = [field(name, value.encode()) for name, value in self.fields]
        if self.sound is not None:
            data = bytes.fromhex(self.sound) if isinstance(self.sound, str) else wave(*self.sound)
            parts.insert(0, Part(lines, data))
        return HttpRequest("POST", self.path, encoded(parts), {"content-type": MULTIPART})


def _record(file: Path, speech_request: SpeechRequest, theirs: HttpReply) -> None:
    row = {
        **speech_request._asdict(),
        "status": theirs.status,
        "type": theirs.headers.get("content-type"),
        "reply": theirs.body,
    }
    with file.open("a", encoding="utf-8") as table:
        table.write(json.dumps(row) + "\n")


def drawn(random: Random) -> SpeechRequest:
    """A request with one to three fields of any value."""
    fields = {"model": "m", "max_completion_tokens": "2", "vllm_xargs": ENDS}
    if random.random() < 0.7:
        fields["language"] = "en"
    for _ in range(random.choice((0, 1, 1, 1, 2, 2, 3))):
        name = random.choice(list(VALUES))
        fields[name] = random.choice(VALUES[name])
    if random.random() < 0.1:
        fields.pop(random.choice(list(fields)))
    pairs = list(fields.items())
    if random.random() < 0.1:
        name = random.choice(list(VALUES))
        pairs.append((name, random.choice(VALUES[name])))
    return SpeechRequest(random.choice(PATHS), sound_of(random), pairs)


def sound_of(random: Random) -> Sound:
    """A recording of any length and form, or what is none."""
    kind = random.random()
    if kind < 0.6:
        return LONG_ENOUGH
    if kind < 0.75:
        rate, channels, bits = random.choice(((8000, 1, 16), (44_100, 2, 16), (16_000, 1, 8), (48_000, 1, 24)))
        return 1.0, rate, channels, bits
    if kind < 0.85:
        return random.choice((29.9, 30.0, 30.5, 61.0)), 16_000, 1, 16
    if kind < 0.9:
        return None
    whole = wave(*LONG_ENOUGH)
    return random.choice((b"", b"RIFF", b"hello", whole[:20], whole[:44], whole[:3000], bytes(500))).hex()


def found_differences(speech_request: SpeechRequest, theirs: HttpReply, ours: HttpReply) -> list[str]:
    """Each place at which two replies to a request differ."""
    return [*differences(speech_request.path, theirs, ours), *event_differences(theirs, ours)]


def wave(seconds: float, rate: int = 16_000, channels: int = 1, bits: int = 16) -> bytes:
    """A WAV file of silence."""
    frame = channels * bits // 8
    data = (b"\x80" if bits == 8 else b"\0") * (int(seconds * rate) * frame)
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, channels, rate, rate * frame, frame, bits)
    return (
        struct.pack("<4sI4s", b"RIFF", 36 + len(data), b"WAVE") + head + struct.pack("<4sI", b"data", len(data)) + data
    )


def event_differences(theirs: HttpReply, ours: HttpReply) -> list[str]:
    """How the events of two streams differ in form; equal ones in a row count once.

    Events with text alone are left out, since all tokens may come with the end on a busy machine.
    """
    if not all(each.headers.get("content-type", "").startswith("text/event-stream") for each in (theirs, ours)):
        return []
    first, second = _kinds(theirs.body), _kinds(ours.body)
    return [] if first == second else [f"events {json.dumps(first)}\n          ours {json.dumps(second)}"]


def _kinds(text: str) -> list[Any]:
    events = [each.removeprefix("data: ") for each in text.split("\n\n") if each]
    events = [each for each in events if "finish_reason" in each or '"delta"' not in each]
    kinds = [each if each.startswith("[") else _kind(json.loads(each)) for each in events]
    return [each for number, each in enumerate(kinds) if number == 0 or each != kinds[number - 1]]


def _kind(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return [[key, _kind(each, key)] for key, each in value.items()]
    if isinstance(value, list):
        return [_kind(each) for each in value]
    return (
        value
        if name in ("object", "model", "finish_reason", "stop_reason", "message", "code")
        else type(value).__name__
    )


if __name__ == "__main__":
    run_command(main)
