"""How settings become flags: one toy command with a setting of each kind."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.conftest import Said
from tests.cli.toy_command import ToyOptions
from tests.examples import examples

Blis = Callable[..., Said]
REQUIRED = ("here", "--max-num-seqs", "8")


def got(blis: Blis, *flags: str) -> str:
    """Return the settings of the toy command, as it prints them."""
    code, out, err = blis("toy", *REQUIRED, *flags)
    assert (code, err) == (0, "")
    return out.strip()


def expected(**given: object) -> str:
    return str(ToyOptions(source="here", max_num_seqs=8, **given))  # type: ignore[arg-type]


def test_a_setting_without_a_flag_has_its_default(blis: Blis) -> None:
    assert got(blis) == expected()


@pytest.mark.parametrize(
    ("flags", "given"),
    [
        (["--rate", "2"], {"rate": 2.0}),
        (["--rate=0.25"], {"rate": 0.25}),
        (["--horizon", "7"], {"horizon": 7}),
        (["--label", ""], {"label": ""}),
        (["--label", "two words"], {"label": "two words"}),
        (["--order", "sjf"], {"order": "sjf"}),
        (["--secret", "x"], {"secret": "x"}),
    ],
)
def test_a_value_arrives_with_the_type_of_its_setting(blis: Blis, flags: list[str], given: dict[str, object]) -> None:
    assert got(blis, *flags) == expected(**given)


@pytest.mark.parametrize(
    ("flag", "given"),
    [
        ("--streaming", {"streaming": True}),
        ("--no-streaming", {"streaming": False}),
        ("--quiet", {"quiet": True}),
        ("--no-quiet", {"quiet": False}),
    ],
)
def test_a_switch_can_be_turned_on_and_off(blis: Blis, flag: str, given: dict[str, object]) -> None:
    assert got(blis, flag) == expected(**given)


@pytest.mark.parametrize(
    ("text", "weights"),
    [("1,2", (1.0, 2.0)), ("1.5", (1.5,)), (" 1 , 2 ", (1.0, 2.0)), ("1,,2,", (1.0, 2.0)), ("", ())],
)
def test_a_list_is_separated_by_commas(blis: Blis, text: str, weights: tuple[float, ...]) -> None:
    assert got(blis, "--weights", text) == expected(weights=weights)


def test_a_list_of_names_stays_text(blis: Blis) -> None:
    assert got(blis, "--names", "a,1,b c") == expected(names=("a", "1", "b c"))


@pytest.mark.parametrize("flag", ["--tp", "--tensor-parallel-size"])
def test_a_flag_may_have_several_spellings(blis: Blis, flag: str) -> None:
    assert got(blis, flag, "4") == expected(tp=4)


def test_an_argument_may_come_after_the_flags(blis: Blis) -> None:
    code, out, _ = blis("toy", "--max-num-seqs", "8", "here")
    assert (code, out.strip()) == (0, expected())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["here"], "--max-num-seqs"),
        (["--max-num-seqs", "8"], "SOURCE"),
        ([*REQUIRED, "there"], "there"),
        ([*REQUIRED, "--max-num-sequences", "8"], "--max-num-sequences"),
        ([*REQUIRED, "--rate"], "--rate"),
        ([*REQUIRED, "--rate", "fast"], "--rate"),
        ([*REQUIRED, "--horizon", "1.5"], "--horizon"),
        ([*REQUIRED, "--weights", "1,x"], "--weights must be a list, comma-separated or in JSON, got '1,x'"),
        ([*REQUIRED, "--streaming=3"], "--streaming"),
        ([*REQUIRED, "--order", "lifo"], "--order must be one of fcfs, sjf, got 'lifo'"),
        ([*REQUIRED, "--rate", "0"], "--rate must be above 0, got 0"),
        ([*REQUIRED, "--rate", "nan"], "--rate must be a finite number, got nan"),
        (["here", "--max-num-seqs", "0"], "--max-num-seqs must be at least 1, got 0"),
        ([*REQUIRED, "--end", "bad"], "here: this cannot be used"),
    ],
)
def test_a_mistake_is_one_line_that_names_it_and_exit_code_2(blis: Blis, arguments: list[str], said: str) -> None:
    code, _, err = blis("toy", *arguments)
    assert code == 2
    assert err.startswith("blis toy: error: ")
    assert err.count("\n") == 1
    assert said in err


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=st.lists(st.sampled_from([*REQUIRED, "--rate", "--no-quiet", "-", "--", "1,2"]) | st.text(max_size=8)))
def test_whatever_is_typed_is_understood_or_refused_in_one_line(blis: Blis, arguments: list[str]) -> None:
    code, _, err = blis("toy", *arguments)
    assert (code, err.count("\n")) in {(0, 0), (2, 1)}


@pytest.mark.parametrize(("end", "code"), [("done", 0), ("failed", 1), ("interrupted", 130), ("too many", 1)])
def test_the_exit_code_shows_how_the_command_ended(blis: Blis, end: str, code: int) -> None:
    assert blis("toy", *REQUIRED, "--end", end)[0] == code


def test_a_bug_is_not_passed_off_as_the_users_mistake(blis: Blis) -> None:
    with pytest.raises(ZeroDivisionError):
        blis("toy", *REQUIRED, "--end", "bug")


def test_help_shows_defaults_and_choices_but_no_hidden_setting(blis: Blis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    code, out, _ = blis("toy", "--help")
    rows = [" ".join(line.strip("│").split()) for line in out.splitlines() if line.startswith("│")]
    assert code == 0
    assert "--order TEXT Order of the queue. One of: fcfs, sjf. [default: fcfs]" in rows
    assert "--weights LIST Coefficients. [default: 1.0,2.5]" in rows
    assert "--tp,--tensor-parallel-size N GPUs. [default: 0]" in rows
    assert "--streaming --no-streaming Whether to stream. [default: on]" in rows
    assert "--quiet Whether to print less." in rows
    assert "--label TEXT What to call it (default: nothing)." in rows
    assert "* --max-num-seqs N Requests in a step. [required]" in rows
    assert "secret" not in out


def test_a_used_up_resource_of_the_machine_is_one_line(blis: Blis) -> None:
    assert blis("toy", *REQUIRED, "--end", "too many")[2] == "blis toy: error: too many open files\n"


def test_help_has_settings_below_their_headings(blis: Blis) -> None:
    sections = blis("toy", "--help")[1].split("╭─ ")[1:]
    first_lines = [section.splitlines()[:2] for section in sections]
    assert [(heading.split(" ─")[0], row.strip("│* ").split()[0]) for heading, row in first_lines] == [
        ("Arguments", "SOURCE"),
        ("Options", "--max-num-seqs"),
        ("Taste", "--label"),
        ("Help", "--help"),
    ]


def test_help_begins_with_what_a_command_adds_to_its_parents(blis: Blis) -> None:
    _, out, _ = blis("run", "--help-all")
    assert out.index("─ Workload ─") < out.index("─ Model and GPU ─") < out.index("─ Judging the run ─")
