"""The engines of Vidur and `blis vidur`, as entry points register them."""

import pytest

from blis_sim.cli.main import run
from blis_sim.engine.engine_defaults import BatchLimits, engine_defaults, engine_problem
from blis_sim.engine.scheduler.registry import ENGINES
from blis_sim.wings.vidur.rules import RULES


def test_every_set_of_rules_is_an_engine_with_its_own_defaults() -> None:
    assert set(RULES) <= set(ENGINES.names())
    for name in RULES:
        defaults = engine_defaults(name)
        assert defaults.limits == BatchLimits(512 if name == "sarathi" else 4096, 128)
        assert defaults.block_size_tokens == (1 if name == "lightllm" else 16)


def test_lightllm_has_one_stage_and_blocks_of_one_token() -> None:
    said = engine_problem("lightllm", 2, None, offloads=False, drafts=False)
    assert said == "--pipeline-parallel-size must be 1 with --engine lightllm, got 2"
    said = engine_problem("lightllm", 1, 16, offloads=False, drafts=False)
    assert said == "--block-size must be 1 with --engine lightllm, got 16"
    assert engine_problem("sarathi", 2, 8, offloads=False, drafts=False) is None


def test_the_help_of_the_command_shows_the_flags_that_are_used_most(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["vidur", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--replica_config_model_name" in shown
    assert "--metrics_config_cache_dir" not in shown
