"""Fault traces: grids that print and parse, draws from a seed, bad input."""

import math
from statistics import mean

import pytest

from workbench.timeline import faults
from workbench.timeline.faults import Fault, FaultKind, FaultScope, FaultSpan, FaultTrace

DAY_S = 86_400
GRID = """
machine 0 | .  S . H R
machine 1 | r3 . . H R
machine 2 | .  . b . .
root      | .  . X . .
store     | X  . . . .
"""


def hardware(time_s, *machines):
    scope = FaultScope.MACHINE if len(machines) == 1 else FaultScope.MACHINES
    return Fault(time_s=time_s, kind=FaultKind.HARDWARE, scope=scope, machines=machines)


def trace_of(num_machines, duration_s, *faults):
    return FaultTrace(num_machines=num_machines, duration_s=duration_s, faults=faults)


def test_a_grid_says_what_fails_when_and_prints_again():
    trace = FaultTrace.from_grid(GRID, step_s=10)
    assert (trace.num_machines, trace.duration_s) == (3, 50)
    seen = [(fault.time_s, fault.scope.value, fault.machines, fault.lost) for fault in trace.faults]
    assert seen == [
        (0, "store", (), ()),
        (0, "rank", (1,), ()),
        (10, "machine", (0,), ()),
        (20, "root", (), ()),
        (20, "replica", (2,), ()),
        (30, "machines", (0, 1), (0, 1)),
        (40, "rack", (0, 1), (0, 1)),
    ]
    assert trace.faults[1].rank == 3
    assert FaultTrace.from_grid(trace.as_grid(step_s=10), step_s=10) == trace
    assert trace.as_grid(step_s=10) == GRID.strip()


def test_regular_faults_come_at_even_distances_from_half_a_distance_on():
    # Four a day are one every 6 hours: the first after 3.
    trace = FaultTrace.regular(3, DAY_S, faults_per_day=4)
    assert [fault.time_s / 3600 for fault in trace.faults] == [3, 9, 15, 21]
    assert [fault.machines for fault in trace.faults] == [(0,), (1,), (2,), (0,)]
    assert FaultTrace.regular(3, DAY_S, faults_per_day=0).faults == ()


def test_a_machine_fails_at_exponential_gaps_by_its_rate_and_in_the_kinds_asked_for():
    # 2,000 machines x 30 days x 0.05 a day = 3,000 faults with standard deviation 55; a quarter of them hardware.
    trace = faults.poisson_faults(
        2000, duration_s=30 * DAY_S, failures_per_machine_day=0.05, hardware_share=0.25, seed=1
    )
    assert abs(len(trace.faults) - 3000) < 4 * math.sqrt(3000)
    hard = trace.num_of(FaultKind.HARDWARE)
    assert abs(hard - len(trace.faults) / 4) < 4 * math.sqrt(3000 * 0.25 * 0.75)
    assert trace.faults_per_day() == len(trace.faults) / 30
    # The mean gap is 1/10 of a day; of exponential gaps a share of 1/e is longer than the mean.
    trace = faults.poisson_faults(1, duration_s=500 * DAY_S, failures_per_machine_day=10, seed=5)
    gaps = [after.time_s - before.time_s for before, after in zip(trace.faults, trace.faults[1:], strict=False)]
    assert mean(gaps) == pytest.approx(DAY_S / 10, rel=0.05)
    assert sum(gap > DAY_S / 10 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.03)


def test_fewer_machines_or_days_have_the_same_faults_as_more():
    more = faults.poisson_faults(40, duration_s=60 * DAY_S, failures_per_machine_day=0.1, seed=7)
    fewer = faults.poisson_faults(20, duration_s=30 * DAY_S, failures_per_machine_day=0.1, seed=7)
    assert fewer.faults == tuple(fault for fault in more.faults if fault.machines[0] < 20 and fault.time_s < 30 * DAY_S)
    assert fewer.digest != faults.poisson_faults(20, duration_s=30 * DAY_S, failures_per_machine_day=0.1, seed=8).digest


def test_a_rack_fails_as_a_whole_and_the_last_may_be_smaller():
    trace = faults.rack_faults(10, machines_per_rack=4, duration_s=100 * DAY_S, failures_per_rack_day=0.2, seed=0)
    assert {fault.machines for fault in trace.faults} == {(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)}
    assert all(fault.scope is FaultScope.RACK and fault.lost for fault in trace.faults)


def test_dated_faults_are_as_many_as_stated_within_their_span():
    spans = [FaultSpan(start_s=10, end_s=20, num_faults=5), FaultSpan(start_s=30, end_s=31, machines_each=None)]
    trace = faults.dated_faults(4, spans, duration_s=40, seed=3)
    assert [10 <= fault.time_s <= 20 for fault in trace.faults] == [True] * 5 + [False]
    assert trace.faults[-1].machines == (0, 1, 2, 3)
    assert trace != faults.dated_faults(4, spans, duration_s=40, seed=4)


def test_merged_traces_keep_the_order_of_time_and_a_changed_record_is_refused():
    one, other = (trace_of(2, 9, hardware(time_s, 0)) for time_s in (5, 2))
    assert [fault.time_s for fault in FaultTrace.merged([one, other]).faults] == [2, 5]
    trace = FaultTrace.from_grid(GRID, step_s=10)
    assert FaultTrace.from_record(trace.as_record()) == trace
    with pytest.raises(ValueError, match="sha256"):
        FaultTrace.from_record(trace.as_record() | {"duration_s": 60})


def fault(**options):
    return lambda: Fault(**({"time_s": 0.0, "kind": FaultKind.SOFTWARE} | options))


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (fault(time_s=-1.0, machines=(0,)), "time_s is -1.0"),
        (fault(machines=()), r"machines is \(\); a fault of scope machine must name 1"),
        (fault(machines=(1, 1), scope=FaultScope.MACHINES), "different machines"),
        (fault(machines=(0,), scope=FaultScope.RANK), "rank is None"),
        (fault(machines=(0,), scope=FaultScope.STORE), "must name 0"),
        (lambda: trace_of(2, 9, hardware(1, 2)), r"machines is \(2,\); it must be in 0..1"),
        (lambda: trace_of(2, 9, hardware(9, 0)), "time_s is 9; it must be below duration_s, 9"),
        (lambda: trace_of(2, 10, hardware(0, 0), hardware(0, 1)).as_grid(step_s=10), "must stand apart"),
        (lambda: trace_of(1, 20, hardware(3, 0)).as_grid(step_s=10), "must be a multiple of step_s, 10"),
        (lambda: FaultTrace.merged([FaultTrace.none(2, 9), FaultTrace.none(3, 9)]), "must be one and the same"),
        (lambda: faults.poisson_faults(2, duration_s=9, hardware_share=1.5, seed=0), "hardware_share is 1.5"),
        (
            lambda: faults.rack_faults(2, machines_per_rack=3, duration_s=9, failures_per_rack_day=1, seed=0),
            "per_rack is 3",
        ),
        (lambda: FaultTrace.regular(2, 9, faults_per_day=-1), "faults_per_day is -1"),
        (lambda: FaultTrace.from_grid("machine 0 | q", step_s=1), "word is 'q'"),
        (lambda: FaultTrace.from_grid("machine 1 | S", step_s=1), "rows are"),
    ],
)
def test_faults_and_traces_that_cannot_be_are_refused(call, rule):
    with pytest.raises(ValueError, match=rule):
        call()
