"""Products that ranks divide among each other equal the plain ones; both deliveries bring columns and results home."""

import copy
import itertools
from functools import partial

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from workbench.launch import run_on_ranks
from workbench.parallel import ColumnParallelLinear, ProcessTensorGroup, RowParallelLinear, VirtualTensorGroup
from workbench.parallel.moves import Shape
from workbench.techniques.flextp.method import Imputation, Scheme
from workbench.techniques.flextp.runtime import Cut, FlexibleProduct, Meter, Migration, delivery_of, divide

pytestmark = pytest.mark.timeout(60)

SIZES_KEPT = 4  # numbers of rows whose last gradient Same looks back at
WIDTH, INNER, ROWS = 13, 24, 5


def perceptron(group, dtype=torch.float64):
    """A column-parallel and a row-parallel linear."""
    first = ColumnParallelLinear(WIDTH, INNER, group, seed=1, site="first", dtype=dtype)
    return first, RowParallelLinear(INNER, WIDTH, group, seed=2, site="second", dtype=dtype)


def make_flexible(first, second, group, scheme, imputation=Imputation.ZERO):
    for layer, cut in ((first, Cut.COLUMN), (second, Cut.ROW)):
        delivery = delivery_of(scheme, group)
        layer.matrix_product = FlexibleProduct(group, cut, layer.site, delivery=delivery, imputation=imputation)


def assert_close(results, expected):
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def assert_equal(results, expected):
    assert all(
        ours.dtype is theirs.dtype and torch.equal(ours, theirs) for ours, theirs in zip(results, expected, strict=True)
    )


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
    y = second([functional.gelu(part) for part in first(x)])
    (y * torch.linspace(0, 1, WIDTH, dtype=dtype)).sum().backward()
    found = [y.detach(), x.grad, first.full_weight(gradient=True), second.full_weight(gradient=True)]
    return [*found, first.full_bias(gradient=True), second.full_bias(gradient=True)]


MIGRATIONS = {
    "one sender": (2, {0: [0, 3, 1]}),
    "fewer columns than receivers": (4, {2: [4]}),
    "columns do not divide": (4, {1: [0, 2, 3, 4, 1]}),
    "two senders": (4, {0: [5, 1, 2], 3: [0, 1]}),
    "all but one": (4, {0: [1], 1: [0, 1], 2: [2, 0, 1]}),
    "three ranks": (3, {1: [0, 1, 2, 3, 4, 5, 6]}),
    "six ranks, five senders": (6, {0: [0, 2], 1: [1], 2: [2, 0], 4: [0], 5: [1, 2]}),
    "eight ranks": (8, {0: [0, 1], 7: [1]}),
}


@pytest.mark.parametrize("scheme", Scheme)
@pytest.mark.parametrize("case", MIGRATIONS)
def test_migrated_products_equal_plain_ones_in_outputs_and_gradients(scheme, case):
    num_ranks, migrated = MIGRATIONS[case]
    group = VirtualTensorGroup(num_ranks)
    plain = outputs_and_gradients(*perceptron(group), group)
    assert_close(outputs_and_gradients(*divided_pair(group, {}, migrated, scheme)), plain)


@pytest.mark.parametrize("scheme", Scheme)
@pytest.mark.parametrize("frozen", [[], ["first"], ["second"], ["first", "second"]], ids=str)
def test_migrated_products_with_frozen_weights_equal_plain_ones(scheme, frozen):
    group, found = VirtualTensorGroup(3), []
    for is_flexible in (True, False):
        first, second = perceptron(group)
        for layer in (first, second):
            layer.requires_grad_(layer.site not in frozen)
        if is_flexible:
            make_flexible(first, second, group, scheme)
            divide_both(first, second, group, {}, {1: [0, 3, 1]})
        x = torch.linspace(-1, 1, ROWS * WIDTH, dtype=torch.float64).reshape(ROWS, WIDTH).requires_grad_()
        y = second(list(first(x)))
        y.square().sum().backward()
        trained = [layer for layer in (first, second) if layer.site not in frozen]
        found.append([y.detach(), x.grad, *(layer.full_weight(gradient=True) for layer in trained)])
        assert all(weight.grad is None for layer in (first, second) if layer.site in frozen for weight in layer.weights)
    assert_close(*found)


def test_without_dropped_or_migrated_columns_the_product_is_the_plain_one_bit_for_bit():
    group = VirtualTensorGroup(2)
    plain = outputs_and_gradients(*perceptron(group), group)
    assert_equal(outputs_and_gradients(*divided_pair(group, {}, {})), plain)


def test_dropped_columns_leave_what_a_weight_without_them_would():
    # With the dropped columns of the straggler's weight set to zero, the output is the resized one; the kept columns of
    # its gradient are the same too, the dropped ones are zero.
    group = VirtualTensorGroup(2)
    first, second = perceptron(group)
    with torch.no_grad():
        second.weights[1][:, [0, 4]] = 0
    plain = outputs_and_gradients(first, second, group)
    resized, other = perceptron(group)
    make_flexible(resized, other, group, Scheme.BROADCAST_REDUCE)
    none = torch.empty(0, dtype=torch.int64)
    resized.matrix_product.division = divide(WIDTH, num_ranks=2, dropped={0: none, 1: none}, migrated={})
    other.matrix_product.division = divide(12, num_ranks=2, dropped={0: none, 1: torch.tensor([4, 0])}, migrated={})
    found = outputs_and_gradients(resized, other, group)
    kept = [column for column in range(24) if column not in (12, 16)]  # rank 1 holds columns 12 to 23
    torch.testing.assert_close(found[0], plain[0])
    torch.testing.assert_close(found[1], plain[1])
    torch.testing.assert_close(found[3][:, kept], plain[3][:, kept])
    assert not found[3][:, [12, 16]].any()


@pytest.mark.parametrize("scheme", Scheme)
def test_a_sender_that_also_drops_equals_one_that_only_drops(scheme):
    group = VirtualTensorGroup(3)
    found = []
    for migrated in ({}, {1: [6, 2, 7, 1]}):
        found.append(outputs_and_gradients(*divided_pair(group, {1: [0, 5]}, migrated, scheme)))
    assert_close(*found)


def test_same_imputation_takes_the_gradient_of_the_iteration_before():
    first, second, group = divided_pair(2, {}, {}, Scheme.BROADCAST_REDUCE, Imputation.SAME)
    before = outputs_and_gradients(first, second, group)[3]
    for layer in (first, second):
        layer.zero_grad()
    divide_both(first, second, group, {0: [1, 4]}, {})
    after = outputs_and_gradients(first, second, group)[3]
    assert torch.equal(after[:, [1, 4]], before[:, [1, 4]])


def test_evaluation_multiplies_everything():
    group = VirtualTensorGroup(2)
    first, second = perceptron(group)
    x = torch.ones(ROWS, WIDTH, dtype=torch.float64)
    plain = second(first(x))
    make_flexible(first, second, group, Scheme.BROADCAST_REDUCE)
    divide_both(first, second, group, {0: [1, 4]}, {})
    assert not torch.equal(second(first(x)), plain)
    with torch.no_grad():
        assert torch.equal(second(first(x)), plain)


def test_bytes_that_migrate_follow_the_shapes():
    # Column-parallel, 3 of 13 columns of rank 0 of 2: forward W[:, M] [12, 3] is broadcast, y [10, 12] is reduced;
    # backward dL/dy [10, 12] is broadcast and 3 columns of the weight's gradient [12, 3] come back.
    first, second, group = divided_pair(2, {}, {0: [0, 1, 2]})
    outputs_and_gradients(first, second, group)
    values = [12 * 3, 10 * 12, 10 * 12, 12 * 3]
    assert group.traffic.num_bytes(site="first.migration") == 8 * sum(values)
    # Row-parallel: x[:, M] [10, 3] and W[:, M] [13, 3] go out, their gradients come back.
    assert group.traffic.num_bytes(site="second.migration") == 8 * 2 * (10 * 3 + 13 * 3)


def on_a_rank(scheme, migrated):
    return outputs_and_gradients(*divided_pair(ProcessTensorGroup(), {1: [2]}, migrated, scheme))


@pytest.mark.parametrize("scheme", Scheme)
def test_four_real_ranks_equal_virtual_ones(scheme):
    migrated = {0: [5, 1, 2, 3], 3: [0, 1]}
    first, second, group = divided_pair(4, {1: [2]}, migrated, scheme)
    virtual = outputs_and_gradients(first, second, group)
    for found in run_on_ranks(on_a_rank, 4, scheme, migrated, timeout_s=60):
        assert_close(found, virtual)


def flexible_and_plain(scheme, migrated, narrow=True):
    """Outputs and gradients of four ranks, divided and plain, and the bytes that migration sent."""
    group = VirtualTensorGroup(4)
    first, second = perceptron(group, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
        plain = outputs_and_gradients(first, second, group)
        first.zero_grad(), second.zero_grad()
        make_flexible(first, second, group, scheme)
        divide_both(first, second, group, {}, migrated)
        flexible = outputs_and_gradients(first, second, group)
    moved = [message for message in group.traffic.messages if message.site.endswith(".migration")]
    return flexible, plain, sum(message.message_bytes for message in moved)


@pytest.mark.parametrize("scheme", Scheme)
def test_under_autocast_whole_products_are_the_plain_ones_bit_for_bit(scheme):
    flexible, plain, _ = flexible_and_plain(scheme, {})
    assert_equal(flexible, plain)


@pytest.mark.parametrize("scheme", Scheme)
def test_under_autocast_columns_travel_rounded_and_results_keep_to_the_rounding(scheme):
    migrated = {0: [5, 1, 2], 3: [0, 1]}
    flexible, plain, narrow_bytes = flexible_and_plain(scheme, migrated)
    for ours, theirs in zip(flexible, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=2**-7 * theirs.abs().max().item())
    assert 0 < 2 * narrow_bytes == flexible_and_plain(scheme, migrated, narrow=False)[2]


@pytest.mark.parametrize("scheme", Scheme)
@pytest.mark.parametrize("imputation", Imputation)
def test_equal_steps_give_equal_gradients_whatever_is_imputed(scheme, imputation):
    # Rank 0 drops the column that it computes for rank 1: what it added for the sender must not be imputed.
    first, second, group = divided_pair(2, {0: [3]}, {1: [3, 5]}, scheme, imputation)
    found = []
    for _ in range(4):
        for layer in (first, second):
            layer.zero_grad()
        found.append(outputs_and_gradients(first, second, group))
    for later in found[1:]:
        assert_close(later, found[0])


@pytest.mark.parametrize("scheme", Scheme)
def test_average_with_migration_equals_average_with_the_sender_computing_its_columns(scheme):
    # The mean is of the kept columns; migrated ones are others' work and neither averaged nor imputed.
    first, second, group = divided_pair(2, {0: [1]}, {0: [0, 2]}, scheme, Imputation.AVERAGE)
    found = outputs_and_gradients(first, second, group)
    kept = [column for column in range(12) if column > 2]
    expected = outputs_and_gradients(*divided_pair(group, {0: [1]}, {}, scheme))
    expected[3][:, 1] = expected[3][:, kept].mean(1)  # the second layer's weight; rank 0 holds columns 0 to 11
    for place in (0, 3, 5):  # the output, and the second layer's gradients; the first's follow imputed ones
        torch.testing.assert_close(found[place], expected[place], rtol=1e-12, atol=1e-14)


def test_same_imputation_looks_back_at_the_last_batch_of_as_many_rows():
    group = VirtualTensorGroup(2)
    first, _ = perceptron(group)
    product = FlexibleProduct(
        group, Cut.COLUMN, "first", delivery=delivery_of(Scheme.BROADCAST_REDUCE, group), imputation=Imputation.SAME
    )
    first.matrix_product = product
    none = torch.empty(0, dtype=torch.int64)

    def input_gradient(rows, dropped):
        columns = torch.tensor(dropped, dtype=torch.int64)
        product.division = divide(WIDTH, num_ranks=2, dropped={0: columns, 1: none}, migrated={})
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


def test_checkpointed_layers_give_the_same_gradients():
    group, found = VirtualTensorGroup(2), []
    for is_checkpointed in (False, True):
        first, second, group = divided_pair(group, {0: [1]}, {1: [0, 2]})
        x = torch.ones(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
        run = partial(checkpoint, use_reentrant=False) if is_checkpointed else lambda layer, x: layer(x)
        y = run(lambda x, first=first, second=second: second(first(x)), x)
        y.square().sum().backward()
        found.append([x.grad, first.full_weight(gradient=True)])
    assert_equal(*found)


def test_a_copy_of_a_model_is_plain():
    group = VirtualTensorGroup(2)
    first, second = perceptron(group)
    make_flexible(first, second, group, Scheme.BROADCAST_REDUCE)
    assert copy.deepcopy(first).matrix_product is functional.linear


def test_higher_derivatives_are_refused():
    first, second, _ = divided_pair(2, {0: [1]}, {})
    x = torch.ones(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(second(first(x)).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_products_are_metered_on_senders_and_receivers_and_are_own_time_on_own_columns_alone():
    # Every product takes 1 s of this clock: rank 0, the sender, has 3 of its own, rank 1 has 3 and 3 received.
    group = VirtualTensorGroup(2)
    first, _ = perceptron(group)
    meters = {rank: Meter(rank) for rank in range(2)}
    for meter in meters.values():
        meter.clock = itertools.count().__next__
    first.matrix_product = product = FlexibleProduct(
        group, Cut.COLUMN, "first", delivery=delivery_of(Scheme.BROADCAST_REDUCE, group), meters=meters
    )
    none = torch.empty(0, dtype=torch.int64)
    product.division = divide(WIDTH, num_ranks=2, dropped={0: none, 1: none}, migrated={0: torch.tensor([1, 2])})
    x = torch.ones(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    sum(part.sum() for part in first(x)).backward()
    assert [meter.product_s for meter in meters.values()] == [3, 6]
    assert [product.division.kept(rank) for rank in range(2)] == pytest.approx([11 / 13, 1])
    sender, receiver = (meter.end(1.0) for meter in meters.values())
    # After each product a second passes until the clock is read again.
    assert (sender.product_s, sender.own_s) == (3, 3 + 3)
    assert (receiver.product_s, receiver.own_s) == (3, 3 + 6)


# Four ranks; rank 1 sends the columns 4, 0, 2, 5, 1. Its receivers are, counted from it, 2, 3 and 0; five columns are
# dealt out to them as 1, 2 and 2: column 4 to rank 2, columns 0 and 2 to rank 3, columns 5 and 1 to rank 0.
SENDER, COLUMNS = 1, [4, 0, 2, 5, 1]
FIVE = {2: range(0, 1), 3: range(1, 3), 0: range(3, 5)}
ONE = {2: range(0, 0), 3: range(0, 0), 0: range(0, 1)}  # fewer columns than receivers: the last one gets it
NONE = {2: range(0, 0), 3: range(0, 0), 0: range(0, 0)}
WHOLE = torch.tensor([[10.0, 11.0, 12.0, 13.0, 14.0], [20.0, 21.0, 22.0, 23.0, 24.0]], dtype=torch.float64)


def migration_of(parts):
    num_columns = sum(map(len, parts.values()))
    return Migration(sender=SENDER, columns=torch.tensor(COLUMNS[:num_columns], dtype=torch.int64), parts=parts)


def result(rank, num_columns):
    """[2, w]: what a receiver has computed, here its number and eighths of the column's place."""
    places = torch.arange(num_columns, dtype=torch.float64) / 8
    return (rank + places).expand(2, num_columns)  # not contiguous


def delivered(scheme, parts, group):
    """Start everything that a product has to have delivered, take it in, and give it by local rank."""
    delivery, migration, num_columns = delivery_of(scheme, group), migration_of(parts), sum(map(len, parts.values()))
    held = WHOLE[:, :num_columns] if SENDER in group.local_ranks else None
    shape = Shape.of(WHOLE, (2, num_columns))
    receivers = [rank for rank in group.local_ranks if rank in parts]
    local = {rank: result(rank, len(parts[rank])) for rank in receivers}
    sums = {rank: torch.full((3, 1), 10.0**rank, dtype=torch.float64) for rank in receivers}
    handed = delivery.hand_out_columns(held, migration, shape), delivery.hand_out(held, migration, shape)
    collects = (delivery.add_up(sums, migration, Shape.of(WHOLE, (3, 1))), delivery.bring_back(local, migration, shape))
    found = [{rank: tensor.tolist() for rank, tensor in receive().items()} for receive in handed]
    returned = [collect() for collect in collects]
    ledger = [(message.what, message.message_bytes, message.num_ranks) for message in group.traffic]
    return *found, *(None if each is None else each.tolist() for each in returned), ledger


OWN_COLUMNS = {2: [[10.0], [20.0]], 3: [[11.0, 12.0], [21.0, 22.0]], 0: [[13.0, 14.0], [23.0, 24.0]]}
BROUGHT_BACK = [[2.0, 3.0, 3.125, 0.0, 0.125]] * 2  # in the order of the migrated columns
# fp64: [2, 5] is 80 bytes; [2, 1], [2, 2] and [2, 2] are 16, 32 and 32; a sum's [3, 1] is 24.
LEDGERS = {
    Scheme.BROADCAST_REDUCE: [("broadcast", 80, 4), ("broadcast", 80, 4), ("reduce", 24, 4)],
    Scheme.SCATTER_GATHER: [("send", each, 2) for each in (16, 32, 32, 80, 80, 80, 24, 24, 24)],
}
BACK = [("send", 16, 2), ("send", 32, 2), ("send", 32, 2)]
EMPTY = [[], []]


def by_amount(ledger):
    return sorted((str(what), num_bytes, num_ranks) for what, num_bytes, num_ranks in ledger)


@pytest.mark.parametrize("scheme", Scheme)
def test_each_receiver_gets_its_own_columns_and_the_sender_everything_back_in_the_order_it_was_dealt_out(scheme):
    columns, whole, total, back, ledger = delivered(scheme, FIVE, VirtualTensorGroup(4))
    assert columns == OWN_COLUMNS
    assert whole == dict.fromkeys((2, 3, 0), WHOLE.tolist())
    assert total == [[1101.0]] * 3  # of ranks 0, 2 and 3; the sender adds nothing
    assert back == BROUGHT_BACK
    assert by_amount(ledger) == by_amount(LEDGERS[scheme] + BACK)


@pytest.mark.parametrize("scheme", Scheme)
def test_a_receiver_without_columns_gets_none_and_sends_none_back(scheme):
    columns, _, total, back, ledger = delivered(scheme, ONE, VirtualTensorGroup(4))
    assert columns == {2: EMPTY, 3: EMPTY, 0: [[10.0], [20.0]]}
    assert (total, back) == ([[1101.0]] * 3, [[0.0]] * 2)
    out = {Scheme.BROADCAST_REDUCE: [("broadcast", 16, 4)], Scheme.SCATTER_GATHER: [("send", 16, 2)]}[scheme]
    assert ledger[:1] == out
    assert ledger[-1:] == [("send", 16, 2)]
    assert [message[0] for message in ledger].count("send") == {"broadcast-reduce": 1, "scatter-gather": 8}[scheme]


@pytest.mark.parametrize("scheme", Scheme)
def test_where_nothing_migrates_nothing_comes_back(scheme):
    columns, _, _, back, ledger = delivered(scheme, NONE, VirtualTensorGroup(4))
    assert (columns, back) == (dict.fromkeys((2, 3, 0), EMPTY), EMPTY)
    assert sum(num_bytes for what, num_bytes, _ in ledger if num_bytes != 24) == 0


def delivered_on_a_rank():
    cases = {(scheme, name): parts for scheme in Scheme for name, parts in (("five", FIVE), ("one", ONE))}
    return {key: delivered(key[0], parts, ProcessTensorGroup()) for key, parts in cases.items()}


def test_real_ranks_deliver_what_virtual_ones_do_and_enter_what_they_send_themselves():
    results = run_on_ranks(delivered_on_a_rank, 4, timeout_s=50)
    for scheme, (name, parts) in ((s, case) for s in Scheme for case in (("five", FIVE), ("one", ONE))):
        columns, whole, total, back, ledger = delivered(scheme, parts, VirtualTensorGroup(4))
        found = [each[scheme, name] for each in results]
        for rank, mine in enumerate(found):
            is_receiver = rank != SENDER
            assert mine[0] == ({rank: columns[rank]} if is_receiver else {})
            assert mine[1] == ({rank: whole[rank]} if is_receiver else {})
            assert mine[2:4] == ((None, None) if is_receiver else (total, back))
        sends = [message for mine in found for message in mine[4] if message[0] == "send"]
        assert by_amount(sends) == by_amount(message for message in ledger if message[0] == "send")
        together = [[message for message in mine[4] if message[0] != "send"] for mine in found]
        assert together == [[message for message in ledger if message[0] != "send"]] * 4
    assert by_amount(results[SENDER][Scheme.SCATTER_GATHER, "five"][4]) == by_amount(LEDGERS["scatter-gather"][:6])
    assert by_amount(results[3][Scheme.SCATTER_GATHER, "five"][4]) == [("send", 24, 2), ("send", 32, 2)]
    assert results[3][Scheme.BROADCAST_REDUCE, "five"][4] == [*LEDGERS["broadcast-reduce"], ("send", 32, 2)]


def test_only_broadcast_reduce_leaves_results_where_an_all_reduce_collects_them():
    group = VirtualTensorGroup(2)
    assert delivery_of(Scheme.BROADCAST_REDUCE, group).merges
    assert not delivery_of(Scheme.SCATTER_GATHER, group).merges
