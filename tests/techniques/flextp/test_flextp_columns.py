"""Resized products, figure 2; which columns a rank drops and migrates, who computes them, and how much work that is."""

import math
from types import SimpleNamespace

import pytest
import torch
from cases import refusals
from torch import nn
from torch.nn import functional

from workbench.parallel import ColumnParallelLinear, RowParallelLinear, VirtualTensorGroup
from workbench.parallel.seeds import generator_for
from workbench.techniques.flextp import method
from workbench.techniques.flextp.method import ColumnStatistics, Imputation, RankPlan, RankTimes, Selection
from workbench.techniques.flextp.runtime import Balancer, ColumnChooser, Policy, divide

N, K, NUM_OUTPUTS = 6, 9, 5


def integers(*shape, seed):
    """Small whole numbers in fp32: their sums are exact in any order."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


def normals(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(draw):
    """Draw x [N, K], weight [O, K] and the output's gradient [N, O]."""
    return draw(N, K, seed=0), draw(NUM_OUTPUTS, K, seed=1), draw(N, NUM_OUTPUTS, seed=2)


def fast_results(x, weight, grad, kept, imputation, previous, buffers):
    """Run the three products and recover both gradients."""
    part_OC = method.gradient_of_columns(grad.T, x, kept, buffers)
    part_NC = method.gradient_of_columns(grad, weight, kept, buffers)
    return (
        method.product_of_columns(x, weight, kept, buffers),
        method.recovered(part_OC, kept, x.shape[1], imputation, previous[0]),
        method.recovered(part_NC, kept, x.shape[1], imputation, previous[1]),
    )


@pytest.mark.parametrize("imputation", Imputation, ids=lambda i: i.value)
@pytest.mark.parametrize("draw", [integers, normals])
def test_fast_and_definition_agree_and_bit_for_bit_where_sums_are_exact(draw, imputation):
    for dropped in ([], [0], [8], [1, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7]):
        assert_agreement(draw, imputation, dropped)


def assert_agreement(draw, imputation, dropped):
    x, weight, grad = operands(draw)
    previous_weight, previous_input = draw(NUM_OUTPUTS, K, seed=3), draw(N, K, seed=4)
    kept = method.kept_columns(dropped, K)
    fast = fast_results(x, weight, grad, kept, imputation, (previous_weight, previous_input), method.Buffers())
    defined = (
        method.resized_product_by_definition(x, weight, dropped),
        method.resized_gradient_by_definition(grad.T, x, dropped, imputation, previous_weight),
        method.resized_gradient_by_definition(grad, weight, dropped, imputation, previous_input),
    )
    is_exact = draw is integers and imputation is not Imputation.AVERAGE
    tolerance = {"rtol": 0, "atol": 0} if is_exact else {}
    for ours, expected in zip(fast, defined, strict=True):
        torch.testing.assert_close(ours, expected, **tolerance)


def test_with_all_columns_kept_everything_is_the_plain_layer_bit_for_bit_and_nothing_is_copied():
    x, weight, grad = (tensor.requires_grad_() for tensor in operands(normals))
    output, every, buffers = functional.linear(x, weight), method.kept_columns([], K), method.Buffers()
    output.backward(grad.detach())
    plain = x.detach(), weight.detach()
    results = fast_results(*plain, grad.detach(), every, Imputation.ZERO, (None, None), None)
    assert all(map(torch.equal, results, (output, weight.grad, x.grad)))
    assert torch.equal(method.product_of_columns(*plain, every, buffers=buffers), output)
    assert method.recovered(plain[0], every, K) is plain[0]
    assert not buffers


def test_buffers_of_one_rank_serve_layers_of_different_size_without_growing_again():
    buffers, large, small = method.Buffers(), (normals(8, 10, seed=0), normals(7, 10, seed=1)), operands(normals)[:2]
    for _ in range(2):
        for x, weight in (large, small, large):
            kept = method.kept_columns([1, 2], x.shape[1])
            product = method.product_of_columns(x, weight, kept, buffers=buffers)
            torch.testing.assert_close(product, x[:, kept] @ weight[:, kept].T)
        sizes = [tensor.untyped_storage().nbytes() for tensor in buffers.values()]
        assert sizes == [4 * 7 * 8, 4 * 8 * 8]  # the larger layer's extracted weight and input


def test_a_ratio_drops_the_nearest_number_of_columns_and_never_all():
    counts = {(0.0, 8): 0, (0.5, 8): 4, (0.5, 5): 3, (0.24, 4): 1, (0.1, 4): 0, (0.99, 4): 3, (0.9, 1): 0}
    assert {case: method.num_dropped_columns(*case) for case in counts} == counts


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_resized_products_are_those_of_the_cpu():
    x, weight, grad = operands(integers)
    kept, previous = method.kept_columns([1, 3, 4], K), (None, None)
    on_cpu = fast_results(x, weight, grad, kept, Imputation.ZERO, previous, method.Buffers())
    on_gpu = fast_results(
        x.cuda(), weight.cuda(), grad.cuda(), kept.cuda(), Imputation.ZERO, previous, method.Buffers()
    )
    for ours, other in zip(on_gpu, on_cpu, strict=True):
        assert torch.equal(ours.cpu(), other)


# The worked example of figure 2, columns 2 and 4 of 4 dropped, against numbers worked by hand.
# x = 1 2 3 1    W = 1 1 2 1    grad_output = 1 0 2
#     2 1 1 3        2 1 1 2                  2 1 1
#                    1 3 2 1


def test_products_of_the_worked_example_come_out_with_kept_columns_and_are_recovered_by_the_lineage():
    example = method.worked_example()
    output, grad_weight, grad_input = example.products
    # [1·1 + 3·2, 1·2 + 3·1, 1·1 + 3·2], [2·1 + 1·2, 2·2 + 1·1, 2·1 + 1·2]
    assert output.result.tolist() == [[7, 5, 7], [4, 5, 4]]
    assert output.plain.tolist() == [[10, 9, 14], [8, 12, 10]]
    assert grad_weight.result.tolist() == [[5, 0, 5, 0], [2, 0, 1, 0], [4, 0, 7, 0]]
    assert grad_weight.plain.tolist() == [[5, 4, 5, 7], [2, 1, 1, 3], [4, 5, 7, 5]]
    assert grad_input.result.tolist() == [[3, 0, 6, 0], [5, 0, 7, 0]]
    assert grad_input.plain.tolist() == [[3, 7, 6, 3], [5, 6, 7, 5]]
    assert example.lineage == {("linear", "input"): (1, 3), ("linear", "weight"): (1, 3)}
    # 2 rows · 4 columns · 3 outputs, and 2 · 2 · 3
    assert {(product.plain_multiplications, product.multiplications) for product in example.products} == {(24, 12)}
    _, grad_weight, grad_input = method.worked_example(Imputation.AVERAGE).products
    assert grad_weight.result.tolist() == [[5, 5, 5, 5], [2, 1.5, 1, 1.5], [4, 5.5, 7, 5.5]]
    assert grad_input.result.tolist() == [[3, 4.5, 6, 4.5], [5, 6, 7, 6]]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def statistics_of(change):
    """Statistics of a weight [1, K] whose columns moved by what is given."""
    statistics = ColumnStatistics(torch.zeros(1, len(change)))
    statistics.update_(torch.tensor([change]), [])
    return statistics


def test_the_change_of_a_column_is_its_weights_mean_distance_and_dropped_columns_keep_theirs():
    statistics = ColumnStatistics(torch.tensor([[1.0, 2.0, 0.0], [3.0, -1.0, 0.0]]))
    assert statistics.change.tolist() == [math.inf, math.inf, math.inf]
    statistics.update_(torch.tensor([[2.0, 2.0, 4.0], [0.0, -3.0, -2.0]]), [])
    assert statistics.change.tolist() == [2.0, 1.0, 3.0]  # (1 + 3) / 2, (0 + 2) / 2, (4 + 2) / 2
    statistics.update_(torch.tensor([[2.0, 2.5, 4.0], [0.0, -3.0, -2.0]]), [])
    assert statistics.change.tolist() == [0.0, 0.25, 0.0]  # since the last update, not since the first

    def change_after(is_incremental):
        statistics = ColumnStatistics(torch.zeros(1, 3), is_incremental=is_incremental)
        statistics.update_(torch.tensor([[5.0, 6.0, 7.0]]), [2])
        statistics.update_(torch.tensor([[9.0, 6.0, 8.0]]), torch.tensor([1]))
        return statistics.change.tolist()

    assert change_after(True) == [4.0, 6.0, 1.0]  # column 1 was dropped: as in the first epoch
    assert change_after(False) == [4.0, 0.0, 1.0]
    never_measured = ColumnStatistics(torch.zeros(1, 3))
    never_measured.update_(torch.tensor([[5.0, 0.0, 7.0]]), [1])
    order = method.priority_list(never_measured, selection=Selection.PRIORITY, generator=generator())
    assert order.tolist() == [0, 2, 1]  # and is not dropped next


@pytest.mark.parametrize("num_rows", [1, 64, 65, 200])
def test_one_pass_measures_what_the_definition_says_in_single_precision_on_a_copy(num_rows):
    then, now = (torch.randn(num_rows, 7, generator=generator(seed)) for seed in (0, 1))
    weight = then.clone()
    statistics = ColumnStatistics(weight)
    weight.copy_(now)  # as an optimizer does
    statistics.update_(weight, [])
    torch.testing.assert_close(statistics.change, method.column_change_by_definition(now, then))
    narrow = ColumnStatistics(torch.zeros(4096, 1, dtype=torch.bfloat16))
    narrow.update_(torch.ones(4096, 1, dtype=torch.bfloat16), [])
    assert narrow.change.dtype == torch.float32 and narrow.change.tolist() == [1.0]


@pytest.mark.parametrize(
    ("selection", "change"),
    [(Selection.RANDOM, [9.0, 1.0, 1.0, 5.0]), (Selection.PRIORITY, [2.0, 2.0, 2.0, 2.0]), (Selection.PRIORITY, None)],
)
def test_random_choices_and_ties_and_the_first_choice_follow_the_callers_generator(selection, change):
    statistics = ColumnStatistics(torch.zeros(1, 4)) if change is None else statistics_of(change)
    before = torch.random.get_rng_state()
    generators = [generator(seed) for seed in (*range(40), 7)]
    first = [method.priority_list(statistics, selection=selection, generator=source)[0].item() for source in generators]
    assert set(first) == {0, 1, 2, 3} and first[7] == first[40]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_columns_below_the_random_walk_are_candidates_and_a_layer_drops_them_but_at_least_the_decayed_ratio():
    # θ_micro = 0.25 · 0.01 / √100
    assert method.micro_threshold(0.01, 100) == pytest.approx(0.00025)
    statistics = statistics_of([1.0, 2.0, 3.0, 4.0])
    assert [method.candidate_share(statistics, threshold) for threshold in (0.5, 2.0, 2.5, 9.0)] == [0, 0.25, 0.5, 1]
    assert method.candidate_share(ColumnStatistics(torch.zeros(1, 4)), 1e9) == 0  # nothing measured yet
    # a γ = 0.8 · 0.5 = 0.4
    assert method.layer_ratios([0.0, 0.4, 0.75, 1.0], 0.5) == pytest.approx([0.4, 0.4, 0.75, 0.99])
    assert method.layer_ratios([0.0, 1.0], 0.0) == [0.0, 0.0]  # a rank with nothing to lose drops nothing


def test_ratios_of_mean_gamma_share_what_lies_above_the_decayed_ratio_by_candidates():
    # a γ = 0.4 each; 4 · 0.5 - 1.6 = 0.4 remain, of which a layer has its share of 2.15
    ratios = method.mean_ratios([0.0, 0.4, 0.75, 1.0], 0.5)
    assert ratios == pytest.approx([0.4, 0.4 + 0.16 / 2.15, 0.4 + 0.3 / 2.15, 0.4 + 0.4 / 2.15])
    assert method.mean_ratios([0.0, 0.0], 0.5) == pytest.approx([0.5, 0.5])  # no candidates: as Pri
    assert method.mean_ratios([0.0, 1.0], 0.9) == pytest.approx([0.81, 0.99])  # the second is full
    assert method.mean_ratios([0.3, 1.0], 0.0) == [0.0, 0.0]


def columns(*indices):
    return torch.tensor(indices, dtype=torch.int64)


def dealt_out(division):
    moved = division.migrations
    return [(sent.sender, {rank: sent.columns_of(rank).tolist() for rank in sent.parts}) for sent in moved]


# Ten columns on each of four ranks. Rank 1 migrates eight and drops one; rank 0 drops two.
DROPPED = {0: columns(9, 2), 1: columns(6), 2: columns(), 3: columns()}
DIVISION = divide(10, num_ranks=4, dropped=DROPPED, migrated={1: columns(7, 0, 3, 9, 4, 2, 8, 5)})


def test_receivers_are_served_in_the_order_of_their_numbers_and_a_rank_keeps_the_others_in_ascending_order():
    # Eight columns for ranks 2, 3 and 0 end at 8/3, 16/3 and 8, rounded down: 2, 5 and 8.
    assert dealt_out(DIVISION) == [(1, {2: [7, 0], 3: [3, 9, 4], 0: [2, 8, 5]})]
    assert list(DIVISION.migrations[0].parts) == [2, 3, 0]
    # Several senders do not receive.
    migrated = {3: columns(0, 1, 2), 0: columns(5, 4)}
    division = divide(6, num_ranks=4, dropped={1: columns()}, migrated=migrated)
    assert dealt_out(division) == [(0, {1: [5], 2: [4]}), (3, {1: [0], 2: [1, 2]})]
    kept = {0: [0, 1, 3, 4, 5, 6, 7, 8], 1: [1], 2: [*range(10)], 3: [*range(10)]}
    assert {rank: left.tolist() for rank, left in DIVISION.kept.items()} == kept
    assert [DIVISION.dropped_share(rank) for rank in range(4)] == [0.2, 0.1, 0, 0]


def divided(dropped, migrated):
    moved = {rank: columns(*indices) for rank, indices in migrated.items()}
    divide(4, num_ranks=2, dropped={0: columns(*dropped)}, migrated=moved)


test_columns_that_cannot_be_divided_are_refused = refusals(
    (lambda: divided([4], {}), r"dropped and migrated of rank 0 has column 4; it must be in \[0, 4\)"),
    (lambda: divided([1], {0: [2, 1]}), "dropped and migrated of rank 0 has a column twice"),
    (lambda: divided([], {1: [0, 4]}), r"migrated of rank 1 has column 4; it must be in \[0, 4\)"),
    (lambda: divided([1, 2], {0: [0, 3]}), "dropped and migrated of rank 0 has all 4 columns; it must leave at least"),
)


def test_layers_weigh_as_much_as_their_weights_in_what_a_rank_has_kept_and_dropped():
    # Two ranks; shards [4, 3], [5, 4] and, never multiplied, [4, 8]: sizes 12 and 20. Rank 0 drops a quarter: 1 of 3
    # and 1 of 4 columns. Rank 1 migrates half: 2 of 3 and 2 of 4.
    group, work_of = VirtualTensorGroup(2), {}

    def times_of(rank, iteration, work):
        work_of[rank] = work
        return RankTimes(own_s=1.0, product_s=1.0, work=work)

    times = SimpleNamespace(of=times_of, is_proportional=True)
    first, second = ColumnParallelLinear(3, 8, group), RowParallelLinear(8, 5, group)
    model = nn.ModuleList([first, second, ColumnParallelLinear(8, 8, group)])
    plan = method.Plan(ranks=(RankPlan(dropped=0.25), RankPlan(migrated=0.5)))
    balancer = Balancer(model, group, Policy(solution="given", plan=plan, selection="Rd"), modelled=times)
    with balancer.iteration():
        second(first(torch.ones(2, 3))).sum().backward()
    assert work_of == pytest.approx({0: (12 * 2 / 3 + 20 * 3 / 4) / 32, 1: (12 * 1 / 3 + 20 * 2 / 4) / 32})
    assert balancer.dropped_share == pytest.approx((12 * 1 / 3 + 20 * 1 / 4) / 32 / 2)  # the mean of both ranks


def chosen(chooser, **shares):
    """(dropped, migrated) of every layer."""
    return [(choice.dropped.tolist(), choice.migrated.tolist()) for choice in chooser.choose(RankPlan(**shares))]


def move(weight, *steps):
    """Move the columns of a weight of two rows by so much on average: twice as much in one row, not in the other."""
    with torch.no_grad():
        weight[0] += 2 * torch.tensor(steps)


def measured(*changes, **policy):
    """A chooser whose one weight has moved by so much in its first epoch, and the weight."""
    weight = nn.Parameter(torch.zeros(2, len(changes)))
    chooser = ColumnChooser([weight], Policy(**{"solution": "ZERO", "selection": "Pri", **policy}), rank=0)
    move(weight, *changes)
    chooser.close_epoch([weight])
    return chooser, weight


SIX = (5.0, 1.0, 3.0, 0.0, 4.0, 2.0)  # least moved first: 3, 1, 5, 2, 4, 0


def test_the_least_moved_columns_are_dropped_and_the_next_ones_migrate():
    chooser, _ = measured(*SIX)
    assert chosen(chooser, dropped=0.5) == [([1, 3, 5], [])]
    assert chosen(chooser, migrated=0.5) == [([], [3, 1, 5])]
    assert chosen(chooser, dropped=1 / 3, migrated=1 / 3) == [([1, 3], [5, 2])]
    assert chosen(chooser) == [([], [])]
    # Migrated columns follow from the plan alone: 0.4 of 6 are 2 columns. 0.59 would be 4, and none be left.
    assert chosen(chooser, dropped=0.59, migrated=0.4) == [([1, 3, 5], [2, 4])]
    assert chosen(chooser, dropped=0.005, migrated=0.99) == [([], [3, 1, 5, 2, 4])]


def test_columns_dropped_at_any_time_of_an_epoch_keep_their_statistic_and_migrated_ones_are_measured_anew():
    # Columns 1 and 3 are dropped, 5 and 2 migrated; those and 0 and 4 have moved since. Least first: 3, 5, 2, 0, 4, 1.
    chooser, weight = measured(*SIX)
    chosen(chooser, dropped=1 / 3, migrated=1 / 3)
    move(weight, 0.5, 0.0, 0.25, 0.0, 0.75, 0.125)
    chooser.close_epoch([weight])
    assert chosen(chooser, migrated=0.9) == [([], [3, 5, 2, 0, 4])]
    # Nothing was dropped in this epoch: column 1 has not moved, and goes to the head with all others that have not.
    chooser.close_epoch([weight])
    move(weight, 1.0, 0.0, 2.0, 3.0, 4.0, 5.0)
    chooser.close_epoch([weight])
    assert chosen(chooser, migrated=0.9) == [([], [1, 0, 2, 3, 4])]
    chooser, weight = measured(*SIX)
    chosen(chooser, dropped=0.5)
    chosen(chooser)  # the straggler has vanished within the epoch
    move(weight, 0.5, 0.0, 0.25, 0.0, 0.75, 0.0)
    chooser.close_epoch([weight])
    assert chosen(chooser, migrated=0.9) == [([], [3, 2, 0, 4, 1])]  # statistics 0.5, 1, 0.25, 0, 0.75, 2
    chooser, weight = measured(*SIX, is_incremental=False)
    first = chosen(chooser, dropped=0.5)
    move(weight, 0.5, 0.0, 0.25, 0.0, 0.75, 0.0)
    chooser.close_epoch([weight])
    assert chosen(chooser, dropped=0.5) == first  # for ever


def two_layers(frozen=(), **policy):
    """Layers of 4 and of 8 columns. Two of the first have moved by less than 1 = 4 iterations · 0.25."""
    weights = [nn.Parameter(torch.zeros(2, 4)), nn.Parameter(torch.zeros(2, 8))]
    for layer in frozen:
        weights[layer].requires_grad_(False)
    more = {"solution": "ZERO", "iterations_per_epoch": 4, "micro_threshold": 0.25, **policy}
    chooser = ColumnChooser(weights, Policy(**more), rank=0)
    for layer, steps in enumerate([(3.0, 0.5, 1.0, 0.75), (9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0)]):
        if layer not in frozen:
            move(weights[layer], *steps)
    chooser.close_epoch(weights)
    return chooser


def test_layers_that_move_little_drop_more_where_layers_have_ratios_of_their_own():
    # γ = 1/4. The first layer has 2 of 4 candidates; the second none and drops 0.8 γ = 0.2: 1.6 of 8 columns.
    assert chosen(two_layers(selection="PriDiffR"), dropped=0.25) == [([1, 3], []), ([6, 7], [])]
    more = {"selection": "PriDiffE", "pruning_ratio": 0.25}
    assert chosen(two_layers(**more), dropped=0.25) == [([1, 3], []), ([6, 7], [])]
    assert chosen(two_layers(selection="Pri"), dropped=0.25) == [([1], []), ([6, 7], [])]
    # A rank that is no straggler drops no candidates, and migration knows none.
    assert chosen(two_layers(selection="PriDiffR")) == [([], []), ([], [])]
    assert [len(migrated) for _, migrated in chosen(two_layers(selection="PriDiffR"), migrated=0.25)] == [1, 2]
    # Before the first statistics no column is a candidate: 0.8 columns of 4, and 1.6 of 8.
    differs = Policy(solution="ZERO", selection="PriDiffR", micro_threshold=0.25)
    fresh = ColumnChooser([torch.zeros(2, 4), torch.zeros(2, 8)], differs, rank=0)
    assert [len(dropped) for dropped, _ in chosen(fresh, dropped=0.25)] == [1, 2]
    with pytest.raises(ValueError, match="micro_threshold is 0; it must be above 0 where selection is PriDiffR"):
        ColumnChooser([torch.zeros(2, 4)], Policy(solution="ZERO", selection="PriDiffR"), rank=0)


def test_a_frozen_layer_has_no_candidates_since_it_has_not_moved_because_it_may_not():
    # 0.8 γ of 4 columns are 0.8, of 8 are 1.6; which ones of the frozen layer is left to chance.
    (first, _), (second, _) = chosen(two_layers(selection="PriDiffR", frozen=[0]), dropped=0.25)
    assert (len(first), second) == (1, [6, 7])
    thawed = [nn.Parameter(torch.zeros(2, 4), requires_grad=False)]
    policy = Policy(solution="ZERO", selection="PriDiffR", micro_threshold=0.25, iterations_per_epoch=4)
    chooser = ColumnChooser(thawed, policy, rank=0)
    thawed[0].requires_grad_()
    move(thawed[0], 3.0, 0.5, 1.0, 0.75)
    chooser.close_epoch(thawed)
    assert chosen(chooser, dropped=0.25) == [([1, 3], [])]


@pytest.mark.parametrize("name", ["lists", "was_dropped", "change", "then"])
def test_a_state_of_fewer_layers_is_refused(name):
    chooser = two_layers()
    state = chooser.state_dict()
    with pytest.raises(ValueError, match="shorter"):
        chooser.load_state_dict(state | {name: state[name][:1]})


def test_the_first_choice_is_random_and_every_rank_and_seed_has_a_stream_of_its_own():
    def first(seed=0, rank=0, selection="Pri"):
        policy = Policy(solution="ZERO", selection=selection, seed=seed)
        return chosen(ColumnChooser([torch.zeros(1, 64)] * 2, policy, rank), migrated=0.5)

    assert first() == first()
    stream = generator_for(0, "flextp.columns.0")  # one list after the other, layer by layer
    drawn = [torch.randperm(64, generator=stream)[:32].tolist() for _ in range(2)]
    assert [migrated for _, migrated in first()] == drawn
    layers = {tuple(migrated) for lists in (first(), first(rank=1), first(seed=1)) for _, migrated in lists}
    assert len(layers) == 6
    assert first(selection="Rd") == first()


@pytest.mark.parametrize("policy", [{"selection": "Rd"}, {"solution": "Baseline"}, {"solution": "MIG"}], ids=str)
def test_random_choices_look_at_no_weights_and_hold_for_an_epoch(policy):
    chooser, weight = measured(*SIX, **policy)
    twin, _ = measured(*reversed(SIX), selection="Rd")
    first, _, again = [chosen(chooser, migrated=share) for share in (0.9, 0.5, 0.9)]
    assert first == again == chosen(twin, migrated=0.9)
    assert chooser._statistics[0].then_OK.numel() == 0  # no copy of the weight
    orders = {str(first)}
    for _ in range(3):
        chooser.close_epoch([weight])
        orders.add(str(chosen(chooser, migrated=0.9)))
    assert len(orders) > 1
