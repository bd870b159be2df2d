import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.bench import BenchError
from blis_sim.bench.datasets import DatasetOptions, SampleRequest, samples_of
from blis_sim.options import BlisError, OptionError


def samples(**options: Any) -> list[SampleRequest]:
    return samples_of(DatasetOptions(**{"num_prompts": 20, **options}))


def test_random_lengths_are_fixed_without_a_range_and_even_within_one() -> None:
    fixed = samples(random_input_len=100, random_output_len=10, random_prefix_len=7)
    assert {(each.input_tokens, each.output_tokens, each.prefix_tokens) for each in fixed} == {(100, 10, 7)}
    assert {each.prefix_group for each in fixed} == {"shared"}
    drawn = samples(num_prompts=2000, random_input_len=100, random_range_ratio=0.25)
    lengths = [each.input_tokens for each in drawn]
    assert (min(lengths), max(lengths)) == (75, 125)
    assert sum(lengths) / len(lengths) == pytest.approx(100, abs=1.5)


def test_equal_seeds_give_equal_lengths() -> None:
    assert samples(random_range_ratio=0.5) == samples(random_range_ratio=0.5)
    assert samples(random_range_ratio=0.5) != samples(random_range_ratio=0.5, seed=1)


def test_general_lengths_come_before_those_of_the_data_set() -> None:
    assert samples(input_len=5, output_len=6)[0] == SampleRequest(input_tokens=5, output_tokens=6)
    assert samples(dataset_name="prefix_repetition", output_len=6)[0].output_tokens == 6


def test_each_prefix_is_repeated_equally_often() -> None:
    found = samples(dataset_name="prefix_repetition", num_prompts=23, prefix_repetition_num_prefixes=5)
    groups = [each.prefix_group for each in found]
    assert {group: groups.count(group) for group in groups} == {f"prefix-{number}": 4 for number in range(5)}
    assert groups != sorted(groups)


def test_custom_lines_have_the_asked_length_or_their_own(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"prompt": "twelve chars", "output_tokens": 3}\n{"prompt": "four"}\n')
    given: dict[str, Any] = {"dataset_name": "custom", "dataset_path": str(path), "disable_shuffle": True}
    found = samples(**given, no_oversample=True)
    assert found == [
        SampleRequest(input_tokens=3, output_tokens=256, text="twelve chars"),
        SampleRequest(input_tokens=1, output_tokens=256, text="four"),
    ]
    with pytest.raises(BenchError, match="prompt 2: has no output_tokens"):
        samples(**given, custom_output_len=-1)


def test_a_file_with_too_few_prompts_gives_some_again(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    given: dict[str, Any] = {"dataset_name": "custom", "dataset_path": str(path)}
    assert len(samples(**given)) == 20
    assert len(samples(**given, no_oversample=True)) == 2
    assert len(samples(**given, num_prompts=1)) == 1


def test_sharegpt_asks_the_first_question_for_as_long_an_answer(tmp_path: Path) -> None:
    def talk(question: str, answer: str) -> dict[str, Any]:
        return {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}

    path = tmp_path / "talks.json"
    entries = [
        talk("q" * 40, "a" * 80),
        talk("hi", "a" * 80),
        talk("q" * 40, "no"),
        {"id": 3},
        talk("q" * 5000, "a" * 80),
    ]
    path.write_text(json.dumps(entries))
    given: dict[str, Any] = {"dataset_name": "sharegpt", "dataset_path": str(path), "no_oversample": True}
    assert samples(**given) == [SampleRequest(input_tokens=10, output_tokens=20, text="q" * 40)]
    assert [each.output_tokens for each in samples(**given, sharegpt_output_len=2)] == [2, 2]
    path.write_text("[]")
    with pytest.raises(BenchError, match="has no request that can be sent as sharegpt"):
        samples(**given)


def test_burstgpt_gives_the_lengths_of_answered_gpt_4_requests(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    path.write_text(f"{header}1,GPT-4,10,20,30,API log\n2,ChatGPT,5,5,10,API log\n3,GPT-4,7,0,7,API log\n")
    given: dict[str, Any] = {"dataset_name": "burstgpt", "dataset_path": str(path), "no_oversample": True}
    assert samples(**given) == [SampleRequest(input_tokens=10, output_tokens=20)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"random_range_ratio": 1.0}, "--random-range-ratio must be below 1, got 1"),
        ({"dataset_name": "sharegpt"}, "--dataset-name sharegpt needs --dataset-path"),
        ({"dataset_path": "x"}, "--dataset-path needs --dataset-name sharegpt, custom, burstgpt, got random"),
        ({"custom_output_len": 0}, "--custom-output-len must be above 0"),
        ({"dataset_name": "prefix_repetition", "num_prompts": 3}, "--prefix-repetition-num-prefixes must be at most"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        samples(**options)


def test_a_missing_file_is_one_line() -> None:
    with pytest.raises(BlisError, match="nowhere"):
        samples(dataset_name="sharegpt", dataset_path="nowhere.json")
