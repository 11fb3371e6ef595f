"""Products that ranks divide equal the plain ones, also of models that torch's `parallelize_module` has cut."""

import copy
import itertools
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from workbench.models import Cut
from workbench.parallel import ColumnParallelLinear, ProcessTensorGroup, RowParallelLinear, VirtualTensorGroup
from workbench.techniques.flextp import Policy
from workbench.techniques.flextp.method import Imputation, Scheme
from workbench.techniques.flextp.runtime import FlexibleProduct, Meter, ModelledTimes, balance, divide
from workbench.timeline import StragglerTrace

SIZES_KEPT = 4  # numbers of rows whose last gradient Same looks back at
WIDTH, INNER, ROWS = 13, 24, 5


def perceptron(group):
    first = ColumnParallelLinear(WIDTH, INNER, group, seed=1, site="first", dtype=torch.float64)
    return first, RowParallelLinear(INNER, WIDTH, group, seed=2, site="second", dtype=torch.float64)


def assert_close(results, expected, rtol=1e-12, atol=1e-14):
    for ours, other in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, other, rtol=rtol, atol=atol)


def assert_equal(results, expected):
    for ours, other in zip(results, expected, strict=True):
        assert ours.dtype is other.dtype and torch.equal(ours, other)


def divided_pair(group, dropped, migrated, scheme=Scheme.BROADCAST_REDUCE, imputation=Imputation.ZERO):
    """A divided perceptron; a number of ranks makes virtual ones."""
    group = VirtualTensorGroup(group) if isinstance(group, int) else group
    first, second = perceptron(group)
    for layer, cut in ((first, Cut.COLUMN), (second, Cut.ROW)):
        product = FlexibleProduct(group, cut, layer.site, scheme=scheme, imputation=imputation)
        num_columns = layer.weights[0].shape[1]
        chosen = {rank: torch.tensor(dropped.get(rank, []), dtype=torch.int64) for rank in group.local_ranks}
        most = {rank: num_columns - 1 - len(dropped.get(rank, [])) for rank in migrated}
        moved = {rank: torch.tensor(columns)[: most[rank]] for rank, columns in migrated.items()}
        product.division = divide(num_columns, num_ranks=group.size, dropped=chosen, migrated=moved)
        layer.matrix_product = product
    return first, second, group


def outputs_and_gradients(first, second, group):
    x = torch.linspace(-1, 1, 2 * ROWS * WIDTH, dtype=torch.float64).reshape(2, ROWS, WIDTH).requires_grad_()
    y = second([functional.gelu(part) for part in first.shards(x)])
    (y * torch.linspace(0, 1, WIDTH, dtype=torch.float64)).sum().backward()
    results = [y.detach(), x.grad, *(layer.full_weight(gradient=True) for layer in (first, second))]
    return [*results, *(layer.full_bias(gradient=True) for layer in (first, second))]


MIGRATIONS = {
    "one sender": (2, {0: [0, 3, 1]}),
    "fewer columns than receivers": (4, {2: [4]}),
    "columns do not divide": (4, {1: [0, 2, 3, 4, 1]}),
    "two senders": (4, {0: [5, 1, 2], 3: [0, 1]}),
    "all but one": (4, {0: [1], 1: [0, 1], 2: [2, 0, 1]}),
    "three ranks": (3, {1: [0, 1, 2, 3, 4, 5, 6]}),
    "six ranks, five senders": (6, {0: [0, 2], 1: [1], 2: [2, 0], 4: [0], 5: [1, 2]}),
}


@pytest.mark.parametrize("case", MIGRATIONS)
def test_migrated_products_equal_plain_ones_in_outputs_and_gradients(case):
    num_ranks, migrated = MIGRATIONS[case]
    group = VirtualTensorGroup(num_ranks)
    plain = outputs_and_gradients(*perceptron(group), group)
    for scheme in Scheme:
        assert_close(outputs_and_gradients(*divided_pair(group, {}, migrated, scheme)), plain)


def test_a_single_row_without_a_dimension_of_rows_is_multiplied_as_by_torch():
    results = []
    for first, second, *_ in (divided_pair(2, {}, {0: [1, 3]}), perceptron(VirtualTensorGroup(2))):
        x = torch.linspace(-1, 1, WIDTH, dtype=torch.float64).requires_grad_()
        second(first(x)).square().sum().backward()
        results.append([x.grad, *(weight.grad for weight in (*first.weights, *second.weights))])
    assert_close(*results)


@pytest.mark.parametrize("is_metered", [False, True])
def test_without_dropped_or_migrated_columns_the_product_is_the_plain_one_bit_for_bit(is_metered):
    first, second, group = divided_pair(2, {}, {})
    meter = Meter(0)
    first.matrix_product.meters = {0: meter} if is_metered else {}
    assert_equal(outputs_and_gradients(first, second, group), outputs_and_gradients(*perceptron(group), group))
    assert (meter.product_s > 0) is is_metered


def test_dropped_columns_leave_the_product_of_a_weight_without_them():
    group = VirtualTensorGroup(2)
    first, second = perceptron(group)
    with torch.no_grad():
        for layer in (first, second):
            layer.weights[1][:, [0, 4]] = 0
    expected = outputs_and_gradients(first, second, group)
    expected[2][12:, [0, 4]] = 0  # rank 1 holds the last 12 of 24 rows of the first weight, and columns of the second
    expected[3][:, [12, 16]] = 0
    assert_close(outputs_and_gradients(*divided_pair(group, {1: [4, 0]}, {})), expected)


def test_without_gradients_and_in_a_copy_of_the_model_everything_is_multiplied():
    first, second, group = divided_pair(2, {0: [1, 4]}, {})
    x, plain = torch.ones(ROWS, WIDTH, dtype=torch.float64), perceptron(group)
    expected = plain[1](plain[0](x))
    assert not torch.equal(second(first(x)), expected)
    with torch.no_grad():
        assert torch.equal(second(first(x)), expected)
    assert copy.deepcopy(first).matrix_product is functional.linear


@pytest.mark.parametrize("scheme", Scheme)
def test_a_sender_that_also_drops_equals_one_that_only_drops(scheme):
    group = VirtualTensorGroup(3)
    sent = outputs_and_gradients(*divided_pair(group, {1: [0, 5]}, {1: [6, 2, 7, 1]}, scheme))
    assert_close(sent, outputs_and_gradients(*divided_pair(group, {1: [0, 5]}, {}, scheme)))


def test_bytes_that_migrate_follow_the_shapes():
    # Column-parallel, 3 of 13 columns of rank 0 of 2: forward W[:, M] [12, 3] is broadcast, y [10, 12] is reduced;
    # backward dL/dy [10, 12] is broadcast and 3 columns of the weight's gradient [12, 3] come back.
    first, second, group = divided_pair(2, {}, {0: [0, 1, 2]})
    outputs_and_gradients(first, second, group)
    values = [12 * 3, 10 * 12, 10 * 12, 12 * 3]
    assert group.traffic.num_bytes(site="first.migration") == 8 * sum(values)
    # Row-parallel: x[:, M] [10, 3] and W[:, M] [13, 3] go out, their gradients come back.
    assert group.traffic.num_bytes(site="second.migration") == 8 * 2 * (10 * 3 + 13 * 3)
    # By scatter-gather what is cut goes to two receivers of three ranks in parts, and what is whole to both. Outputs
    # come from both, and columns of the input's gradient, too: of 4 columns of x [10, 13] and W [8, 13].
    first, second, group = divided_pair(3, {}, {0: [0, 1, 2, 3]}, Scheme.SCATTER_GATHER)
    outputs_and_gradients(first, second, group)
    assert group.traffic.num_bytes(site="first.migration") == 8 * (8 * 4 + 2 * 2 * 10 * 8 + 8 * 4 + 10 * 4)
    assert group.traffic.num_bytes(site="second.migration") == 8 * (2 * (10 * 4 + 13 * 4) + 2 * 10 * 13)
    # Of a single column one receiver gets all, and the other nothing.
    first, second, group = divided_pair(3, {}, {0: [4]}, Scheme.SCATTER_GATHER)
    outputs_and_gradients(first, second, group)
    assert group.traffic.num_bytes(site="first.migration") == 8 * (8 + 2 * 10 * 8 + 8 + 10)


def on_ranks(group, scheme):
    """Return outputs and gradients, and the messages by kind: their bytes, smallest first."""
    pair = divided_pair(group, {1: [2]}, {0: [5, 1, 2, 3], 3: [0, 1]}, scheme)
    results, messages = outputs_and_gradients(*pair), {"send": [], "together": []}
    for message in pair[2].traffic:
        messages["send" if message.what == "send" else "together"].append(message.message_bytes)
    return results, {kind: sorted(num_bytes) for kind, num_bytes in messages.items()}


def test_four_real_ranks_equal_virtual_ones_in_results_and_messages(pools):
    ranks = pools(4).run(lambda: [on_ranks(ProcessTensorGroup(), scheme) for scheme in Scheme])
    for scheme, measured in zip(Scheme, zip(*ranks, strict=True), strict=True):
        virtual, messages = on_ranks(4, scheme)
        for results, traffic in measured:
            assert_close(results, virtual)
            assert traffic["together"] == messages["together"]
        sent = sorted(num_bytes for _, traffic in measured for num_bytes in traffic["send"])  # by the sender
        assert sent == messages["send"]


@pytest.mark.parametrize(("scheme", "imputation"), [*itertools.product(Scheme, Imputation)])
def test_equal_steps_give_equal_gradients_whatever_is_imputed(scheme, imputation):
    # Rank 0 drops the column that it computes for rank 1: what it added for the sender must not be imputed.
    first, second, group = divided_pair(2, {0: [3]}, {1: [3, 5]}, scheme, imputation)
    results = []
    for _ in range(4):
        for layer in (first, second):
            layer.zero_grad()
        results.append(outputs_and_gradients(first, second, group))
    for later in results[1:]:
        assert_close(later, results[0])


@pytest.mark.parametrize("scheme", Scheme)
def test_average_with_migration_equals_average_with_the_sender_computing_its_columns(scheme):
    # The mean is of the kept columns; migrated ones are others' work and neither averaged nor imputed.
    first, second, group = divided_pair(2, {0: [1]}, {0: [0, 2]}, scheme, Imputation.AVERAGE)
    results = outputs_and_gradients(first, second, group)
    kept = [column for column in range(12) if column > 2]
    expected = outputs_and_gradients(*divided_pair(group, {0: [1]}, {}, scheme))
    expected[3][:, 1] = expected[3][:, kept].mean(1)  # the second layer's weight; rank 0 holds columns 0 to 11
    for place in (0, 3, 5):  # the output, and the second layer's gradients; the first's follow imputed ones
        torch.testing.assert_close(results[place], expected[place], rtol=1e-12, atol=1e-14)


def test_same_imputation_looks_back_at_the_last_batch_of_as_many_rows():
    first, _, _ = divided_pair(2, {}, {}, imputation=Imputation.SAME)
    product = first.matrix_product

    def input_gradient(rows, dropped):
        of_ranks = {0: torch.tensor(dropped, dtype=torch.int64), 1: torch.empty(0, dtype=torch.int64)}
        product.division = divide(WIDTH, num_ranks=2, dropped=of_ranks, migrated={})
        x = torch.ones(rows, WIDTH, dtype=torch.float64, requires_grad=True)
        sum(part.sum() for part in first(x)).backward()
        return x.grad

    plain = input_gradient(4, [])
    input_gradient(2, [])
    torch.testing.assert_close(input_gradient(4, [3]), plain)
    for rows in range(5, 5 + SIZES_KEPT):  # batches of ever other sizes are not all kept
        input_gradient(rows, [])
    assert not torch.allclose(input_gradient(4, [3])[:, 3], plain[:, 3])  # rank 0's part is missing
    assert len(product.previous) == 2 * (SIZES_KEPT + 1)  # of two ranks: inputs by their rows, and the weight


def test_products_are_metered_on_senders_and_receivers_and_are_own_time_on_own_columns_alone():
    # Every product takes 1 s of this clock: rank 0, the sender, has 3 of its own, rank 1 has 3 and 3 received.
    first, _, _ = divided_pair(2, {}, {0: [1, 2]})
    first.matrix_product.meters = meters = {rank: Meter(rank) for rank in range(2)}
    for meter in meters.values():
        meter.clock = itertools.count().__next__
    x = torch.ones(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    sum(part.sum() for part in first(x)).backward()
    assert [first.matrix_product.division.kept_share(rank) for rank in range(2)] == pytest.approx([11 / 13, 1])
    sender, receiver = (meter.end(1.0) for meter in meters.values())
    # After each product a second passes until the clock is read again.
    assert (sender.product_s, sender.own_s, meters[0].product_s) == (3, 3 + 3, 3)
    assert (receiver.product_s, receiver.own_s, meters[1].product_s) == (3, 3 + 6, 6)


def test_higher_derivatives_are_refused():
    first, second, _ = divided_pair(2, {0: [1]}, {})
    x = torch.ones(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(second(first(x)).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def balanced(model, group):
    """Balance a model whose straggler, rank 1, migrates."""
    times = ModelledTimes(StragglerTrace.fixed(dist.get_world_size(), {1: 4.0}))
    return balance(model, group, policy=Policy(solution="MIG"), modelled=times)


PLANS = {
    "plain": {"0": ColwiseParallel(), "2": RowwiseParallel()},
    "DTensors between": {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel()},
    "sequence-parallel": {"0": ColwiseParallel(input_layouts=Shard(0)), "2": RowwiseParallel(output_layouts=Shard(0))},
}


def pair(sizes=(8, 16, 8)):
    torch.manual_seed(0)
    first, second = (nn.Linear(*ends, dtype=torch.float64) for ends in zip(sizes, sizes[1:], strict=False))
    return nn.Sequential(first, nn.GELU(), second)


def trained(model, group=None, num_iterations=4):
    """Train; return losses, the last one without a balancer, gradients, those of cut weights whole, and the plan."""
    balancer = None if group is None else balanced(model, group)
    x = torch.randn(4, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    losses = []
    for _ in range(num_iterations):
        model.zero_grad()
        with balancer.iteration() if balancer else torch.enable_grad():
            loss = model(x).square().mean()
            loss.backward()
        losses.append(loss.detach())
    if balancer:
        balancer.remove()
    losses.append(model(x).square().mean().detach())
    grads = [parameter.grad for parameter in model.parameters()]
    grads = [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in grads]
    return [*losses, x.grad, *grads], balancer and balancer.plan


def balanced_and_not(layouts):
    mesh = init_device_mesh("cpu", (2,))
    plain, _ = trained(parallelize_module(pair(), mesh, PLANS[layouts]))
    return plain, *trained(parallelize_module(pair(), mesh, PLANS[layouts]), dist.group.WORLD)


@pytest.mark.parametrize("layouts", [name for name in PLANS if name != "plain"])  # that one is in tests/contracts
def test_a_model_cut_by_torch_trains_as_before_while_a_straggler_migrates(layouts, pools):
    for plain, balanced, plan in pools(2).run(balanced_and_not, layouts):
        assert plan.senders == (1,) and plan.ranks[1].migrated > 0.3
        assert_close(balanced, plain, rtol=1e-10, atol=1e-12)


def groups_of_torch():
    """Return plans of a model of the workbench's own linears, on a real rank called as torch's, by kind of group."""
    plans = []
    for group in (dist.group.WORLD, dist.new_group([0, 1]), init_device_mesh("cpu", (2,))):
        ranks, as_wide = ProcessTensorGroup(), {"dtype": torch.float64}
        first, second = ColumnParallelLinear(8, 16, ranks, **as_wide), RowParallelLinear(16, 8, ranks, **as_wide)
        plans.append(trained(nn.Sequential(first, nn.GELU(), second), group)[1])
    return plans


def test_groups_and_meshes_of_torch_are_taken_for_the_models_own_and_parallel_linears_give_tensors(pools):
    for plans in pools(2).run(groups_of_torch):
        assert len(set(plans)) == 1 and plans[0].senders == (1,)


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class WithBias(ColumnParallelLinear):
    def forward(self, x):
        return super().forward(x), self.biases[0]  # as Megatron-LM's


def returns_more_than_a_tensor():
    layer = WithBias(8, 16, ProcessTensorGroup())
    balancer = balanced(layer, dist.group.WORLD)
    for _ in range(3):
        with balancer.iteration():
            y, bias = layer(torch.ones(2, 8))
            (y + bias).sum().backward()
    return tuple(y.shape), balancer.plan.senders


def test_parallel_linears_may_return_more_than_a_tensor(pools):
    assert pools(2).run(returns_more_than_a_tensor) == [((2, 8), (1,))] * 2


def refuses_models_that_cannot_be_balanced():
    mesh, pairs = init_device_mesh("cpu", (2,)), PLANS["plain"]
    cut = parallelize_module(pair(), mesh, pairs)
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    scaled = parallelize_module(nn.Sequential(Scaled(8, 16)), mesh, {"0": ColwiseParallel()})
    uneven = parallelize_module(pair((8, 15, 8)), mesh, pairs)
    for case, message in (
        ((scaled, mesh), "forward of 0 is Scaled's own; it must be that of nn.Linear"),
        ((pair(), mesh), "model is a Sequential without parallel linears; it must have linears that are cut"),
        ((cut, alone), "group of 0 is another one; it must be that of its mesh"),
        ((cut, VirtualTensorGroup(2)), "modelled is None"),
        ((cut, None), "group is None; it must be"),
        ((uneven, mesh), "weight of 0 is (15, 8); its dimension 0 must divide by 2 ranks"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            balance(*case)
    return True


def test_models_cut_by_torch_that_cannot_be_balanced_are_refused_by_name(pools):
    assert pools(2).run(refuses_models_that_cannot_be_balanced) == [True, True]
