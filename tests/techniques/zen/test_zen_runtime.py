"""Every scheme on real ranks equals the dense all-reduce, with counted bytes; the hook equals DDP; what is refused."""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.launch import Ranks
from workbench.parallel.traffic import tcp_bytes_sent
from workbench.techniques import zen
from workbench.techniques.zen.method import HashBitmap, partition
from workbench.techniques.zen.runtime.exchange import Sparse, Wire
from workbench.techniques.zen.runtime.schemes import SCHEMES

NUM = 4


@pytest.fixture(scope="module")
def ranks():
    with Ranks(NUM, preload=("workbench.techniques.zen",)) as ranks:
        yield ranks


def gradient_of(rank, domain_size, entry, share, empty_rank=None):
    """Draw a dense tensor of which a share of the entries is not zero, denser at its beginning."""
    draw = torch.Generator().manual_seed(rank)
    chances = share * 2 * (1 - torch.arange(domain_size) / domain_size)
    is_there = (torch.rand(domain_size, generator=draw) < chances) & (rank != empty_rank)
    return torch.randn(domain_size, *entry, generator=draw) * is_there.view(-1, *(1 for _ in entry))


def summed(scheme, domain_size, entry, share, **more):
    """Run on a rank: the sum by a scheme, and the bytes of each direction."""
    gradient, wire = gradient_of(dist.get_rank(), domain_size, entry, share, **more), Wire()
    return SCHEMES[scheme](Sparse.of(gradient), wire).to_dense(), wire.sent_bytes, wire.received_bytes


CASES = {
    "values": {"domain_size": 1000, "entry": (), "share": 0.1},
    "rows": {"domain_size": 300, "entry": (5,), "share": 0.2},
    "all there": {"domain_size": 64, "entry": (2, 3), "share": 1.0},
    "a rank with nothing": {"domain_size": 1000, "entry": (), "share": 0.1, "empty_rank": 2},
    "nothing at all": {"domain_size": 50, "entry": (3,), "share": 0.0},
    "fewer entries than ranks": {"domain_size": 3, "entry": (), "share": 0.6},
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("case", CASES)
def test_every_scheme_equals_the_dense_sum_with_the_same_bits_on_all_ranks(ranks, scheme, case):
    found = [total for total, *_ in ranks.run(summed, scheme, **CASES[case])]
    expected = torch.stack([gradient_of(rank, **CASES[case]) for rank in range(NUM)]).sum(dim=0)
    torch.testing.assert_close(found[0], expected)
    assert all(torch.equal(total, found[0]) for total in found)


def entries_by_rank(**case):
    return [Sparse.of(gradient_of(rank, **case)).indices for rank in range(NUM)]


def union_of(sets):
    return torch.cat(list(sets)).unique()


def ag_sparse_bytes(sets, entry_bytes, rank):
    sent = 3 * len(sets[rank]) * (entry_bytes + 4)
    return sent, sum(len(one) * (entry_bytes + 4) for other, one in enumerate(sets) if other != rank)


def sparcml_bytes(sets, entry_bytes, rank):
    first, second = rank ^ 1, rank ^ 2
    sent = len(sets[rank]) + len(union_of([sets[rank], sets[first]]))
    received = len(sets[first]) + len(union_of([sets[second], sets[second ^ 1]]))
    return sent * (entry_bytes + 4), received * (entry_bytes + 4)


def push_pull_bytes(sets, entry_bytes, rank, cut, written=None):
    """Push parts in COO, pull sums with indices, of 4 bytes each unless `written` gives a partition's."""
    parts, total = [cut(one) for one in sets], cut(union_of(sets))
    own = [len(part) * entry_bytes + (written(p) if written else 4 * len(part)) for p, part in enumerate(total)]
    pushed = [[len(part) * (entry_bytes + 4) for part in of_rank] for of_rank in parts]
    sent = sum(pushed[rank]) - pushed[rank][rank] + 3 * own[rank]
    return sent, sum(row[rank] for other, row in enumerate(pushed) if other != rank) + sum(own) - own[rank]


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


@pytest.mark.parametrize("scheme", CLOSED_FORMS)
@pytest.mark.parametrize("entry", [(), (5,)], ids=["values", "rows"])
def test_bytes_of_each_rank_and_direction_are_the_closed_form(ranks, scheme, entry):
    case = {"domain_size": 1000, "entry": entry, "share": 0.2}
    sets, entry_bytes = entries_by_rank(**case), 4 * torch.Size(entry).numel()
    counted = [(sent, received) for _, sent, received in ranks.run(summed, scheme, **case)]
    assert counted == [CLOSED_FORMS[scheme](sets, entry_bytes, rank) for rank in range(NUM)]


def test_omni_reduce_sends_whole_blocks(ranks):
    # 2,000 values are 8 blocks: of other servers 6 are pushed, and 2 sums go to 3 ranks.
    case = {"domain_size": 2000, "entry": (), "share": 0.5}
    counted = [(sent, received) for _, sent, received in ranks.run(summed, "OmniReduce", **case)]
    assert counted == [(12 * (4 * 256 + 4),) * 2] * NUM


def sent_on_the_wire(scheme, **case):
    before = tcp_bytes_sent()
    _, sent, _ = summed(scheme, **case)
    dist.barrier()
    return sent, tcp_bytes_sent() - before


@pytest.mark.parametrize("scheme", ["AGsparse", "torch, sparse", "Zen"])
def test_counted_bytes_are_those_on_the_wire_but_for_lengths_and_headers(ranks, scheme):
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
@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_a_tensor_keeps_its_layout_and_equal_indices_are_summed(ranks, layout, ranks_per_host):
    found = ranks.run(reduced, layout, ranks_per_host=ranks_per_host)
    expected = torch.stack([own for _, own in found]).sum(dim=0)
    for total, _ in found:
        assert (total.layout == torch.sparse_coo) == (layout == "sparse")
        torch.testing.assert_close(total.to_dense(), expected)


def with_nan():
    tensor = torch.zeros(20)
    if dist.get_rank() == 1:
        tensor[[3, 5]] = torch.tensor([torch.nan, 2.0])
    return zen.all_reduce_sparse(tensor)


def test_nan_arrives_on_all_ranks(ranks):
    for total in ranks.run(with_nan):
        assert total.isnan().nonzero().tolist() == [[3]]
        assert total[5] == 2


def refusal(call, *args, **options):
    try:
        call(*args, **options)
    except ValueError as error:
        return str(error)
    return "accepted"


def out_of_range(rank):
    index = torch.tensor([[9 if dist.get_rank() == rank else 1]])
    return torch.sparse_coo_tensor(index, torch.ones(1, 2), (9, 2), check_invariants=False)


def small_ddp(rows=30):
    return DistributedDataParallel(nn.Sequential(nn.Linear(rows, 2)))


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: reduced("dense", seeds=(0, 1)), "seed is 1 on rank 1 and 0 on rank 0"),
        (lambda: reduced("dense", domain_sizes=(60, 61)), "shape is (61, 3) on rank 1 and (60, 3) on rank 0"),
        (lambda: reduced("dense", domain_sizes=(60, 59), ranks_per_host=2), "shape is (59, 3) on rank 1"),
        (lambda: reduced("dense", domain_sizes=(60, 61), scheme="Dense"), "shape is (61, 3) on rank 1"),
        (lambda: reduced("dense", dtypes=(torch.float16, torch.bfloat16)), "dtype is torch.bfloat16 on rank 1"),
        (lambda: reduced("dense", scheme=("Zen", "AGsparse")[dist.get_rank() % 2]), "scheme is AGsparse on rank 1"),
        (lambda: zen.all_reduce_sparse(out_of_range(rank=2)), "rank 2: indices hold 9; each must be in 0 .. 8"),
        (lambda: reduced("dense", scheme="Zenn"), "scheme is 'Zenn'"),
        (lambda: reduced("dense", ranks_per_host=3), "must divide the 4 ranks"),
        (lambda: zen.all_reduce_sparse(torch.tensor(1.0)), "with rows"),
        (lambda: zen.synchronise(small_ddp()), "no embedding"),
    ],
)
def test_bad_input_is_named_on_all_ranks(ranks, call, rule):
    assert all(rule in message for message in ranks.run(refusal, call))


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
        for own, other in zip(plain.parameters(), hooked.parameters(), strict=True):
            assert own.grad.layout == other.grad.layout
            largest = max(largest, (own.grad.to_dense() - other.grad.to_dense()).abs().max().item())
    return largest, sums.wire.sent_bytes


@pytest.mark.parametrize("ranks_per_host", [1, 2])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "stored dense"])
def test_the_hook_equals_ddp(ranks, sparse, ranks_per_host):
    for difference, sent_bytes in ranks.run(trained, sparse, "Zen", ranks_per_host):
        assert difference < 1e-5
        assert sent_bytes > 0


def shared_bucket():
    """Run on a rank: bytes that Zen sent for a table whose bucket a small parameter shares."""
    module = nn.Sequential(nn.Embedding(500, 8), nn.LayerNorm(8))
    model = DistributedDataParallel(module, bucket_cap_mb=zen.BUCKET_MB)
    sums, half = zen.synchronise(model), []
    for _ in range(3):
        model.zero_grad()
        model(torch.arange(10) + dist.get_rank()).sum().backward()
        half.append(sums.wire.sent_bytes)
    return half


def test_a_table_that_shares_its_bucket_is_summed_by_zen_in_every_step(ranks):
    for first, second, third in ranks.run(shared_bucket):
        assert 0 < first < second < third


def in_two_groups():
    groups = [dist.new_group(members) for members in ([0, 1], [2, 3])]
    own = groups[dist.get_rank() // 2]
    tensor = torch.full((6,), float(dist.get_rank()))
    with pytest.raises(ValueError, match="must be 1 here: the group has 2 of 4 ranks"):
        zen.SparseSynchroniser(own, ranks_per_host=2)
    return int(zen.all_reduce_sparse(tensor, own)[0])


def test_groups_sum_for_themselves(ranks):
    assert ranks.run(in_two_groups) == [1, 1, 5, 5]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_hook_equals_ddp_on_a_gpu():
    with Ranks(1, device="cuda") as ranks:
        assert all(difference < 1e-5 for difference, _ in ranks.run(trained, False, "Zen", device="cuda"))


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
    return [str(one.message).split(":")[0] for one in caught], sums.wire.sent_bytes


def test_a_table_that_the_head_shares_is_summed_densely_with_a_warning(ranks):
    (first, sent_bytes), *others = ranks.run(tied, True)
    assert first == ["table shares its weight with a layer that is no embedding"]
    assert 0 < sent_bytes < 6 * 10 * (8 * 4 + 4)  # 10 rows of the other table are pushed and pulled, at most thrice
    assert all(found == [] for found, _ in others)
    assert all("no embedding of its own" in message for message in ranks.run(refusal, tied, False))
