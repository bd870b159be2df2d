"""Sets of characters that expressions name, as the printable characters that texts are written with."""

import string

PRINTABLE = string.ascii_letters + string.digits + " " + string.punctuation
"""What stands for any character: the likeliest first, so that the shortest text is a plain one."""

SPARE = "éßñ中文日本語ЖΩ€£©\t\n\r" + "".join(map(chr, range(0xA1, 0x250)))
"""Where a class has none of the printable ones."""

LETTERS = string.ascii_letters
WORD = LETTERS + string.digits + "_"

CLASS_ESCAPES = {"d": string.digits, "w": WORD, "s": " \t\n\r\f\v"}

PROPERTIES = {
    "L": LETTERS,
    "Letter": LETTERS,
    "Alphabetic": LETTERS,
    "Lu": string.ascii_uppercase,
    "Uppercase": string.ascii_uppercase,
    "Uppercase_Letter": string.ascii_uppercase,
    "Ll": string.ascii_lowercase,
    "Lowercase": string.ascii_lowercase,
    "Lowercase_Letter": string.ascii_lowercase,
    "N": string.digits,
    "Number": string.digits,
    "Nd": string.digits,
    "P": ".,;:!?-'()[]{}\"/&@#%*_\\",
    "Punctuation": ".,;:!?-'()[]{}\"/&@#%*_\\",
    "S": "$+<=>^`|~",
    "Symbol": "$+<=>^`|~",
    "Sc": "$",
    "Z": " ",
    "Zs": " ",
    "White_Space": " ",
    "Han": "中文日本語",
    "Script=Han": "中文日本語",
    "Latin": LETTERS,
    "Greek": "ΑΒΓΔΩαβγδω",
    "Cyrillic": "АБВГДабвгд",
}
"""Unicode properties by name, each as some characters that have it."""

POSIX = {
    "alpha": LETTERS,
    "digit": string.digits,
    "alnum": LETTERS + string.digits,
    "upper": string.ascii_uppercase,
    "lower": string.ascii_lowercase,
    "punct": string.punctuation,
    "space": " \t\n\r\f\v",
    "xdigit": string.digits + "abcdefABCDEF",
    "word": WORD,
}


def between(first: str, last: str) -> str:
    """The characters of a range: the printable ones if it has any, else its first."""
    found = "".join(each for each in PRINTABLE if first <= each <= last)
    return found or "".join(map(chr, range(ord(first), min(ord(last), ord(first) + 63) + 1)))


def without(excluded: str, ranges: list[tuple[str, str]]) -> str:
    """Characters that are neither `excluded` nor within a range: the printable ones if there are any."""

    def is_free(each: str) -> bool:
        return each not in excluded and not any(first <= each <= last for first, last in ranges)

    return "".join(filter(is_free, PRINTABLE)) or "".join(filter(is_free, SPARE))
