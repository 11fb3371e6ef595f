"""Products that ranks divide among each other equal the plain ones; both deliveries bring columns and results home."""

import copy
import itertools

import pytest
import torch
from torch.nn import functional

from workbench.models import Cut
from workbench.parallel import ColumnParallelLinear, ProcessTensorGroup, RowParallelLinear, VirtualTensorGroup
from workbench.parallel.moves import Shape
from workbench.techniques.flextp.method import Imputation, Scheme
from workbench.techniques.flextp.runtime import FlexibleProduct, Meter, Migration, delivery_of, divide

SIZES_KEPT = 4  # numbers of rows whose last gradient Same looks back at
WIDTH, INNER, ROWS = 13, 24, 5


def perceptron(group, dtype=torch.float64):
    first = ColumnParallelLinear(WIDTH, INNER, group, seed=1, site="first", dtype=dtype)
    return first, RowParallelLinear(INNER, WIDTH, group, seed=2, site="second", dtype=dtype)


def make_flexible(first, second, group, scheme, imputation=Imputation.ZERO):
    for layer, cut in ((first, Cut.COLUMN), (second, Cut.ROW)):
        delivery = delivery_of(scheme, group)
        layer.matrix_product = FlexibleProduct(group, cut, layer.site, delivery=delivery, imputation=imputation)


def assert_close(results, expected):
    for ours, other in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-12, atol=1e-14)


def assert_equal(results, expected):
    for ours, other in zip(results, expected, strict=True):
        assert ours.dtype is other.dtype and torch.equal(ours, other)


def divide_both(first, second, group, dropped, migrated):
    for layer in (first, second):
        num_columns = layer.weights[0].shape[1]
        chosen = {rank: torch.tensor(dropped.get(rank, []), dtype=torch.int64) for rank in group.local_ranks}
        most = {rank: num_columns - 1 - len(dropped.get(rank, [])) for rank in migrated}
        moved = {rank: torch.tensor(columns)[: most[rank]] for rank, columns in migrated.items()}
        layer.matrix_product.division = divide(num_columns, num_ranks=group.size, dropped=chosen, migrated=moved)


def divided_pair(group, dropped, migrated, scheme=Scheme.BROADCAST_REDUCE, imputation=Imputation.ZERO):
    """A divided perceptron; a number of ranks makes virtual ones."""
    group = VirtualTensorGroup(group) if isinstance(group, int) else group
    first, second = perceptron(group)
    make_flexible(first, second, group, scheme, imputation)
    divide_both(first, second, group, dropped, migrated)
    return first, second, group


def outputs_and_gradients(first, second, group):
    dtype = first.weights[0].dtype
    x = torch.linspace(-1, 1, 2 * ROWS * WIDTH, dtype=dtype).reshape(2, ROWS, WIDTH).requires_grad_()
    y = second([functional.gelu(part) for part in first.shards(x)])
    (y * torch.linspace(0, 1, WIDTH, dtype=dtype)).sum().backward()
    trained = [layer for layer in (first, second) if layer.weights[0].requires_grad]
    results = [y.detach(), x.grad, *(layer.full_weight(gradient=True) for layer in trained)]
    return [*results, *(layer.full_bias(gradient=True) for layer in trained)]


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
        for results, own in measured:
            assert_close(results, virtual)
            assert own["together"] == messages["together"]
        sent = sorted(num_bytes for _, own in measured for num_bytes in own["send"])  # by the sender
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
        own = {0: torch.tensor(dropped, dtype=torch.int64), 1: torch.empty(0, dtype=torch.int64)}
        product.division = divide(WIDTH, num_ranks=2, dropped=own, migrated={})
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


# Four ranks; rank 1 sends five columns. Its receivers are, counted from it, 2, 3 and 0, which get 1, 2 and 2 of them,
# and of a single column only the last one gets any. fp64: [2, 5] is 80 bytes; [2, 1] and [2, 2] are 16 and 32.
FIVE = {2: range(0, 1), 3: range(1, 3), 0: range(3, 5)}
ONE = {2: range(0, 0), 3: range(0, 0), 0: range(0, 1)}
BROADCAST, SCATTER = Scheme.BROADCAST_REDUCE, Scheme.SCATTER_GATHER


@pytest.mark.parametrize(
    ("scheme", "parts", "out_bytes", "whole_bytes", "back_bytes"),
    [
        (BROADCAST, FIVE, [80], [80], [16, 32, 32]),
        (SCATTER, FIVE, [16, 32, 32], [80] * 3, [16, 32, 32]),
        (BROADCAST, ONE, [16], [16], [16]),
        (SCATTER, ONE, [16], [16] * 3, [16]),
    ],
)
def test_receivers_get_their_columns_and_the_sender_all_in_order(scheme, parts, out_bytes, whole_bytes, back_bytes):
    group, num_columns = VirtualTensorGroup(4), sum(map(len, parts.values()))
    delivery = delivery_of(scheme, group)
    migration = Migration(sender=1, columns=torch.tensor([4, 0, 2, 5, 1][:num_columns]), parts=parts)
    held = torch.arange(2.0 * num_columns, dtype=torch.float64).reshape(2, num_columns)
    shape, sent = Shape.of(held), []

    def delivered(receive):
        result = receive()
        sent.append(sorted(message.message_bytes for message in group.traffic))
        group.traffic.clear()
        return result

    columns = delivered(delivery.hand_out_columns(held, migration, shape))
    assert all(torch.equal(columns[rank], held[:, part.start : part.stop]) for rank, part in parts.items())
    whole = delivered(delivery.hand_out(held, migration, shape))
    assert whole.keys() == parts.keys() and all(torch.equal(tensor, held) for tensor in whole.values())
    assert torch.equal(delivered(delivery.bring_back(columns, migration, shape)), held)
    assert sent == [out_bytes, whole_bytes, back_bytes]
    ones = {rank: torch.full((3, 1), 10.0**rank, dtype=torch.float64) for rank in parts}
    total = delivered(delivery.add_up(ones, migration, Shape.of(ones[0])))
    assert total.tolist() == [[1101.0]] * 3  # of ranks 0, 2 and 3; the sender adds nothing
