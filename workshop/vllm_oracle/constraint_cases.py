"""Random constraints of structured outputs: schemas, regular expressions, grammars, choices and structural tags."""

import json
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

Case: TypeAlias = dict[str, Any]
"""The value of `structured_outputs`."""

PATTERNS = (
    *(r"^[a-z]+$", "[A-Z]{3}", r"\d{3}-\d{4}", "(?=a)b", r"\bword", "a**", "[", "(a", "^a|b$", r"\w+@\w+", '"', r"\\"),
    *("a{2,1}", "(?i)abc", "(?P<n>a)", "é", '[^"]*', r"\p{L}", ".*", "", "(a|b)*c", r"\1", "(?<!a)b", r"\/", r"[\d-x]"),
)
FORMATS = (
    *("email", "date", "time", "date-time", "uuid", "ipv4", "ipv6", "hostname", "uri", "regex", "idn-email", "foo"),
    *("duration", "json-pointer", "uri-template", "unknown"),
)
REGEX_PARTS = (
    *("a", "b", "X", "0", " ", "_", r"\d", r"\w", r"\s", r"\D", ".", "[a-z]", "[^a-z]", "[a-c-]", "[]", "[z-a]", r"\n"),
    *(r"\x41", r"\u0041", r"\.", "é", "(?:ab)", "(?<n>x)", "(a|b)", "(a|)", "()", "(?=a)", "(?i)a", r"\b", r"\1"),
    *(
        r"\p{L}",
        r"\q",
        "^",
        "$",
        '"',
        "/",
        "{",
        "}",
        "{2}",
        "{2,}",
        "{2,3}",
        "{3,2}",
        "*",
        "+",
        "?",
        "|",
        "(",
        ")",
        "[",
    ),
)
EBNF_PARTS = (
    *('"a"', '"b\\n"', "[a-z]", '[^"]', "[0-9]+", "b", "c", "undefined", '("x" | "y")', "()", '"a"{2}', '"a"{2,}'),
    *('"a"{3,2}', '"a"*', r'"\x41"', r'"\q"', r"[\d]", "[b-a]", '"abc', "(", "|", "# note\n", "1", "true", "%", '"é"'),
)
LARK_PARTS = (
    *('"a"', '"b"i', "/[a-z]+/", "b", "C", "undefined", '("x" | "y")', '["z"]', '"a"~2', '"a"*', "b+", "(", "|", "%"),
    *("/(?=a)/", r"/\d{2}/", '"a".."f"', "// note\n"),
)
NAMES = ("a", "b", "name", "age", "x y", "é")
REFERENCES = ("#/$defs/A", "#/$defs/B", "#", "#/$defs/C", "http://x/y", "#foo")
VALUES: tuple[Any, ...] = (1, "a", None, True, 3.5, [], {}, [1], {"a": 1}, "é", -1, 0)
ODD_VALUES: tuple[Any, ...] = (None, 3, "x", [], {}, True, -1, 2.5, [1], {"a": 1}, 1e30)
MOST_DEPTH = 4


def draw_case(seed: int) -> Case:
    """A constraint, the same for the same seed."""
    random = Random(seed)
    kinds: tuple[tuple[float, str, Callable[[Random], Any]], ...] = (
        (0.5, "json", draw_schema),
        (0.7, "regex", lambda each: "".join(each.choices(REGEX_PARTS, k=each.randint(1, 5)))),
        (0.78, "grammar", draw_ebnf),
        (0.84, "grammar", draw_lark),
        (0.92, "choice", lambda each: each.choices(["a", "yes", "", 'é"', "\n", "no way"], k=each.randint(0, 4))),
        (1.0, "structural_tag", lambda each: json.dumps(draw_tag(each))),
    )
    drawn = random.random()
    return next({name: draw(random)} for limit, name, draw in kinds if drawn < limit)


def draw_schema(random: Random) -> dict[str, Any]:
    """A JSON schema that is an object, right in most of its parts."""
    drawer = _SchemaDrawer(random, has_references=random.random() < 0.4)
    schema = drawer.schema(0)
    while not isinstance(schema, dict):
        schema = drawer.schema(0)
    if drawer.has_references:
        schema["$defs"] = {"A": drawer.schema(1), "B": drawer.schema(2)}
    return schema


class _SchemaDrawer:
    """Draws the schemas of one document."""

    def __init__(self, random: Random, has_references: bool) -> None:
        self._random = random
        self.has_references = has_references

    def schema(self, depth: int) -> Any:
        random = self._random
        if random.random() < 0.03:
            return random.choice([True, False, {}]) if depth else {}
        draws = [self._string, self._number, self._listed, self._plain]
        found: dict[str, Any]
        if depth < MOST_DEPTH and random.random() < 0.6:
            found = random.choice([self._array, self._object, self._object, self._combined])(depth + 1)
        else:
            found = random.choice(draws)()
        for name, value in (("description", "text"), ("default", 1), ("$anchor", "foo"), ("x-note", [1])):
            if random.random() < 0.05:
                found[name] = value
        if depth < MOST_DEPTH and random.random() < 0.04:
            found[random.choice(["not", "if", "then"])] = self.schema(depth + 1)
        return found

    def _maybe_odd(self, value: Any) -> Any:
        return self._random.choice(ODD_VALUES) if self._random.random() < 0.03 else value

    def _with(self, found: dict[str, Any], probability: float, **choices: tuple[Any, ...]) -> dict[str, Any]:
        for name, values in choices.items():
            if self._random.random() < probability:
                found[name] = self._maybe_odd(self._random.choice(values))
        return found

    def _string(self) -> dict[str, Any]:
        found = self._with({"type": "string"}, 0.3, minLength=(0, 1, 5), maxLength=(0, 3, 10, 50))
        return self._with(found, 0.3, **{self._random.choice(["pattern", "format"]): (*PATTERNS, *FORMATS)})

    def _number(self) -> dict[str, Any]:
        bounds = (0, 1, 5, 10, -3, 2.5, 100, 1e20)
        kind = self._random.choice(["integer", "number"])
        limits = dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), bounds)
        return self._with(self._with({"type": kind}, 0.25, **limits), 0.1, multipleOf=(1, 2, 5, 0, 0.5))

    def _listed(self) -> dict[str, Any]:
        values = self._random.choices(VALUES, k=self._random.randint(0, 3))
        return {"enum": self._maybe_odd(values)} if self._random.random() < 0.6 else {"const": values[:1]}

    def _plain(self) -> dict[str, Any]:
        kinds: tuple[Any, ...] = (
            "boolean",
            "null",
            "string",
            "strin",
            ["string", "null"],
            ["integer", "string"],
            [],
            ["null"],
            [3],
        )
        reference = self.has_references and self._random.random() < 0.5
        return {"$ref": self._random.choice(REFERENCES)} if reference else {"type": self._random.choice(kinds)}

    def _array(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "array", "items": self._maybe_odd(self.schema(depth))}
        if self._random.random() < 0.2:
            found["prefixItems"] = [self.schema(depth) for _ in range(self._random.randint(0, 3))]
        self._with(found, 0.3, minItems=(0, 1, 2, 5), maxItems=(0, 1, 3, 5))
        return self._with(found, 0.04, uniqueItems=(True,), contains=({},), minContains=(1,))

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._random.sample(NAMES, self._random.randint(0, 4))
        found: dict[str, Any] = {"type": "object", "properties": {name: self.schema(depth) for name in names}}
        if self._random.random() < 0.5:
            found["required"] = self._maybe_odd(self._random.choices(names or NAMES[:1], k=self._random.randint(0, 2)))
        self._with(found, 0.4, additionalProperties=(True, False, {"type": "integer"}))
        self._with(found, 0.06, minProperties=(0, 1, 5), maxProperties=(0, 1, 5), propertyNames=({"pattern": "^a"},))
        return self._with(found, 0.05, patternProperties=({"^a": {"type": "integer"}}, {"(": {}}))

    def _combined(self, depth: int) -> dict[str, Any]:
        parts = [self.schema(depth) for _ in range(self._random.choice([0, 1, 1, 2, 2, 3]))]
        return {self._random.choice(["anyOf", "oneOf", "allOf"]): self._maybe_odd(parts)}


def draw_ebnf(random: Random) -> str:
    """A grammar in the notation of `root ::= ...`."""
    bodies = [" ".join(random.choices(EBNF_PARTS, k=random.randint(1, 3))) for _ in range(3)]
    return f'root ::= {bodies[0]}\nb ::= {bodies[1]} | "q"\nc ::= "d" {bodies[2] if random.random() < 0.3 else ""}\n'


def draw_lark(random: Random) -> str:
    """A grammar in the notation of `start: ...`."""
    bodies = [" ".join(random.choices(LARK_PARTS, k=random.randint(1, 3))) for _ in range(2)]
    return f'start: {bodies[0]}\nb: "q" {bodies[1] if random.random() < 0.3 else ""}\nC: /c+/\n'


def draw_tag(random: Random, depth: int = 0) -> dict[str, Any]:
    """A structural tag in either of its notations."""
    if random.random() < 0.3:
        structures = [
            {"begin": f"<{name}>", "schema": random.choice([{"type": "object"}, {}, {"type": "strin"}]), "end": "</>"}
            for name in random.sample("ab", random.randint(0, 2))
        ]
        return {"type": "structural_tag", "structures": structures, "triggers": random.choice([["<"], ["<a"], []])}
    return {"type": "structural_tag", "format": _draw_format(random, 0)}


def _draw_format(random: Random, depth: int) -> Any:
    if depth > 2:
        return {"type": "any_text"}
    if random.random() < 0.05:
        return random.choice([None, 3, {}, {"type": "foo"}, {"value": "x"}])

    def inner() -> Any:
        return _draw_format(random, depth + 1)

    def tag() -> dict[str, Any]:
        ends: tuple[Any, ...] = ("</a>", "", ["</a>", "</b>"], [])
        return {"type": "tag", "begin": random.choice(["<a>", "<b"]), "content": inner(), "end": random.choice(ends)}

    schemas = ({"type": "object"}, {"type": "integer", "minimum": 5, "maximum": 1}, {"type": "strin"}, True, False)
    forms: tuple[Callable[[], dict[str, Any]], ...] = (
        lambda: {"type": "const_string", "value": random.choice(["x", "", 3])},
        lambda: {"type": "json_schema", "json_schema": random.choice(schemas)},
        lambda: {"type": "any_text"},
        lambda: {"type": "grammar", "grammar": random.choice(['root ::= "a"', "root ::= b", ""])},
        lambda: {"type": "regex", "pattern": random.choice(PATTERNS)},
        lambda: {"type": random.choice(["sequence", "or"]), "elements": [inner() for _ in range(random.randint(0, 3))]},
        tag,
        lambda: {"type": "triggered_tags", "triggers": random.choice([["<a"], ["<"], []]), "tags": [tag()]},
        lambda: {"type": "tags_with_separator", "tags": [tag()], "separator": random.choice([",", "", 3])},
        lambda: {"type": random.choice(["optional", "plus", "star"]), "content": inner()},
        lambda: {"type": "repeat", "min": random.choice([0, 1, 3]), "max": random.choice([-1, 2]), "content": inner()},
    )
    return random.choice(forms)()
