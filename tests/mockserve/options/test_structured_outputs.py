"""Values of --structured-outputs-config."""

import pytest

from blis_sim.options import OptionError
from mockserve.options.content import AUTO, StructuredOutputsConfig, read_structured_outputs_config


def test_reads_a_configuration() -> None:
    assert read_structured_outputs_config(None) == AUTO
    found = read_structured_outputs_config('{"backend": "guidance", "disable_any_whitespace": true}')
    assert found == StructuredOutputsConfig(backend="guidance", disable_any_whitespace=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "must be a JSON object, got 'x'"),
        ("[]", "must be a JSON object, got '\\[\\]'"),
        ('{"backend": "nope"}', "must have one of auto, xgrammar, .* as backend, got 'nope'"),
        ('{"backend": 3}', "must have a string as backend, got 3"),
        ('{"foo": 1}', "may have the fields backend, .*, got 'foo'"),
        ('{"disable_any_whitespace": "x"}', "must have true or false as disable_any_whitespace"),
        ('{"disable_any_whitespace": true}', "disable_any_whitespace is only supported for xgrammar and guidance"),
        ('{"backend": "xgrammar", "disable_additional_properties": true}', "only supported for the guidance backend"),
    ],
)
def test_refuses_what_vllm_does_not_take(text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=f"--structured-outputs-config.*{reason}"):
        read_structured_outputs_config(text)
