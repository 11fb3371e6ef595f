"""Benchmarks of the failure simulator and of planning: 1,000 and 16,384 machines, and how time grows.

A tenth of the failures loses no machine; the trace's draw and the placement are part of what is timed.
"""

import math
import time
from collections.abc import Callable
from functools import partial

from workbench.study.measuring import Benchmark, BenchmarkRow
from workbench.techniques.gemini import cost
from workbench.techniques.gemini.cost import DAY_S, FaultTrace, poisson_faults
from workbench.techniques.gemini.method.placement import placement, recovery_probability
from workbench.techniques.gemini.method.recovery import Held, plan_recovery
from workbench.techniques.gemini.method.waste import gemini

NUM_DAYS = 30
HARDWARE_SHARE = 0.9
SMALL, LARGE = 1000, 16_384
SMALL_S, LARGE_S = 2.0, 60.0  # what was asked
PLANNED_S, PROBABILITY_S = 1.0, 0.1  # for 1,000 machines; ours
ROUNDS = 3  # the least time counts
GROWTH_SLACK = 1.5  # clocks and caches: more than this above events x log(machines) is growth of another kind


def drawn(num_machines: int) -> FaultTrace:
    return poisson_faults(num_machines, duration_s=NUM_DAYS * DAY_S, hardware_share=HARDWARE_SHARE, seed=0)


def setting_of(num_machines: int) -> cost.Setting:
    """Return the paper's job with two replicas and standby machines for one in a hundred."""
    options = {"placement": placement(num_machines, 2), "num_standbys": num_machines // 100}
    return cost.Setting(job=cost.GPT2_100B, policy=gemini(cost.GPT2_100B), **options)


def least_s(call: Callable[[], object]) -> tuple[float, object]:
    """Return the least CPU seconds of a call, and its last result."""
    seconds = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        result = call()
        seconds.append(time.thread_time() - began)
    return min(seconds), result


def draw_and_simulate(num_machines: int) -> tuple[FaultTrace, cost.TrainingRun]:
    trace = drawn(num_machines)
    return trace, cost.simulate_training(setting_of(num_machines), trace)


def sizes() -> list[BenchmarkRow]:
    rows, work = [], {}
    for number, asked_s in ((SMALL, SMALL_S), (LARGE, LARGE_S)):
        seconds, (trace, run) = least_s(partial(draw_and_simulate, number))
        whole = math.isclose(run.productive_s + math.fsum(run.wasted_s.values()), run.duration_s)
        name = f"Simulator: {number:,} machines, {NUM_DAYS} days, {len(trace.faults):,} failures"
        rows.append(BenchmarkRow.of_seconds(name, seconds, asked_s, equal=whole))
        work[number] = seconds / (len(trace.faults) * math.log(number))
    growth = work[LARGE] / work[SMALL]
    asked = {"asked": f"at most {GROWTH_SLACK:g}", "holds": growth <= GROWTH_SLACK}
    name = "Simulator: growth over failures x log(machines)"
    return [*rows, BenchmarkRow(name=name, figure=growth, unit="x", **asked)]


def definition() -> list[BenchmarkRow]:
    trace, setting = drawn(SMALL), setting_of(SMALL)
    began = time.thread_time()
    literal = cost.simulate_training_by_definition(setting, trace)
    middle = time.thread_time()
    fast = cost.simulate_training(setting, trace)
    ended = time.thread_time()
    agree = math.isclose(fast.productive_s, literal.productive_s) and fast.num_recoveries == literal.num_recoveries
    ratio = (middle - began) / (ended - middle)
    name = "Simulator: every iteration over event by event"
    return [BenchmarkRow(name=name, figure=ratio, unit="x", asked="both agree", holds=agree)]


def planning() -> list[BenchmarkRow]:
    """Measure how long 1,000 machines take to be planned for, a third of them lost, and to be counted, five lost."""
    lost, placed = set(range(0, SMALL, 3)), placement(SMALL, 3)
    held: dict[int, dict[int, list[Held]]] = {machine: {} for machine in range(SMALL) if machine not in lost}
    for shard, holders in enumerate(placed.holders):
        for machine in set(holders) - lost:
            held[machine][shard] = [Held(iteration=9)]
    calls = {f"Recovery of {SMALL:,} machines planned": (lambda: plan_recovery(held, SMALL), PLANNED_S)}
    for kind in ("mixed", "ring"):
        calls[f"Recovery probability of {SMALL:,} machines, {kind}"] = (
            partial(recovery_probability, placement(SMALL, 3, kind), 5),
            PROBABILITY_S,
        )
    return [BenchmarkRow.of_seconds(name, least_s(call)[0], asked_s) for name, (call, asked_s) in calls.items()]


BENCHMARKS = [
    Benchmark(name="gemini-simulator", asks="Does thirty days' training simulate in seconds?", run=sizes),
    Benchmark(name="gemini-simulator-definition", asks="How much faster than every iteration?", run=definition),
    Benchmark(name="gemini-planning", asks="Are 1,000 machines planned for in an instant?", run=planning),
]
