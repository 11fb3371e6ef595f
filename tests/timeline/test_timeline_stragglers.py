import time

import pytest

from tests.cases import refusals
from workbench.timeline import Dose, Sleeper, StragglerTrace


def sleeper_on(slept_s, excess_s=0.0, least_s=0.0):
    """Make a sleeper whose clock stands still but for sleeps, which take `excess_s` too long and are noted."""
    now_s = [100.0]

    def sleep(seconds):
        slept_s.append(seconds)
        now_s[0] += seconds + excess_s

    return Sleeper(least_s=least_s, clock=lambda: now_s[0], sleep=sleep)


def test_a_straggler_moves_on_every_epoch_until_the_trace_starts_again_or_never():
    trace = StragglerTrace.round_robin(3, 8.0, iterations_per_epoch=10)
    assert trace.as_grid() == "rank 0 | 8 . .\nrank 1 | . 8 .\nrank 2 | . . 8"
    assert [trace.skewness(1, iteration) for iteration in (0, 9, 10, 19, 20)] == [1, 1, 8, 8, 1]
    assert [trace.stragglers(iteration) for iteration in (0, 10, 20, 30, 40)] == [(0,), (1,), (2,), (0,), (1,)]
    assert StragglerTrace.none(4).stragglers(7) == ()
    fixed = StragglerTrace.fixed(4, {1: 2.5, 3: 6})
    assert fixed.as_grid() == "rank 0 | .\nrank 1 | 2.5\nrank 2 | .\nrank 3 | 6"
    assert [fixed.skewness(rank, 1_000_000) for rank in range(4)] == [1, 2.5, 1, 6]


def test_a_real_rank_is_as_many_times_slower_as_the_fastest_of_its_step():
    # Step 0: 2, 4 and 3 s, the fastest 2; step 1: 3, 3 and 6 s, the fastest 3.
    trace = StragglerTrace.measured([[2, 3], [4, 3], [3, 6]], iterations_per_epoch=10)
    assert trace.as_grid() == "rank 0 | .   .\nrank 1 | 2   .\nrank 2 | 1.5 2"
    assert trace.skewness(2, 10) == 2


def test_a_record_of_a_trace_has_its_values_and_a_digest_that_tells_it_from_others():
    record = StragglerTrace.fixed(2, {1: 2.5}).as_record()
    assert (record["iterations_per_epoch"], record["skewness"]) == (1, [[1.0], [2.5]])
    assert record["sha256"] == StragglerTrace.fixed(2, {1: 2.5}).digest != StragglerTrace.none(2).digest


test_a_trace_that_cannot_be_is_refused = refusals(
    (lambda: StragglerTrace.fixed(4, {2: 0.5}), "skewness of rank 2 is 0.5; it must be finite and at least 1"),
    (lambda: StragglerTrace.fixed(4, {4: 2}), "names rank 4; it must be in 0..3"),
    (lambda: StragglerTrace(rows=((1, 2), (1,))), r"rows has \[2, 1\] epochs"),
    (lambda: StragglerTrace(rows=()), "at least one rank"),
    (lambda: StragglerTrace.round_robin(2, 2, iterations_per_epoch=0), "iterations_per_epoch is 0"),
    (lambda: StragglerTrace.measured([[1.0], [0.0]]), r"seconds of rank 1 is \[0.0\]"),
    (lambda: StragglerTrace.none(2).skewness(2, 0), "rank is 2; it must be in 0..1"),
    (lambda: StragglerTrace.none(2).skewness(0, -1), "iteration is -1"),
    (lambda: Sleeper().owe(-1.0), "seconds is -1.0"),
)


def test_what_a_sleep_took_too_long_counts_against_the_next_debt_however_many_follow():
    asked_s = []
    sleeper = sleeper_on(asked_s, excess_s=0.5)
    # Owe 2, sleep 2.5; owe 2 more, 1.5 are left, sleep 2: in all 4 owed, 4.5 slept.
    assert [sleeper.owe(2.0), sleeper.owe(2.0)] == [2.5, 2.0]
    assert asked_s == [2.0, 1.5]
    assert (sleeper.dose, sleeper.debt_s) == (Dose(intended_s=4.0, delivered_s=4.5), -0.5)
    assert (sleeper.dose.error, Dose().error) == (0.125, 0)
    asked_s = []
    sleeper = sleeper_on(asked_s, excess_s=0.375)
    for _ in range(1_000):
        sleeper.owe(0.125)
    # Each sleep lasts 0.125 + 0.375 s and so pays for four debts.
    assert len(asked_s) == 250
    assert sleeper.dose == Dose(intended_s=125.0, delivered_s=125.0)


def test_a_short_debt_waits_until_it_has_grown_or_is_flushed_and_a_sleep_that_ended_early_is_slept_on():
    sleeper = sleeper_on([], least_s=1.0)
    assert [sleeper.owe(0.375), sleeper.owe(0.375), sleeper.owe(0.375)] == [0, 0, 1.125]
    sleeper.owe(0.25)
    assert [sleeper.flush(), sleeper.flush()] == [0.25, 0]
    assert sleeper.dose == Dose(intended_s=1.375, delivered_s=1.375)
    asked_s = []
    sleeper = sleeper_on(asked_s, excess_s=-0.5)
    assert [sleeper.owe(2.0), sleeper.flush()] == [1.5, 0]
    assert asked_s == [2.0, 0.5]


def test_real_sleeps_deliver_what_was_owed():
    sleeper = Sleeper()
    start_s = time.perf_counter()
    for _ in range(40):
        sleeper.owe(0.0005)
    sleeper.flush()
    assert time.perf_counter() - start_s >= 0.02
    assert sleeper.dose.intended_s == pytest.approx(0.02)
    assert sleeper.debt_s <= 0
