"""Every scheme on real ranks equals the dense all-reduce, with counted bytes; the hook equals DDP; what is refused."""

import contextlib
import copy
import threading
import warnings
from functools import reduce
from queue import SimpleQueue
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.cases import refusal, tidy
from workbench.launch import Ranks
from workbench.parallel.traffic import tcp_bytes_sent
from workbench.parallel.wire import Wire
from workbench.techniques import zen
from workbench.techniques.zen.method import HashBitmap, partition
from workbench.techniques.zen.runtime import hook
from workbench.techniques.zen.runtime.schemes import SCHEMES
from workbench.techniques.zen.runtime.sparse import Sparse, set_entries

NUM = 4


@pytest.fixture
def ranks(pools):
    return pools(NUM)


def gradient_of(rank, domain_size, entry, share, empty_rank=None):
    """Draw a dense tensor of which a share of the entries is not zero, denser at its beginning."""
    draw = torch.Generator().manual_seed(rank)
    chances = share * 2 * (1 - torch.arange(domain_size) / domain_size)
    is_there = (torch.rand(domain_size, generator=draw) < chances) & (rank != empty_rank)
    return torch.where(is_there.view(-1, *(1 for _ in entry)), torch.randn(domain_size, *entry, generator=draw), 0.0)


def summed(scheme, domain_size, entry, share, **more):
    """Run on a rank: the sum by a scheme, and the bytes of each direction."""
    gradient, wire = gradient_of(dist.get_rank(), domain_size, entry, share, **more), Wire()
    return SCHEMES[scheme](Sparse.of(gradient), wire).to_dense(), wire.sent_bytes, wire.received_bytes


def head_and_message_on_a_device():
    """Run on a rank: where what is sent lies, if gradients and messages are not on the CPU."""
    wire, sent = Wire(), []
    wire._device = torch.device("meta")
    wire._all_to_all = lambda pieces, lengths: sent.extend(pieces) or 1 / 0
    with contextlib.suppress(ZeroDivisionError):
        wire.exchange(dict.fromkeys(range(NUM), (torch.ones(5, device="meta"),)))
    return {str(piece.device) for piece in sent}


def test_messages_on_a_device_are_joined_there_with_their_heads(ranks):
    assert ranks.run(head_and_message_on_a_device) == [{"meta"}] * NUM


CASES = {
    "values": {"domain_size": 1000, "entry": (), "share": 0.1},
    "rows": {"domain_size": 300, "entry": (5,), "share": 0.2},
    "all there": {"domain_size": 64, "entry": (2, 3), "share": 1.0},
    "a rank with nothing": {"domain_size": 1000, "entry": (), "share": 0.1, "empty_rank": 2},
    "nothing at all": {"domain_size": 50, "entry": (3,), "share": 0.0},
    "fewer entries than ranks": {"domain_size": 3, "entry": (), "share": 0.6},
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_equals_the_dense_sum_with_the_same_bits_on_all_ranks(ranks, scheme):
    by_rank = ranks.run(lambda: [summed(scheme, **case)[0] for case in CASES.values()])
    for case, first, *others in zip(CASES.values(), *by_rank, strict=True):
        torch.testing.assert_close(first, torch.stack([gradient_of(rank, **case) for rank in range(NUM)]).sum(dim=0))
        assert all(torch.equal(total, first) for total in others)


@pytest.mark.parametrize("shape", [(1,), (63,), (64,), (1000,), (300, 2), (70, 3, 5), (200, 64), (9, 0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e5m2])
def test_entries_are_those_with_a_number_that_is_not_plus_zero(shape, dtype):
    draw = torch.Generator().manual_seed(0)
    for share in (0.0, 0.02, 0.5, 1.0):
        tensor = torch.where(torch.rand(shape, generator=draw) < share, torch.randn(shape, generator=draw), 0.0)
        tensor.view(-1)[3::50] = -0.0
        tensor.view(-1)[::70] = torch.nan
        tensor = tensor.to(dtype)
        numbers = [entry.float().flatten().tolist() for entry in tensor]
        expected = [at for at, entry in enumerate(numbers) if any(str(number) != "0.0" for number in entry)]
        assert set_entries(tensor).tolist() == expected


INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
STEPS = ((0.3, ()), (0.02, ()), (1.0, ()), (0.0, ()), (0.3, ()), (0.3, (3,)), (0.3, (2, 2)), (0.4, (3,)), (0.3, (0,)))


def odd_gradients(rank, dtype):
    """Draw tensors whose sizes change from step to step, with NaN, infinities, -0.0 and a rank that has nothing."""
    draw = torch.Generator().manual_seed(1000 + rank)
    for number, (share, entry) in enumerate(STEPS):
        gradient = gradient_of(rank, 700, entry, share, empty_rank=number % 3).to(dtype)
        odd = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, -0.0, -0.0, 0.0]).to(dtype)
        places = torch.randint(700, (40,), generator=draw)
        gradient[places] = odd[torch.randint(7, (40, *entry), generator=draw)]
        gradient[5] = -0.0  # on all ranks: so is the sum
        gradient[6] = -0.0 if rank else 0.0
        yield gradient


def bits(tensor):
    return tensor.nan_to_num(nan=7e4 if tensor.dtype != torch.float16 else 6e4).view(INTEGERS[tensor.element_size()])


def odd_sums(schemes, dtypes):
    """Run on a rank: sums by one synchroniser a scheme and dtype, dense and sparse tensors in turns."""
    sums = {}
    for scheme in schemes:
        for dtype in dtypes:
            synchroniser, totals = zen.SparseSynchroniser(scheme=scheme), []
            for number, gradient in enumerate(odd_gradients(dist.get_rank(), dtype)):
                is_sparse = number % 2 and gradient.numel()
                totals.append(synchroniser.all_reduce(twice(gradient) if is_sparse else gradient).to_dense())
            sums[scheme, dtype] = totals
    return sums


def twice(gradient):
    """Return a sparse tensor with each entry, and two more that cancel each other and then are 0."""
    indices = Sparse.of(gradient).indices
    values = torch.cat([gradient[indices], gradient.new_ones(2, *gradient.shape[1:])])
    values[-1] *= -1
    rows = torch.cat([indices, torch.tensor([11, 11])])[None]
    return torch.sparse_coo_tensor(rows, values, gradient.shape, check_invariants=True)


def by_definition(scheme, gradients):
    """Add dense tensors one after the other; SparCML adds sums of neighbours."""
    if scheme == "SparCML" and len(gradients) > 2:
        gradients = [gradients[at] + gradients[at + 1] for at in range(0, len(gradients), 2)]
    return reduce(torch.add, gradients)


@pytest.mark.parametrize("num_ranks", [1, 3, 4])
def test_the_bits_are_those_of_adding_dense_tensors(pools, num_ranks):
    exact = {"AGsparse", "Sparse PS", "OmniReduce", "Zen, COO", "Zen"} | ({"SparCML"} if num_ranks != 3 else set())
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    by_rank = pools(num_ranks).run(odd_sums, sorted(exact), dtypes)
    for dtype in dtypes:
        steps = zip(*(odd_gradients(rank, dtype) for rank in range(num_ranks)), strict=True)
        for number, gradients in enumerate(steps):
            is_sparse = number % 2 and gradients[0].numel()
            gradients = [twice(tensor).coalesce().to_dense() for tensor in gradients] if is_sparse else list(gradients)
            for scheme in exact:
                total = by_definition(scheme, gradients)
                for sums in by_rank:
                    assert torch.equal(bits(sums[scheme, dtype][number]), bits(total)), (scheme, dtype, number)


def summed_together():
    """Run on a rank: sums of three tables of different widths, at once and one by one."""
    rank, sums = dist.get_rank(), zen.SparseSynchroniser()
    tables = [gradient_of(rank, 300, (5,), 0.2), gradient_of(rank, 90, (), 0.5), gradient_of(rank, 40, (2,), 0.0)]
    tables[1] = tables[1].to_sparse().double()
    alone, sent_bytes = [sums.all_reduce(table).to_dense() for table in tables], sums.wire.sent_bytes
    together = [total.to_dense() for total in sums.all_reduce_together(tables)]
    is_equal = all(map(torch.equal, alone, together)), sums.wire.sent_bytes == 2 * sent_bytes
    in_place = sums.all_reduce_(tables)
    assert in_place[0] is tables[0]
    assert all(torch.equal(total.to_dense(), other) for total, other in zip(in_place, together, strict=True))
    return *is_equal, sums.all_reduce_together([])


def test_tables_that_are_summed_together_have_the_bits_and_bytes_of_each_alone(ranks):
    assert ranks.run(summed_together) == [(True, True, [])] * NUM


def one_changes_alone(scheme):
    """Run on a rank: what is said when rank 2 alone changes after three equal steps, and the sum of the next step."""
    sums, gradient, said = zen.SparseSynchroniser(scheme=scheme), torch.ones(60, 2), []
    changed = {
        "layout": gradient.to_sparse(1),
        "dtype": gradient.half(),
        "shape": torch.ones(61, 2),
        "index": out_of_range(2),
    }
    for other in changed.values():
        for _ in range(3):
            sums.all_reduce(gradient)
        said.append(refusal(sums.all_reduce, other if dist.get_rank() == 2 else gradient))
    said.append(refusal(sums.all_reduce_together, [gradient] * (2 if dist.get_rank() == 2 else 1)))
    return said, sums.all_reduce(gradient)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_rank_that_changes_alone_is_named_and_the_next_sum_is_right(ranks, scheme):
    rules = ["layout is torch.sparse_coo on rank 2", "dtype is torch.float16 on rank 2", "shape is (61, 2) on rank 2"]
    rules += ["rank 2: indices hold 9", "number of gradients is 2 on rank 2"]
    for said, total in ranks.run(one_changes_alone, scheme):
        assert all(rule in message for rule, message in zip(rules, said, strict=True)), said
        assert torch.equal(total, torch.full((60, 2), 4.0))


def entries_by_rank(**case):
    return [Sparse.of(gradient_of(rank, **case)).indices for rank in range(NUM)]


def union_of(sets):
    return torch.cat(list(sets)).unique()


def ag_sparse_bytes(sets, entry_bytes, rank):
    sent = 3 * len(sets[rank]) * (entry_bytes + 4)
    return sent, sum(len(indices) * (entry_bytes + 4) for other, indices in enumerate(sets) if other != rank)


def sparcml_bytes(sets, entry_bytes, rank):
    first, second = rank ^ 1, rank ^ 2
    sent = len(sets[rank]) + len(union_of([sets[rank], sets[first]]))
    received = len(sets[first]) + len(union_of([sets[second], sets[second ^ 1]]))
    return sent * (entry_bytes + 4), received * (entry_bytes + 4)


def push_pull_bytes(sets, entry_bytes, rank, cut, written=None):
    """Push parts in COO, pull sums with indices, of 4 bytes each unless `written` gives a partition's."""
    parts, total = [cut(indices) for indices in sets], cut(union_of(sets))
    pulled = [len(part) * entry_bytes + (written(p) if written else 4 * len(part)) for p, part in enumerate(total)]
    pushed = [[len(part) * (entry_bytes + 4) for part in of_rank] for of_rank in parts]
    sent = sum(pushed[rank]) - pushed[rank][rank] + 3 * pulled[rank]
    return sent, sum(row[rank] for other, row in enumerate(pushed) if other != rank) + sum(pulled) - pulled[rank]


def ranges(indices):
    return [indices[indices * NUM // 1000 == p] for p in range(NUM)]


def hashed(indices):
    return partition(indices, NUM, 0)


CLOSED_FORMS = {
    "Dense": lambda sets, entry_bytes, rank: (1.5 * 1000 * entry_bytes,) * 2,
    "AGsparse": ag_sparse_bytes,
    "SparCML": sparcml_bytes,
    "Sparse PS": lambda *of: push_pull_bytes(*of, ranges),
    "Zen, COO": lambda *of: push_pull_bytes(*of, hashed),
    "Zen": lambda *of: push_pull_bytes(*of, hashed, HashBitmap(1000, NUM, 0).num_bytes),
}


@pytest.mark.parametrize("entry", [(), (5,)], ids=["values", "rows"])
def test_bytes_of_each_rank_and_direction_are_the_closed_form(ranks, entry):
    case = {"domain_size": 1000, "entry": entry, "share": 0.2}
    sets, entry_bytes = entries_by_rank(**case), 4 * torch.Size(entry).numel()
    for rank, counted in enumerate(ranks.run(lambda: [summed(scheme, **case)[1:] for scheme in CLOSED_FORMS])):
        assert counted == [of(sets, entry_bytes, rank) for of in CLOSED_FORMS.values()]
    # 2,000 values are 8 blocks: of other servers 6 are pushed, and 2 sums go to 3 ranks.
    counted = ranks.run(summed, "OmniReduce", domain_size=2000, entry=(), share=0.5)
    assert [tuple(num_bytes) for _, *num_bytes in counted] == [(12 * (4 * 256 + 4),) * 2] * NUM


def sent_on_the_wire(scheme, **case):
    before = tcp_bytes_sent()
    _, sent, _ = summed(scheme, **case)
    dist.barrier()
    return sent, tcp_bytes_sent() - before


def test_counted_bytes_are_those_on_the_wire_but_for_lengths_and_headers(ranks):
    for scheme in ("AGsparse", "torch, sparse", "Zen"):
        ranks.run(sent_on_the_wire, scheme, domain_size=100, entry=(), share=0.5)  # opens connections
        for sent, written in ranks.run(sent_on_the_wire, scheme, domain_size=100_000, entry=(4,), share=0.1):
            assert sent <= written < 1.05 * sent + 8000


def reduced(layout, seeds=(0,), domain_sizes=(60,), dtypes=(torch.float32,), **options):
    rank = dist.get_rank()
    tensor = gradient_of(rank, domain_sizes[rank % len(domain_sizes)], (3,), 0.3).to(dtypes[rank % len(dtypes)])
    if layout == "sparse":  # one index twice
        rows = torch.tensor([7, 7, rank])
        tensor = torch.sparse_coo_tensor(rows[None], torch.ones(3, 3), (60, 3), check_invariants=True)
    synchroniser = zen.SparseSynchroniser(seed=seeds[rank % len(seeds)], **options)
    return synchroniser.all_reduce(tensor), tensor.to_dense()


@pytest.mark.parametrize("ranks_per_host", [1, 2, 4])
def test_a_tensor_keeps_its_layout_and_equal_indices_are_summed(ranks, ranks_per_host):
    for layout in ("dense", "sparse"):
        by_rank = ranks.run(tidy, reduced, layout, ranks_per_host=ranks_per_host)
        expected = torch.stack([gradient for _, gradient in by_rank]).sum(dim=0)
        for total, _ in by_rank:
            assert (total.layout == torch.sparse_coo) == (layout == "sparse")
            torch.testing.assert_close(total.to_dense(), expected)


def out_of_range(rank):
    index = torch.tensor([[9 if dist.get_rank() == rank else 1]])
    return torch.sparse_coo_tensor(index, torch.ones(1, 2), (9, 2), check_invariants=False)


def small_ddp(rows=30):
    return DistributedDataParallel(nn.Sequential(nn.Linear(rows, 2)))


REFUSED = {
    "seed is 1 on rank 1 and 0 on rank 0": lambda: reduced("dense", seeds=(0, 1)),
    "shape is (61, 3) on rank 1 and (60, 3) on rank 0": lambda: reduced("dense", domain_sizes=(60, 61)),
    "shape is (59, 3) on rank 1": lambda: reduced("dense", domain_sizes=(60, 59), ranks_per_host=2),
    "shape is (61, 3) on rank 1": lambda: reduced("dense", domain_sizes=(60, 61), scheme="Dense"),
    "dtype is torch.bfloat16 on rank 1": lambda: reduced("dense", dtypes=(torch.float16, torch.bfloat16)),
    "scheme is AGsparse on rank 1": lambda: reduced("dense", scheme=("Zen", "AGsparse")[dist.get_rank() % 2]),
    "rank 2: indices hold 9; each must be in 0 .. 8": lambda: zen.all_reduce_sparse(out_of_range(rank=2)),
    "scheme is 'Zenn'": lambda: reduced("dense", scheme="Zenn"),
    "must divide the 4 ranks": lambda: reduced("dense", ranks_per_host=3),
    "with rows": lambda: zen.all_reduce_sparse(torch.tensor(1.0)),
    "no embedding": lambda: zen.synchronise(small_ddp()),
}


def test_bad_input_is_named_on_all_ranks(ranks):
    for messages in ranks.run(tidy, lambda: [refusal(call) for call in REFUSED.values()]):
        assert all(rule in message for rule, message in zip(REFUSED, messages, strict=True)), messages


def trained(sparse, scheme, ranks_per_host=1, steps=3, device="cpu"):
    """Run on a rank: the largest difference of gradients between DDP and the hook, in all steps."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(200, 6, sparse=sparse), nn.Flatten(), nn.Linear(24, 3)).to(device)
    plain = DistributedDataParallel(copy.deepcopy(module))
    hooked = DistributedDataParallel(module, bucket_cap_mb=zen.BUCKET_MB)
    sums = zen.synchronise(hooked, scheme=scheme, ranks_per_host=ranks_per_host)
    draw, largest = torch.Generator().manual_seed(dist.get_rank()), 0.0
    for _ in range(steps):
        ids = torch.randint(200, (5, 4), generator=draw).to(device)
        for model in (plain, hooked):
            model.zero_grad()
            model(ids).square().sum().backward()
        for weight, other in zip(plain.parameters(), hooked.parameters(), strict=True):
            assert weight.grad.layout == other.grad.layout
            largest = max(largest, (weight.grad.to_dense() - other.grad.to_dense()).abs().max().item())
    return largest, sums.wire.sent_bytes


def test_the_hook_equals_ddp_also_where_ranks_share_a_host(ranks):
    for sparse in (True, False):
        for difference, sent_bytes in ranks.run(tidy, trained, sparse, "Zen", 2):
            assert difference < 1e-5
            assert sent_bytes > 0


def shared_bucket():
    """Run on a rank: bytes that Zen sent for a table whose bucket a small parameter shares, step by step."""
    module = nn.Sequential(nn.Embedding(500, 8), nn.LayerNorm(8))
    model = DistributedDataParallel(module, bucket_cap_mb=zen.BUCKET_MB)
    sums, sent_bytes = zen.synchronise(model), []
    for _ in range(3):
        model.zero_grad()
        model(torch.arange(10) + dist.get_rank()).sum().backward()
        sent_bytes.append(sums.wire.sent_bytes)
    return sent_bytes


def test_a_table_that_shares_its_bucket_is_summed_by_zen_in_every_step(ranks):
    for first, second, third in ranks.run(shared_bucket):
        assert 0 < first < second < third


def in_two_groups():
    groups = [dist.new_group(members) for members in ([0, 1], [2, 3])]
    group = groups[dist.get_rank() // 2]
    tensor = torch.full((6,), float(dist.get_rank()))
    with pytest.raises(ValueError, match="must be 1 here: the group has 2 of 4 ranks"):
        zen.SparseSynchroniser(group, ranks_per_host=2)
    return int(zen.all_reduce_sparse(tensor, group)[0])


def test_groups_sum_for_themselves(ranks):
    assert ranks.run(tidy, in_two_groups) == [1, 1, 5, 5]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_hook_equals_ddp_on_a_gpu():
    with Ranks(1, device="cuda") as ranks:
        assert all(difference < 1e-5 for difference, _ in ranks.run(tidy, trained, False, "Zen", device="cuda"))


def test_an_error_on_a_gpu_reaches_the_backward_pass_that_waits(monkeypatch):
    failed, done = RuntimeError("device-side assert triggered"), torch.futures.Future()
    stream = mock.Mock(**{"synchronize.side_effect": failed})
    monkeypatch.setattr(torch.cuda, "set_device", print)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    bucket, inbox, sums = hook._Bucket(torch.ones(2), [], [], mock.Mock(), done), SimpleQueue(), mock.Mock()
    sums.all_reduce_.return_value = [bucket.buffer]
    inbox.put([bucket])
    inbox.put(None)
    hook._serve(inbox, sums, mock.Mock(size=1))
    assert done.done() and bucket.error is failed


def in_the_background():
    """Run on a rank: whether the backward pass goes on while a table is summed, and what it raises if that fails."""
    has_gone_on, went_on = threading.Event(), []

    def waiting(gradient, wire):
        went_on.append(has_gone_on.wait(20))
        if len(went_on) == 2:
            raise OverflowError("too many")
        return SCHEMES["Zen"](gradient, wire)

    module = nn.Sequential(nn.Linear(3, 4), nn.Embedding(20, 4))
    module.forward = lambda x: (module[0](x) * module[1](torch.arange(2))).sum()
    model = DistributedDataParallel(module, bucket_cap_mb=zen.BUCKET_MB)
    model(torch.ones(2, 3)).backward()  # buckets now come as gradients do: the table's before those of the first layer
    zen.synchronise(model, scheme=waiting)
    module[0].weight.register_hook(lambda _: has_gone_on.set())
    model(torch.ones(2, 3)).backward()
    with pytest.raises(RuntimeError, match="too many"):
        model(torch.ones(2, 3)).backward()
    return went_on


def test_the_backward_pass_goes_on_during_a_sum_and_raises_its_error(ranks):
    assert ranks.run(tidy, in_the_background) == [[True, True]] * NUM


def hooked_in_two_groups(rank_with_more_groups):
    groups = [dist.new_group(members) for members in ([0, 1], [2, 3], [rank_with_more_groups])]
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Embedding(9, 2), process_group=groups[dist.get_rank() // 2])
    zen.synchronise(model)
    (model(torch.tensor([dist.get_rank()])) * (1 + dist.get_rank())).sum().backward()
    return model.module.weight.grad[:, 0].tolist()[:4]


@pytest.mark.parametrize("rank_with_more_groups", [0, 3, 0])
def test_a_model_of_a_part_of_the_ranks_is_synchronised_by_itself(ranks, rank_with_more_groups):
    by_rank = ranks.run(tidy, hooked_in_two_groups, rank_with_more_groups)
    assert by_rank == [[0.5, 1.0, 0.0, 0.0]] * 2 + [[0.0, 0.0, 1.5, 2.0]] * 2


class Tied(nn.Module):
    """A table that the head shares, and a table of its own."""

    def __init__(self, has_own):
        super().__init__()
        self.table, self.head = nn.Embedding(500, 8), nn.Linear(8, 500, bias=False)
        self.head.weight = self.table.weight
        self.own = nn.Embedding(100, 8) if has_own else nn.Linear(1, 8)

    def forward(self, ids):
        return self.head(self.table(ids) + self.own(ids)).square().sum()


def tied(has_own):
    """Run on a rank: what is warned of, and bytes that Zen sent."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = DistributedDataParallel(Tied(has_own), bucket_cap_mb=zen.BUCKET_MB)
        sums = zen.synchronise(model)
    model(torch.arange(10)).backward()
    return [str(warning.message).split(":")[0] for warning in caught], sums.wire.sent_bytes


def test_a_table_that_the_head_shares_is_summed_densely_with_a_warning(ranks):
    (first, sent_bytes), *others = ranks.run(tied, True)
    assert first == ["table shares its weight with a layer that is no embedding"]
    assert 0 < sent_bytes < 6 * 10 * (8 * 4 + 4)  # 10 rows of the other table are pushed and pulled, at most thrice
    assert all(messages == [] for messages, _ in others)
    assert all("no embedding of its own" in message for message in ranks.run(refusal, tied, False))
