"""The pre-test: what is timed, what it is reduced to, and what it leaves behind.

Clocks are counted, so that every number is worked by hand. The n-th reading of a clock is n squared: what lies between
two readings, one after the other, takes 1, 5, 9, 13, ... seconds.
"""

import itertools
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from cases import tidy
from torch import nn
from torch.nn import functional

from workbench.parallel import ColumnParallelLinear, ProcessTensorGroup, RowParallelLinear, VirtualTensorGroup
from workbench.techniques.flextp import runtime
from workbench.techniques.flextp.method import Imputation, RankTimes
from workbench.techniques.flextp.runtime import Meter, Policy, pre_test
from workbench.timeline.stragglers import Sleeper, StragglerTrace

# Rank 1 needed 2 + 3 s, on half of its columns: with all 2 + 6 s, the slowest. The fastest multiplies for 1.5 s.
TIMES = [
    RankTimes(own_s=6.0, product_s=4.0),
    RankTimes(own_s=5.0, product_s=3.0, work=0.5),
    RankTimes(own_s=4.0, product_s=0.75, work=0.5),
]


@pytest.fixture
def three_repeats(monkeypatch):
    monkeypatch.setattr(pre_test, "REPEATS", 3)


def clock(reading):
    """Return a clock whose n-th reading is given."""
    return map(reading, itertools.count()).__next__


def steps(seconds):
    """Return a clock that shows so much more at every reading."""
    return clock(lambda n: seconds * n)


def set_clocks(monkeypatch, wall=None, thread=None):
    """Let the pre-test, and nothing else, read other clocks; steps of a second if none is given."""
    clocks = SimpleNamespace(perf_counter=wall or steps(1), thread_time=thread or steps(1))
    monkeypatch.setattr(pre_test, "time", clocks)


class Model:
    """Two equal column-parallel layers, a row-parallel one, and one that is never used, on three ranks."""

    def __init__(self, group, meters=None, **policy):
        columns = [ColumnParallelLinear(8, 12, group, seed=seed, site=f"column {seed}") for seed in (1, 2, 3)]
        self.group, self.layers = group, nn.ModuleList([*columns, RowParallelLinear(12, 8, group, site="row")])
        times = runtime.ModelledTimes(StragglerTrace.none(3))
        policy = Policy(solution="Baseline", **policy)
        self.balancer = runtime.Balancer(self.layers, group, policy, modelled=times, meters=meters)
        self.products = [layer.matrix_product for layer in self.layers]
        self.iterate(1)

    def iterate(self, num_passes):
        """Run one iteration without a straggler, through all but the third layer."""
        first, second, _, row = self.layers
        x = torch.linspace(-1, 1, 5 * 8).reshape(5, 8)
        with self.balancer.iteration():
            for _ in range(num_passes):
                pairs = zip(first.shards(x), second.shards(x), strict=True)
                row([left * right for left, right in pairs]).square().sum().backward()

    def costs(self, times=TIMES):
        return runtime.measure_costs(self.layers, self.products, self.group, times)


def test_costs_are_medians_without_the_first_run_times_the_number_of_layers_of_a_shape(monkeypatch, three_repeats):
    # Messages: five kinds of runs take turns, four times each, the first to fill caches: of 2 equal layers in 1 + 4 k
    # s, k from 0 to 19, then of 1 layer, k from 20. What migrates a quarter is the fourth kind, k = 3, 8, 13, 18: the
    # median of 33, 53, 73 s twice and of 113, 133, 153 s. Three quarters are the fifth, k one more: 4 s more. Taking
    # apart: three runs that are timed: 1, 5, 9 twice and 13, 17, 21; 25, 29, 33 twice and 37, 41, 45.
    set_clocks(monkeypatch, clock(lambda n: n * n), clock(lambda n: n * n))
    costs = Model(VirtualTensorGroup(3)).costs()
    assert [costs.communicate(share) for share in (0.25, 0.75)] == [2 * 53 + 133, 2 * 57 + 137]
    assert costs.alloc_s == 2 * 5 + 17  # the least of the shares is room for operands, the rest taking them apart
    assert [costs.extract(share) for share in (0.25, 0.75)] == [0, 2 * 29 + 41 - (2 * 5 + 17)]
    assert [costs.compute(share) for share in (0, 0.5, 1)] == [0, 0.75, 1.5]


def test_a_layer_counts_as_often_as_it_multiplied_in_the_last_iteration_that_had_products(monkeypatch):
    model = Model(VirtualTensorGroup(3))
    for num_products in (2, 1):
        for num_passes in (num_products, 0):
            model.iterate(num_passes)
        set_clocks(monkeypatch)
        costs = model.costs()
        assert (costs.communicate(0.25), costs.alloc_s) == (3 * num_products, 3 * num_products)


def test_what_the_busiest_rank_multiplies_is_no_cost_of_messages(monkeypatch):
    # Every product takes 1/32 s of a meter's clock; the three virtual ranks together have 3 of their own each, and two
    # receivers 3 more: 15. Of 1 s on the wall 17/32 are left, for each of two layers. A quarter of the third one is a
    # single column, which one receiver gets: 12, and 20/32 are left; a cost that falls to 17/32 is made level.
    meters = {rank: Meter(rank) for rank in range(3)}
    for meter in meters.values():
        meter.clock = steps(1 / 32)
    model = Model(VirtualTensorGroup(3), meters)
    set_clocks(monkeypatch)
    assert model.costs().communicate(0.25) == pytest.approx((2 * 17 + (20 + 17) / 2) / 32)
    for meter in meters.values():
        meter.clock = steps(1)
    assert model.costs().communicate(0.25) == 0  # more in products than has passed is no negative cost


def test_what_a_product_takes_however_narrow_is_told_by_ranks_that_drop_and_by_receivers(monkeypatch):
    # A product takes a second for every number it writes: of 5 rows the column-parallel ones 5 x 4 for the output and 8
    # (5 + 4) for gradients, which alone grow with the 8 columns, the row-parallel one 5 x 8 and 4 (5 + 8). With two of
    # the former 2 x 20 + 40 = 80 of 276 s do not depend on columns, where a rank drops as where it multiplies for
    # another.
    monkeypatch.setattr(Meter, "time", seconds_by_size)
    monkeypatch.setattr(pre_test, "SHARES", (0.5,))
    model = Model(VirtualTensorGroup(3), {rank: Meter(rank) for rank in range(3)})
    costs = runtime.measure_costs(model.layers, model.products, model.group, TIMES)
    assert costs.fixed_share == pytest.approx(80 / 276)
    # The fastest rank's products take 1.5 s.
    assert [costs.compute(share) for share in (0, 1)] == pytest.approx([1.5 * 80 / 276, 1.5])


def fixed_shares(shares, sender, *product_s):
    """Products' seconds by plan (plain, dropping each share, migrating each), repeat and rank."""
    return pre_test._fixed_shares(np.array(product_s, dtype=float), np.array(shares), sender)


def test_of_narrow_products_the_least_counts_for_kept_columns_the_median_for_received_and_a_line_for_shares():
    # Half of their columns save the ranks 0.3, 0.35 and 0.4 of 10 s, so that all would save 0.6, 0.7 and 0.8. Rank 2
    # says least of a fixed part, 0.2. Rank 1 migrates half, a quarter to each of the others, which is 0.8 / 4 s in
    # proportion; they take 0.4 and 0.6 more, in the median 0.5.
    fixed = fixed_shares([0.5], 1, [[10, 10, 10]], [[7, 6.5, 6]], [[14, 5, 16]])
    assert fixed == (pytest.approx(0.2), pytest.approx(0.5 - 0.2))
    # A sixteenth of a product at least and all of it at most is in proportion.
    for seconds, fixed in ((10.0, 15 / 16), (20.0, 15 / 16), (1.0, 0.0)):
        assert fixed_shares([0.5], 0, [[10, 10]], [[seconds, 20]], [[5, 10]])[0] == fixed
    # Everything takes twice as long in the second repeat. A line through 0.2 at a quarter and 0.4 at three quarters
    # weighs (0.25 x 0.2 + 0.75 x 0.4) / (0.25^2 + 0.75^2) = 0.56.
    plain, quarter, rest = ([[s, s], [2 * s, 2 * s], [s, s]] for s in (10, 8, 6))
    migrated = [[[1, 10], [1, 20], [1, 10]]] * 2  # receiving takes no time: less than nothing is fixed
    fixed = fixed_shares([0.25, 0.75], 0, plain, quarter, rest, *migrated)
    assert fixed == (pytest.approx(1 - 0.56), 0)


def seconds_by_size(meter, multiply, *operands, for_others=False):
    """Multiply, and charge a second for every number of the result."""
    result = multiply(*operands)
    meter.product_s += result.numel()
    return result


def slow_meter(rank, slowness, trace=None):
    """A meter whose every product takes 1/32 s of its clock, and that sleeps by a clock of its own."""
    now_s = [0.0]
    sleeper = Sleeper(least_s=0, clock=lambda: now_s[0], sleep=lambda seconds: now_s.__setitem__(0, now_s[0] + seconds))
    meter = Meter(rank, trace, slowness=slowness, sleeper=sleeper)
    meter.clock = steps(1 / 32)
    return meter


def multiply_once(meter):
    meter.time(functional.linear, torch.ones(1, 1), torch.ones(1, 1))
    return meter.product_s


def test_a_slower_machine_s_products_take_longer_and_its_messages_cost_no_more_and_nobody_straggles(monkeypatch):
    # At slowness 2 the 15 products take 30/32 s, so 2/32 s are left of a second, and 8/32 s beside 12. At χ = 9 rank
    # 1's three products alone would take 54/32 s. A meter is slow before its first iteration, too.
    meters = {rank: slow_meter(rank, 2.0, StragglerTrace.fixed(3, {1: 9.0})) for rank in range(3)}
    model = Model(VirtualTensorGroup(3), meters)
    set_clocks(monkeypatch)
    for meter in meters.values():
        meter.begin(0)
    assert model.costs().communicate(0.25) == pytest.approx((2 * 2 + (8 + 2) / 2) / 32)
    assert [meter.dose.straggling_s for meter in meters.values()] == [0, 0, 0]
    meters[1].begin(1)  # after the pre-test a straggler straggles again
    assert multiply_once(meters[1]) == pytest.approx(2 * 9 / 32)
    slow = slow_meter(0, 4.0)
    assert (multiply_once(slow), slow.dose.intended_s) == (pytest.approx(4 / 32), pytest.approx(3 / 32))


def test_the_slowest_rank_sends_one_layer_of_each_shape_is_run_and_nothing_is_left_of_it(three_repeats):
    model, runs = Model(VirtualTensorGroup(3), imputation=Imputation.SAME), []
    for product in model.products:
        multiply = product.multiply

        def noted(xs, weights, product=product, multiply=multiply):
            if not product.division.migrations:
                runs.append((product.site, {len(dropped) for dropped in product.division.dropped.values()}))
                return multiply(xs, weights)
            (migration,) = product.division.migrations
            runs.append((product.site, migration.sender, len(migration.columns), product.division.num_columns))
            assert [tuple(x.shape) for x in xs] == [(5, weight.shape[1]) for weight in weights]
            return multiply(xs, weights)

        product.multiply = noted
    parameters = [parameter for layer in model.layers for parameter in layer.parameters()]
    kept = [None if parameter.grad is None else parameter.grad.clone() for parameter in parameters]
    previous = [{key: grad.clone() for key, grad in product.previous.items()} for product in model.products]
    assert [bool(grads) for grads in previous] == [True, True, False, True]  # the third is never used
    model.costs()
    in_turns = [("column 1", {0}), ("column 1", {2}), ("column 1", {6}), ("column 1", 1, 2, 8), ("column 1", 1, 6, 8)]
    of_rows = [("row", {0}), ("row", {1}), ("row", {3}), ("row", 1, 1, 4), ("row", 1, 3, 4)]
    assert runs == 4 * in_turns + 4 * of_rows
    assert [(product.division, product.num_rows) for product in model.products] == [(None, n) for n in (5, 5, 0, 5)]
    for parameter, grad in zip(parameters, kept, strict=True):
        assert (parameter.grad is None and grad is None) or torch.equal(parameter.grad, grad)
    for product, before in zip(model.products, previous, strict=True):
        assert product.previous.keys() == before.keys()
        assert all(torch.equal(product.previous[key], grad) for key, grad in before.items())


def on_a_rank():
    group = ProcessTensorGroup()
    (rank,) = group.local_ranks
    meter = Meter(rank)
    model = Model(group, {rank: meter})
    meter.clock = steps((1 / 8, 1 / 2, 1 / 16)[rank])
    clocks = SimpleNamespace(perf_counter=steps(4.0 + rank), thread_time=steps((3.0, 1.0, 2.0)[rank]))
    group.traffic.clear()
    with mock.patch.object(pre_test, "time", clocks):
        costs = model.costs().as_record()
    slow = ColumnParallelLinear(64, 48, group)
    with runtime.balance(nn.ModuleList([slow]), group, policy=Policy(solution="Baseline"), slowness=4.0).iteration():
        sum(part.sum() for part in slow(torch.ones(32, 64))).backward()
    charged = slow.matrix_product.meters[rank]
    return costs, group.traffic.num_bytes(what="broadcast"), charged.dose.intended_s / charged.product_s


def test_all_ranks_plan_from_the_largest_that_any_of_them_has_measured(pools):
    # The wall: rank 2's 6 s. Products: rank 1 sends and has 3 of its own, 1/2 s each; rank 0 has 3 and 3 received of
    # 1/8 s. So 4.5 s are left for each of three layers. Taking apart: rank 0's 3 s.
    for costs, num_bytes, slept in pools(3).run(tidy, on_a_rank):
        assert costs["communicate"] == {"at_zero_s": 13.5, "per_share_s": 0}
        assert costs["alloc_s"] == 9
        assert costs["extract"] == {"at_zero_s": 0, "per_share_s": 0}
        # Broadcast seven times at each share: of 8 columns 2 and 6 of the weight [4, 8], and the gradient [5, 4] at
        # both shares; of 4 columns 1 and 3 of x [5, 4] and the weight [8, 4].
        assert num_bytes == 7 * 4 * (4 * (2 + 6) + 2 * 5 * 4 + (5 + 8) * (1 + 3))
        assert slept == pytest.approx(3 / 4)  # of a balanced model's products at slowness 4


def test_columns_are_sent_as_narrow_as_the_products_were_whatever_autocast_is_around_the_pre_test():
    sent_bytes = {}
    for ran_narrow, is_narrow in itertools.product((True, False), repeat=2):
        group = VirtualTensorGroup(3)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=ran_narrow):
            model = Model(group, {rank: Meter(rank) for rank in range(3)})
        group.traffic.clear()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_narrow):
            runtime.measure_costs(model.layers, model.products, group, TIMES)
        moved = [message for message in group.traffic.messages if message.site.endswith(".migration")]
        sent_bytes[ran_narrow, is_narrow] = sum(message.message_bytes for message in moved)
        assert ran_narrow or {product.dtype for product in model.products} == {torch.float32}
    assert 0 < 2 * sent_bytes[True, False] == sent_bytes[False, False]
    assert sent_bytes[True, True] == sent_bytes[True, False] and sent_bytes[False, True] == sent_bytes[False, False]
