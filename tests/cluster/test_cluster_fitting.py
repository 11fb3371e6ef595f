"""Fitting: exact lines come back, noise is reported, bad samples are named."""

import math
import random

import pytest

from workbench.cluster import Algorithm, Collective, Link, Sample, collective_time_s, fit

LINK = Link(bandwidth_bytes_per_s=125e6, latency_s=100e-6, source="test")


def test_samples_on_a_line_give_back_its_latency_and_bandwidth():
    # 0.5 s and then 1 s for every MB
    found = fit([(1e6, 1.5), (2e6, 2.5), (4e6, 4.5)])
    assert found.latency_s == pytest.approx(0.5)
    assert found.bandwidth_bytes_per_s == pytest.approx(1e6)
    assert found.residuals_s == pytest.approx((0, 0, 0), abs=1e-12)
    assert found.r_squared == pytest.approx(1)


def test_samples_of_different_collectives_and_numbers_of_ranks_give_one_link():
    kinds = [
        (Collective.ALL_REDUCE, Algorithm.RING, 4),
        (Collective.ALL_GATHER, Algorithm.RING, 3),
        (Collective.BROADCAST, Algorithm.BINOMIAL, 8),
    ]
    samples = [
        Sample(
            message_bytes=size,
            time_s=collective_time_s(collective, algorithm, num_ranks, size, LINK),
            num_ranks=num_ranks,
            collective=collective,
            algorithm=algorithm,
        )
        for collective, algorithm, num_ranks in kinds
        for size in (1e3, 1e6)
    ]
    found = fit(samples)
    assert found.latency_s == pytest.approx(LINK.latency_s)
    assert found.bandwidth_bytes_per_s == pytest.approx(LINK.bandwidth_bytes_per_s)
    assert found.link("test run").time_s(1e6) == pytest.approx(LINK.time_s(1e6))


def test_relative_errors_count_so_small_messages_keep_their_say():
    # Three times that no line meets. Relative errors of 1/t^2 weight: with x = latency, y = seconds per byte,
    # minimise (x+y-1)^2 + ((x+2y-2)/2)^2 + ((x+3y-4)/4)^2. Its normal equations are
    # (21/16) x + (27/16) y = 7/4 and (27/16) x + (41/16) y = 11/4, so x = (28 * 41 - 27 * 44) / 132 = -40/132 < 0:
    # latency is held at 0 and y = 11/4 / (41/16) = 44/41.
    found = fit([(1, 1.0), (2, 2.0), (3, 4.0)])
    assert found.latency_s == 0
    assert 1 / found.bandwidth_bytes_per_s == pytest.approx(44 / 41)
    assert found.residuals_s == pytest.approx((1 - 44 / 41, 2 - 88 / 41, 4 - 132 / 41))


def test_residuals_and_r_squared_of_a_line_that_misses():
    # With relative weights the two times at size 1 are met between: 1 and 3 s, weights 1 and 1/9; 10 s at size 10.
    found = fit([(1, 1.0), (1, 3.0), (10, 10.0)])
    at_one = (1 * 1 + 3 / 9) / (1 + 1 / 9)  # 1.2
    assert found.residuals_s == pytest.approx((1 - at_one, 3 - at_one, 0))
    mean = (1 / 1 + 1 / 3 + 1 / 10) / (1 + 1 / 9 + 1 / 100)
    around_mean = (1 - mean) ** 2 + (3 - mean) ** 2 / 9 + (10 - mean) ** 2 / 100
    around_line = 0.2**2 + 1.8**2 / 9
    assert found.r_squared == pytest.approx(1 - around_line / around_mean)


def test_noise_of_five_percent_moves_the_bandwidth_by_less():
    noise = random.Random(0)
    sizes = [10**power for power in range(2, 9) for _ in range(8)]
    samples = [(size, LINK.time_s(size) * noise.gauss(1, 0.05)) for size in sizes]
    found = fit(samples)
    assert found.bandwidth_bytes_per_s == pytest.approx(LINK.bandwidth_bytes_per_s, rel=0.05)
    assert found.latency_s == pytest.approx(LINK.latency_s, rel=0.05)
    assert 0.95 < found.r_squared < 1


@pytest.mark.parametrize(
    ("samples", "rule"),
    [
        ([], "samples has 0 entries"),
        ([(1e6, 1.0)], "samples has 1 entries"),
        ([(1e6, 1.0), (1e6, 1.1)], "different message sizes"),
        ([(1e6, 2.0), (2e6, 1.0)], "no bandwidth fits"),
        ([(1e6, 0.0), (2e6, 1.0)], "Sample.time_s is 0.0"),
        ([(-1, 1.0), (2e6, 1.0)], "Sample.message_bytes is -1"),
        ([(1e6, math.nan), (2e6, 1.0)], "Sample.time_s is nan"),
        ([(1e6, 1.0, 4), (2e6, 1.0)], "it must hold Samples or pairs"),
    ],
)
def test_bad_samples_are_named(samples, rule):
    with pytest.raises(ValueError, match=rule):
        fit(samples)


def test_a_sample_of_one_rank_is_refused():
    with pytest.raises(ValueError, match="Sample.num_ranks is 1"):
        Sample(message_bytes=1, time_s=1, num_ranks=1)
