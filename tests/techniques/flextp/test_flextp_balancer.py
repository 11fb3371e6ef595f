"""Balancing reacts at run time, all ranks alike, on virtual and on real ranks."""

import random
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from cases import refusals, tidy
from flextp_cases import ranks, shares
from torch import nn

from workbench import parallel
from workbench.parallel import ProcessTensorGroup, TransformerConfig, TransformerLayer, VirtualTensorGroup
from workbench.techniques.flextp import runtime
from workbench.techniques.flextp.method import SPEED_SHARE, Costs, RankTimes, settled_resizing
from workbench.techniques.flextp.runtime import PATIENCE, Meter, ModelledTimes, Policy, balance, check_model
from workbench.timeline.stragglers import StragglerTrace

CONFIG = TransformerConfig(hidden_size=16, num_heads=4, mlp_size=32)
WIDE = TransformerConfig(hidden_size=128, num_heads=4, mlp_size=512)
COSTS = Costs.straight(alloc_s=0.01, extract_s=0.02, communicate_s=0.1, compute_s=1.0)


def two_layers(group, config=CONFIG):
    layers = [TransformerLayer(config, group, site=f"layers.{index}", dtype=torch.float64) for index in range(2)]
    return nn.Sequential(*layers)


def train(model, balancer, num_iterations, before=lambda iteration: None, shape=(2, 3, 16), dtype=torch.float64):
    """Train on one batch, and give the loss of every iteration."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(3))
    losses = []
    for iteration in range(num_iterations):
        before(iteration)
        optimizer.zero_grad()
        with balancer.iteration():
            loss = (model(x) - x.roll(1, -1)).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return losses


def balanced(trace, build=two_layers, costs=COSTS, times=ModelledTimes, **policy):
    group = VirtualTensorGroup(trace.num_ranks)
    model, modelled = build(group), times(trace, product_s=1.0, other_s=0.2)
    return model, balance(model, group, policy=Policy(**policy) if policy else None, modelled=modelled, costs=costs)


def test_one_real_rank_alone_trains_without_a_pre_test(pools):
    check_model(two_layers, 2)  # says nothing of a model that can be balanced

    def alone():
        group_of_one = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
        group = ProcessTensorGroup(group_of_one)
        model = two_layers(group)
        balancer = balance(model, group)
        train(model, balancer, PATIENCE + 2)
        return balancer.costs is None and balancer.plan.is_plain

    assert pools(2).run(tidy, alone) == [True, True]


LATE_S = 0.4


def test_where_the_clock_runs_on_in_messages_waiting_for_others_is_no_time_of_ones_own(pools):
    def first_waits_for_second():
        group = ProcessTensorGroup()
        (rank,) = group.local_ranks
        model, meter = two_layers(group), Meter(rank)
        meter.clock, meter.is_wall_clock = time.perf_counter, True  # as on CUDA
        balancer = runtime.Balancer(model, group, Policy(solution="Baseline"), meters={rank: meter})
        x = torch.ones(2, 3, 16, dtype=torch.float64)
        dist.barrier()
        start_s = time.perf_counter()
        meter.begin(0)
        time.sleep(LATE_S * rank)
        model(x)
        own_s, passed_s = meter.end(1.0).own_s, time.perf_counter() - start_s
        balancer.remove()
        return own_s, passed_s, group.watch is not nullcontext

    (own_s, passed_s, watches_after), _ = pools(2).run(first_waits_for_second)
    assert passed_s > LATE_S / 2 and own_s < passed_s - LATE_S / 4
    assert not watches_after


def grid(*rows):
    """A trace of an iteration a column."""
    skewness = tuple(tuple(1.0 if word == "." else float(word) for word in row) for row in rows)
    return StragglerTrace(rows=skewness, iterations_per_epoch=1)


@pytest.mark.parametrize(
    ("patience", "trace", "steps"),
    [
        # The plan follows an iteration after its times; the first one is made in any case.
        (1, grid("..4...3333", ".........."), [(1, True), (3, False), (4, True), (7, False)]),
        # A single disturbed iteration makes no straggler.
        (2, grid("..4...3333", ".........."), [(2, True), (8, False)]),
        # Two ranks that are disturbed one after the other move neither.
        (2, grid("8888.88888", ".....3....", "..........", ".........."), [(2, False)]),
        # Slow from 9 to 17: in windows 8 to 11 three times of four, in 16 to 19 twice, which moves nothing.
        (4, grid("." * 9 + "8" * 9 + "." * 6, "." * 24), [(4, True), (12, False)]),
    ],
)
def test_with_patience_a_rank_is_helped_after_the_first_window_in_which_it_is_mostly_slow(patience, trace, steps):
    model, balancer = balanced(trace, solution="SEMI", refine=True, patience=patience)
    train(model, balancer, trace.num_epochs)
    assert [(step.iteration, step.plan.is_plain) for step in balancer.steps] == steps


def test_with_patience_the_times_of_as_many_iterations_travel_as_one_message():
    model, balancer = balanced(StragglerTrace.fixed(4, {1: 4.0}), solution="SEMI", patience=3)
    train(model, balancer, 8)
    times = [message for message in balancer.group.traffic.messages if message.site == "flextp.times"]
    assert [message.message_bytes for message in times] == [3 * 3 * 8] * 2 and balancer.plan.ranks[1].removed > 0
    plans = [message for message in balancer.group.traffic.messages if message.site == "flextp.plan"]
    assert len(plans) == len(balancer.steps) == 1  # rank 0 plans for all


@pytest.mark.parametrize(
    ("patience", "trace"),  # of two middle ones that most like before: 3, not 8, and 3, not 4
    [(2, grid("..833", ".....")), (3, grid("...3822", "....2..")), (4, grid("....24833", "........."))],
)
def test_with_patience_the_median_iteration_is_planned_from(patience, trace):
    model, balancer = balanced(trace, solution="SEMI", refine=True, patience=patience)
    train(model, balancer, 2 * patience + 1)
    assert [rank.product_s for rank in balancer.steps[-1].times] == [3.0, 1.0]


def test_without_stragglers_training_is_the_plain_one_bit_for_bit_and_migration_alone_loses_nothing():
    plain = train(two_layers(VirtualTensorGroup(4)), SimpleNamespace(iteration=nullcontext), 4)
    for solution in ("ZERO", "MIG", "SEMI"):
        model, balancer = balanced(StragglerTrace.none(4), solution=solution)
        assert train(model, balancer, 4) == plain
        assert balancer.plan.is_plain
    model, balancer = balanced(StragglerTrace.fixed(4, {1: 8.0, 2: 3.0}), solution="MIG")
    assert train(model, balancer, 4) == pytest.approx(plain, rel=1e-10)
    assert balancer.plan.senders == (1, 2)


def test_by_default_as_much_is_dropped_as_the_plan_says():
    dear = Costs.straight(communicate_s=100.0, compute_s=1.0)
    model, balancer = balanced(StragglerTrace.fixed(4, {0: 8.0}), partial(two_layers, config=WIDE), dear)
    train(model, balancer, PATIENCE + 2, shape=(2, 3, 128))
    planned = balancer.plan.ranks[0].dropped
    assert planned == pytest.approx((8.2 - (0.2 + 1.28) / SPEED_SHARE) / 8)  # nobody but the straggler at that level
    assert balancer.dropped_share == pytest.approx(planned / 4, abs=1 / 4 / 32)  # to the nearest of 32 columns or more


@dataclass(frozen=True)
class NarrowTimes(ModelledTimes):
    """Products take a quarter of their time however few their columns."""

    is_proportional = False
    fixed_part = 0.25

    def of(self, rank, iteration, work):
        skewness = self.trace.skewness(rank, iteration)
        product_s = skewness * self.product_s * (self.fixed_part + (1 - self.fixed_part) * work)
        return RankTimes(own_s=self.other_s + product_s, product_s=product_s, work=work)


@pytest.mark.parametrize("is_broken_off", [True, False])
def test_the_times_before_an_iteration_without_products_count_once(is_broken_off):
    model, balancer = balanced(grid("....4...", "........"), solution="SEMI", refine=True, patience=2)
    train(model, balancer, 5)
    for _ in range(2):
        with suppress(KeyboardInterrupt), balancer.iteration():
            if is_broken_off:
                raise KeyboardInterrupt
    train(model, balancer, 2)
    assert [step.plan.is_plain for step in balancer.steps] == [True]


def test_a_straggler_whose_narrow_products_take_long_looks_no_slower_for_it():
    # Rank 0 takes 2 s, the others 1; it must drop 2/3 to be down to 2 (0.25 + 0.75 / 3) = 1. Were its time then divided
    # by 1/3, it would look as if products took 3 s, and drop more, for ever.
    costs = Costs.straight(whole_s=100.0, compute_s=1.0, fixed_share=0.25)
    trace = StragglerTrace.fixed(4, {0: 2.0})
    model, balancer = balanced(trace, costs=costs, times=NarrowTimes, selection="Rd")
    train(model, balancer, 6)
    (step,) = balancer.steps
    assert (step.plan.ranks[0].dropped, step.plan.migrated) == (pytest.approx(2 / 3), 0)
    assert [times.product_s for times in step.times] == pytest.approx([1.5, 0.75, 0.75, 0.75])


def test_the_run_time_settles_on_the_plan_that_is_predicted():
    wide = partial(parallel.ColumnParallelLinear, 4096, 4, site="only")  # so that shares are rounded to 1 / 4096
    policy = {"solution": "ZERO", "selection": "Rd", "reference": "current mean"}
    model, balancer = balanced(StragglerTrace.fixed(4, {0: 8.0}), wide, **policy)
    for _ in range(8):
        with balancer.iteration():
            sum(part.sum() for part in model(torch.ones(1, 4096))).backward()
    assert len(balancer.steps) == 4
    settled = settled_resizing(ranks(8, 1, 1, 1, other_s=0.2))
    assert shares(balancer.plan, "dropped") == pytest.approx(shares(settled, "dropped"), abs=1e-3)


def test_a_batch_without_products_just_before_the_pre_test_leaves_it_to_measure(pools):
    def skips_the_last_batch_of_a_window():
        group = ProcessTensorGroup()
        model = two_layers(group)
        balancer = balance(model, group, policy=Policy(patience=2))
        train(model, balancer, 1)
        with balancer.iteration():
            pass
        train(model, balancer, 1)
        return balancer.costs is not None

    assert all(pools(2).run(skips_the_last_batch_of_a_window))


@pytest.mark.parametrize(
    "policy", [{"selection": "Pri"}, {"selection": "PriDiffE", "pruning_ratio": 0.5, "micro_threshold": 1e-4}], ids=str
)
def test_a_rank_that_has_recovered_drops_nothing_any_more(policy):
    # While rank 0 still drops columns, the current mean lies below everybody's un-resized time.
    trace = grid("8" * 6 + "." * 12, *["." * 18] * 3)
    model, balancer = balanced(trace, times=NarrowTimes, solution="ZERO", **policy)
    train(model, balancer, 6)
    assert balancer.plan.ranks[0].dropped >= 0.5
    train(model, balancer, 12)
    assert balancer.plan.is_plain


@pytest.mark.parametrize("patience", [1, 4])
def test_a_state_that_is_loaded_twice_is_the_same_state(patience):
    trace, policy = grid("." * 8 + "4" * 8, "." * 16), {"solution": "SEMI", "patience": patience}
    model, balancer = balanced(trace, **policy)
    train(model, balancer, 6)
    state, steps = balancer.state_dict(), []
    for _ in range(2):
        model, balancer = balanced(trace, **policy)
        balancer.load_state_dict(state)
        train(model, balancer, 10)
        steps.append(balancer.steps)
    assert steps[0] == steps[1] and not balancer.plan.is_plain


def test_ranks_agree_on_every_plan_from_measured_times_whatever_their_timing(pools):
    trace = StragglerTrace.round_robin(2, 8.0, iterations_per_epoch=2 * PATIENCE)

    def on_a_rank():
        group = ProcessTensorGroup()
        model, pause = two_layers(group, WIDE), random.Random(group.local_ranks[0])  # products are more than noise
        balancer = balance(model, group, trace=trace)
        losses = train(model, balancer, 4 * PATIENCE, lambda _: time.sleep(pause.random() / 50), shape=(8, 32, 128))
        return losses, balancer.steps, balancer.costs

    first, second = pools(2).run(on_a_rank)
    assert first == second
    _, steps, costs = first
    assert costs is not None
    assert steps[0].times[0].product_s > 3 * steps[0].times[1].product_s  # of the first epoch: rank 0 straggles
    assert steps[0].plan.ranks[0].removed > 0.3
    removed = [rank.removed for rank in steps[-1].plan.ranks]  # of the second
    assert removed[1] > 0.3 and removed[0] < removed[1]


def test_ranks_that_differ_in_policy_or_in_type_or_training_of_weights_are_refused_everywhere(pools):
    def differs_on_the_second_rank():
        group = ProcessTensorGroup()
        (rank,) = group.local_ranks
        with pytest.raises(ValueError, match="policy of rank 1 differs"):
            balance(two_layers(group), group, policy=Policy(solution="ZERO", iterations_per_epoch=2 + rank))
        for change in (lambda model: model.float(), lambda model: model[0].mlp.requires_grad_(False)):
            model = two_layers(group)
            if rank == 1:
                change(model)
            with pytest.raises(ValueError, match="policy of rank 1 differs"):
                balance(model, group)
        return True

    assert pools(2).run(differs_on_the_second_rank) == [True, True]


NO_STRAGGLER = ModelledTimes(StragglerTrace.none(2))


def refused(**arguments):
    group = VirtualTensorGroup(2)
    balance(two_layers(group), group, **{"modelled": NO_STRAGGLER, "costs": COSTS, **arguments})


test_bad_input_is_refused_before_any_rank_starts = refusals(
    (lambda: check_model(lambda group: nn.Linear(2, 2), 2), "model is a Linear without parallel linears"),
    (lambda: check_model(lambda _: two_layers(VirtualTensorGroup(2)), 2), "group of .* is another one"),
    (lambda: refused(modelled=ModelledTimes(StragglerTrace.none(3))), "trace is of 3 ranks; it must be of"),
    (lambda: refused(trace=StragglerTrace.none(2)), "trace is given; it must be None where `modelled` is"),
    (lambda: refused(modelled=None), "modelled is None"),
    (lambda: refused(costs=None), "costs is None"),
    (lambda: refused(slowness=2), "slowness is 2; it must be 1"),
    (lambda: Meter(0, slowness=0.5), "slowness is 0.5; it must be at least 1"),
)


def test_an_iteration_is_refused_inside_of_another_after_removal_and_on_another_device():
    model, balancer = balanced(StragglerTrace.none(2), solution="SEMI")
    with pytest.raises(ValueError, match="replaced already"):
        balance(model, balancer.group, modelled=NO_STRAGGLER, costs=COSTS)
    with pytest.raises(RuntimeError, match="the one before has not ended"), balancer.iteration(), balancer.iteration():
        pass
    train(model, balancer, 1)  # the refusal has ended the outer one
    model.to("meta")
    with pytest.raises(RuntimeError, match="moved from cpu to meta since it was balanced"), balancer.iteration():
        pass
    balancer.remove()
    with pytest.raises(RuntimeError, match="not balanced any more"), balancer.iteration():
        pass
    balance(model.to_empty(device="cpu"), balancer.group, modelled=NO_STRAGGLER, costs=COSTS)
