from blis_sim.engine.cluster.disaggregation.deciders import DECIDERS, Prompt


def test_the_threshold_is_about_what_the_decode_instance_lacks() -> None:
    decide = DECIDERS["prefix-threshold"].separates
    assert not decide(Prompt(num_tokens=116, num_cached_tokens=100, threshold_tokens=16))
    assert decide(Prompt(num_tokens=117, num_cached_tokens=100, threshold_tokens=16))


def test_the_simple_deciders_do_not_look_at_the_prompt() -> None:
    prompts = [Prompt(1, 0, 16), Prompt(1000, 992, 16)]
    assert [DECIDERS["always"].separates(prompt) for prompt in prompts] == [True, True]
    assert [DECIDERS["never"].separates(prompt) for prompt in prompts] == [False, False]
