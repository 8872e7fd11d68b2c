"""Scenarios that are repeated: caches that fill, leaks that do not stop, and what the message says of them."""

import sys

import pytest

from culeak.command import find_command

SCENARIO = """
    import culeak
    import pytest
    from gpu import Tensor, occupy

    cache = {}
    requests = []

    class Session:
        pass

    rounds = []

    def warms_up():
        rounds.append(1)
        if len(rounds) <= 3:
            cache[len(rounds)] = Tensor(1 << 20)

    def replaces():
        cache["last"] = Tensor(1 << 20)

    def makes_garbage():
        session = Session()
        session.itself, session.memory = session, Tensor(1 << 20)

    def remembers():
        requests.append(Tensor(1 << 20))
        cache["last"] = Tensor(1 << 20)
"""


def test_a_scenario_that_fills_a_cache_replaces_or_makes_garbage_passes(run):
    result = run(
        SCENARIO
        + """
    def test_warms_up():
        assert culeak.repeat_until_stable(warms_up) == 4

    def test_replaces():
        assert culeak.repeat_until_stable(replaces) == 2

    def test_makes_garbage():
        assert culeak.repeat_until_stable(makes_garbage) == 2

    def test_does_nothing():
        assert culeak.repeat_until_stable(lambda: None) == 2
""",
        "--culeak",
    )
    result.assert_outcomes(passed=4)


def test_a_leak_fails_with_its_line_and_its_holder_and_no_other_line(run):
    result = run(
        SCENARIO
        + """
    def test_remembers():
        culeak.repeat_until_stable(remembers, at_most=4)
""",
        "--culeak",
        "--culeak-why",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*StillGrowing: GPU memory grows in every round: 4 MiB in 4 blocks after 4 rounds",
            "*4 MiB in 4 blocks (device, GPU 0)",
            "*test_it.py:26: in remembers",
            "*requests.append(Tensor(1 << 20))",
            "*held by test_it.requests*",
        ]
    )
    result.stdout.no_fnmatch_line("*cache?\"last\"? = *")


def test_as_a_with_block_it_judges_the_rounds_after_the_block(run):
    result = run(
        SCENARIO
        + """
    def test_warms_up():
        with culeak.repeating(warms_up, until="stable"):
            assert rounds == []
            requests.append(Tensor(1 << 20))
        assert len(rounds) == 4

    def test_remembers():
        with pytest.raises(AssertionError, match="after 4 rounds"):
            with culeak.repeating(remembers, at_most=4):
                pass

    def test_the_block_fails():
        with pytest.raises(ZeroDivisionError):
            with culeak.repeating(lambda: rounds.append("never")):
                1 / 0
        assert "never" not in rounds

    def test_other_ends_are_refused():
        with pytest.raises(ValueError, match="must be 'stable'"):
            with culeak.repeating(warms_up, until="empty"):
                pass
""",
        "--culeak",
    )
    result.assert_outcomes(passed=4)


def test_a_cache_that_needs_more_rounds_gets_them(run):
    result = run(
        SCENARIO
        + """
    def test_is_cut_short():
        with pytest.raises(AssertionError, match="warms_up"):
            culeak.repeat_until_stable(warms_up, at_most=3)

    def test_is_long_enough():
        rounds.clear()
        cache.clear()
        culeak.repeat_until_stable(warms_up, at_most=4)

    def test_compares_nothing():
        with pytest.raises(ValueError, match="2 or more"):
            culeak.repeat_until_stable(warms_up, at_most=1)
""",
        "--culeak",
    )
    result.assert_outcomes(passed=3)


def test_suppressed_call_sites_may_grow(run, pytester):
    pytester.makefile(".supp", known="leak:remembers")
    source = SCENARIO + """
    def test_remembers():
        culeak.repeat_until_stable(remembers)
"""
    run(source, "--culeak", "--culeak-suppressions", "known.supp").assert_outcomes(passed=1)


def test_an_exception_of_the_scenario_is_its_own(run):
    result = run(
        SCENARIO
        + """
    def test_raises():
        with pytest.raises(ZeroDivisionError):
            culeak.repeat_until_stable(lambda: 1 / 0)
""",
        "--culeak",
    )
    result.assert_outcomes(passed=1)


def test_without_culeak_the_scenario_runs_once_with_a_warning(run):
    result = run(
        SCENARIO
        + """
    def test_remembers():
        with pytest.warns(UserWarning, match="run pytest with --culeak"):
            assert culeak.repeat_until_stable(remembers) == 1
        assert len(requests) == 1
"""
    )
    result.assert_outcomes(passed=1)


def test_a_scenario_in_a_pool_whose_blocks_are_unknown_has_no_verdict(run, cupy):
    result = run(
        """
        import culeak
        import cupy
        from gpu import driver

        def test_in_a_pool():
            cupy.grow(driver, 8 << 20)
            culeak.repeat_until_stable(lambda: None)
        """,
        "--culeak",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*CannotJudge: No verdict on GPU memory: 8 MiB in CuPy's pool: which part is in use is unknown; *"])


def test_with_sampled_stacks_there_is_no_verdict(run, pytester):
    # This sets the variables that name the driver and the command.
    run("def test_nothing(): pass").assert_outcomes(passed=1)
    source = """
        import culeak
        import gpu

        culeak.repeat_until_stable(lambda: gpu.occupy(1 << 20))
    """
    script = pytester.makepyfile(repeats=source)
    result = pytester.run(find_command(), "run", "-q", "--no-report", "-o", "recorded", "--sample", "1TiB", "--", sys.executable, script)
    assert result.ret != 0
    result.stderr.fnmatch_lines(["*CannotJudge: No verdict on GPU memory: rounds are compared by call site, and stacks were sampled*"])
