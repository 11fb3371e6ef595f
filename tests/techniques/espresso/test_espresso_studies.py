"""Advice, optima of small jobs, and the rows of what is measured, by hand."""

from itertools import product

import pytest

from workbench.cluster.machines import Link, Machines
from workbench.compression.costs import CodecTimes, Processor
from workbench.compression.profiling import CodecTime, times_of
from workbench.techniques.espresso.advice import begins_to_pay, shortened
from workbench.techniques.espresso.method import Option
from workbench.techniques.espresso.method.certificate import best_by_exhaustion
from workbench.techniques.espresso.method.job import Job
from workbench.timeline.gradients import Gradients

OPTIONS = [
    Option.parse(text)
    for text in ("intra.reduce-scatter inter.allreduce intra.allgather", "comp.gpu flat.allgather* decomp.gpu")
]


def gradients(num_elements, gap_s):
    names = tuple(f"t{number}" for number in range(len(num_elements)))
    order = {"tensors": names, "num_elements": tuple(num_elements), "gap_s": tuple(gap_s)}
    return Gradients(name="toy", forward_s=1e-3, source="a test", **order)


def rows_of(rows, quantity):
    return [row for row in rows if row["quantity"] == quantity]


def test_compressing_pays_up_to_the_rate_at_which_it_gains_five_per_cent():
    # From 2 at 10 Gbit/s to 1 at 1000: a gain of 1.05 is 0.95 of two decades away.
    assert begins_to_pay({10: 2.0, 1000: 1.0}) == pytest.approx(10 * 100**0.95)
    assert begins_to_pay({10: 1.02, 100: 1.0}) == 0.0 and begins_to_pay({10: 2.0, 100: 1.5}) == 100
    assert begins_to_pay({10: 2.0, 100: 1.0, 400: 1.5}) < 100  # it pays again, but not at 100


def test_a_shortened_model_keeps_its_largest_gradients_and_when_they_are_ready():
    found = shortened(gradients([5, 1, 9, 7, 2], [1.0, 2.0, 3.0, 4.0, 5.0]))
    assert found.num_elements == (5, 9, 7) and found.gap_s == (1.0, 5.0, 4.0)


def test_the_optimum_is_that_of_all_strategies():
    link = Link(bandwidth_bytes_per_s=1e9, latency_s=1e-4)
    machines = Machines(num_machines=2, gpus_per_machine=2, intra=link, inter=link)
    costs = {processor: lambda elements: 1e-4 + 1e-9 * elements for processor in Processor}
    codec = CodecTimes(name="test", encode_s=costs, decode_s=costs, sent_bytes=0.1)
    job = Job(gradients([10**6, 10**5, 10**6], [1e-3, 2e-3, 1e-4]), machines, codec)
    strategy, best_s = best_by_exhaustion(job, OPTIONS)
    assert best_s == pytest.approx(min(map(job.iteration_s, product(OPTIONS, repeat=3))))
    assert job.iteration_s(strategy) == pytest.approx(best_s)


def test_a_profile_says_what_a_planner_wants_to_know():
    profile = [CodecTime(num_elements=n, encode_s=1e-3 * n, decode_s=1e-4 * n, payload_bytes=n // 8) for n in (8, 80)]
    found = times_of("test", dict.fromkeys(Processor, profile))
    assert found.sent_bytes == 1 / 8 and float(found.encode_s[Processor.CPU](44)) == pytest.approx(0.044)
