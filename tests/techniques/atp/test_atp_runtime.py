"""Blocks on meshes of real ranks against one process, the one-dimensional linears and DTensor."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tests.cases import refusal, tidy
from tests.techniques.atp.atp_models import VOCABULARY, language_model
from workbench.launch import Ranks
from workbench.models.gpt2 import GPT2Block, GPT2Config
from workbench.parallel import exchanges
from workbench.parallel.exchanges import take_share
from workbench.parallel.groups import RecordedTensorGroup
from workbench.parallel.linear import MeshLinear
from workbench.techniques.atp.runtime import parallelize
from workbench.techniques.atp.runtime.block import PARTS, BlockConfig, MeshBlock, open_mesh
from workbench.timeline import Recorder

HIDDEN, HEADS, INNER = 48, 24, 96
MESHES = [(1, 4), (2, 2), (4, 1)]


@pytest.fixture(scope="module")
def ranks(pools):
    return pools(4)


def inputs(batch=4, sequence=24, hidden=HIDDEN):
    return torch.randn(batch, sequence, hidden, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def reference():
    config = GPT2Config(hidden_size=HIDDEN, num_layers=1, num_heads=HEADS, dropout=0.0)
    block = GPT2Block(config, 0).double()
    with torch.no_grad():  # no bias and no norm that a mistake would leave as it is
        for number, parameter in enumerate(block.parameters()):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) * 0.1)
    return block


def share(full, mesh, sequence_parallel):
    x = take_share(full, mesh.axis2, 2)
    return take_share(x, mesh.axis1, 1) if sequence_parallel else x


def on_mesh(d1, d2, device="cpu", **options):
    """Run on a rank: output, input gradient and all weight gradients of a block, joined."""
    mesh, plain = open_mesh(d1, d2, device), reference()
    config = BlockConfig(hidden_size=HIDDEN, num_heads=HEADS, mlp_size=4 * HIDDEN, **options)
    block = MeshBlock(config, mesh, dtype=torch.float64, device=device)
    block.load_full_(dict(plain.named_parameters()))
    x = inputs().to(device).requires_grad_()
    y = block(share(x, mesh, config.sequence_parallel))
    y.backward(share(inputs().to(device), mesh, config.sequence_parallel))
    if config.sequence_parallel:
        y = torch.cat(mesh.axis1.gather([y]), 1)
    return torch.cat(mesh.axis2.gather([y]), 2), x.grad, block.full(gradient=True)


def by_one_process():
    block, x = reference(), inputs().requires_grad_()
    y = block(x)
    y.backward(inputs())
    return (
        y.detach(),
        x.grad,
        {f"{part}.{kind}": getattr(getattr(block, part), kind).grad for part in PARTS for kind in ("weight", "bias")},
    )


@pytest.mark.parametrize("options", [{}, {"chunks": 2}, {"chunks": 4, "overlap": False}, {"sequence_parallel": True}])
def test_a_block_on_every_mesh_equals_that_of_one_process(ranks, options):
    wanted = by_one_process()
    for shape in MESHES:
        for outcome in ranks.run(tidy, on_mesh, *shape, **options):
            torch.testing.assert_close(outcome, wanted, msg=lambda text, shape=shape: f"{shape}: {text}")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("options", [{"chunks": 2}, {"sequence_parallel": True}])
def test_on_a_gpu_a_block_is_that_of_one_process(options):
    wanted = by_one_process()
    with Ranks(4, device="cuda") as ranks:
        for shape in MESHES:
            for outcome in ranks.run(tidy, on_mesh, *shape, "cuda", **options):
                torch.testing.assert_close(outcome, wanted, check_device=False)


def beside_dtensor(d1, d2, is_column_first):
    """Run on a rank: differences of a linear's output and gradients between the mesh and DTensor."""
    mesh = open_mesh(d1, d2)
    axes = (mesh.axis1, mesh.axis2) if is_column_first else (mesh.axis2, mesh.axis1)
    linear = MeshLinear(HIDDEN, INNER, *axes, bias=False, dtype=torch.float64)
    full = linear.full_weight()
    # of the weight [in, out]: column-first [Shard(1), Shard(0)], row-first [Shard(0), Shard(1)] (figure 5)
    cuts, x_cuts = (
        ([Shard(1), Shard(0)], [Replicate(), Shard(2)])
        if is_column_first
        else ([Shard(0), Shard(1)], [Shard(2), Replicate()])
    )
    x, weight = (
        distribute_tensor(tensor.requires_grad_(), mesh.device_mesh, cut)
        for tensor, cut in ((inputs(), x_cuts), (full.T.contiguous(), cuts))
    )
    replicated = (x @ weight).full_tensor()
    replicated.backward(torch.ones_like(replicated) / 1.0)
    x_mesh = inputs().requires_grad_()
    y = linear(take_share(x_mesh, axes[1], 2))
    y.backward(torch.ones_like(y))
    whole = torch.cat(axes[0].gather([y]), 2)
    pairs = (
        (whole, replicated),
        (linear.full_weight(gradient=True).T, weight.grad.full_tensor()),
        (x_mesh.grad, x.grad.full_tensor()),
    )
    return [(tensor - other).abs().max().item() for tensor, other in pairs]


@pytest.mark.parametrize("is_column_first", [True, False], ids=["column-first", "row-first"])
def test_linears_equal_dtensors_in_output_and_gradients(ranks, is_column_first):
    for shape in MESHES:
        for differences in ranks.run(tidy, beside_dtensor, *shape, is_column_first):
            assert max(differences) < 1e-10, (shape, differences)


def trained(kind, mesh, **options):
    """Run on a rank: losses of a few steps, and the embedding afterwards; mesh None is the model as it was."""
    model = language_model(kind)
    if mesh is not None:
        parallelize(model, mesh, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ids = torch.randint(VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[0, 8:] = mask[2, 5:] = 0
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.get_input_embeddings().weight.detach()


@pytest.mark.parametrize(
    ("kind", "options"), [("gpt2", {"chunks": 2}), ("bert", {"chunks": 2}), ("bert", {"sequence_parallel": True})]
)
def test_models_of_hugging_face_train_as_in_one_process_in_chunks_and_with_the_sequence_cut(ranks, kind, options):
    losses, embedding = trained(kind, None)
    for shape in MESHES[1:]:
        for mesh_losses, weights in ranks.run(tidy, trained, kind, shape, **options):
            assert mesh_losses == pytest.approx(losses, rel=1e-4), shape
            torch.testing.assert_close(weights, embedding, rtol=1e-3, atol=1e-4)


class Own(torch.nn.Module):
    """A model of a user: GPT-2 with a head, without a `config`, and with other weights on every rank."""

    def __init__(self):
        super().__init__()
        self.body, self.head = language_model("gpt2").transformer, torch.nn.Linear(16, 3).double()
        with torch.no_grad():
            self.head.bias.add_(dist.get_rank()), self.body.h[0].mlp.c_fc.bias.add_(dist.get_rank())

    def forward(self, ids):
        return self.head(self.body(ids).last_hidden_state).square().mean()


def own_model(mesh, is_wrapped=False):
    model, losses = Own(), []
    if mesh is not None:
        parallelize(model, mesh)
    model = DistributedDataParallel(model) if is_wrapped else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.arange(8).view(1, 8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_a_users_model_has_the_first_ranks_weights_also_where_it_is_wrapped_afterwards(ranks):
    wanted = pytest.approx(ranks.run(tidy, own_model, None)[0], rel=1e-4)
    assert ranks.run(tidy, own_model, (2, 2)) == [wanted] * 4
    assert ranks.run(tidy, own_model, (4, 1), is_wrapped=True) == [wanted] * 4


def chosen():
    model = language_model("gpt2")
    strategy = parallelize(model, batch=2, sequence=8)
    ids = torch.arange(16).view(2, 8)
    return strategy.name, model(input_ids=ids, labels=ids).loss.item()


def test_without_a_mesh_the_links_are_measured_and_all_ranks_choose_the_same(ranks):
    (name, loss), *others = ranks.run(tidy, chosen)
    assert name.startswith("ATP-")
    assert all(other == (name, pytest.approx(loss)) for other in others)


def changed(change):
    model = language_model("gpt2")
    change(model.transformer.h)
    parallelize(model, (4, 1))


def pass_of(model, step, odd="", mask=None):
    """Compute a pass of which one rank has something else."""
    ids, rank = torch.arange(8).view(1, 8) + step, dist.get_rank()
    labels = ids + 1 if odd == "labels" and rank == 2 else ids
    if odd == "ids" and rank == 2:
        ids = ids.flip(1)
    if odd == "length" and rank == 2:
        ids = labels = ids[:, :4]
    if odd == "mask":
        mask = torch.ones_like(ids)
        mask[0, 5:] = rank != 2
    model(input_ids=ids, labels=labels, attention_mask=mask).loss.backward()


def with_other_batches(odd):
    model = language_model("gpt2")
    parallelize(model, (2, 2))
    for step in range(3):
        pass_of(model, step)
    pass_of(model, 3, odd)


def with_weights_apart():
    """Clip each rank's gradients by the norm of its own shards, as no function of torch does."""
    model = language_model("bert")
    parallelize(model, (2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(9):  # weights are compared in the first pass and in the ninth
        optimizer.zero_grad()
        pass_of(model, step)
        norms = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.1 / torch.stack(norms).norm())
        optimizer.step()


def with_a_new_head():
    model = language_model("gpt2")
    parallelize(model, (4, 1))
    torch.manual_seed(dist.get_rank())
    model.resize_token_embeddings(60, mean_resizing=False)
    pass_of(model, 0)


def asked(**options):
    model = language_model("gpt2").eval()
    parallelize(model, (4, 1))
    model(torch.arange(8).view(1, 8), **options)


def twice():
    model = language_model("gpt2")
    parallelize(model, (4, 1))
    parallelize(model, (4, 1))


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: parallelize(language_model("gpt2"), (2, 1)), "2 x 1 is not the number of ranks, 4"),
        (lambda: parallelize(torch.nn.Linear(2, 2), (4, 1)), "Linear has neither a GPT2Model nor a BertModel"),
        (lambda: parallelize(language_model("gpt2", activation_function="relu"), (4, 1)), "activation gelu_new"),
        (lambda: parallelize(language_model("bert", is_decoder=True), (4, 1)), "those of an encoder"),
        (lambda: open_mesh(3, 1), "3 x 1 is not the number of ranks, 4"),
        (lambda: BlockConfig(hidden_size=6, num_heads=2, mlp_size=8).check_mesh(4, 1), "2 is not divisible by 4"),
        (lambda: BlockConfig(hidden_size=6, num_heads=4, mlp_size=8), "num_heads: 4 does not divide hidden_size 6"),
        (lambda: parallelize(language_model("gpt2", scale_attn_weights=False), (4, 1)), "scaled scores"),
        (
            lambda: parallelize(language_model("gpt2"), chunks=2, sequence_parallel=True),
            "chunks: 2; sequence parallelism",
        ),
        (partial(changed, lambda h: h[1].ln_1.requires_grad_(False)), "some parameters of block 1 are frozen"),
        (partial(changed, lambda h: h[1].mlp.register_forward_hook(lambda *_: None)), "block 1 has hooks"),
        (partial(changed, lambda h: h[0].ln_1.bfloat16()), "block 0 has parameters of several types"),
        (partial(changed, lambda h: h.__setitem__(1, h[0])), "blocks share parameters"),
        (twice, "on a mesh already"),
        (partial(with_other_batches, "ids"), "input: hidden states of rank 2 differ from those of rank 0"),
        (partial(with_other_batches, "length"), "input: hidden states of rank 2 differ from those of rank 0"),
        (partial(with_other_batches, "mask"), "input: attention masks of rank 2 differ from those of rank 0"),
        (partial(with_other_batches, "labels"), "output of rank 2 differ from those of rank 0; every rank must have"),
        (with_weights_apart, r"of rank 1 differ from those of rank 0; ranks must update them alike"),
        (with_a_new_head, "weights: transformer.wte.weight of rank 1 differ from those of rank 0"),
        (partial(asked, output_attentions=True), "output_attentions: blocks on a mesh keep no attention weights"),
        (partial(asked, use_cache=True), "past_key_values: blocks on a mesh keep no keys and values"),
        (partial(asked, is_causal=False), "is_causal: False is not what a GPT2Model on a mesh computes"),
        (partial(asked, encoder_hidden_states=torch.ones(1, 8, 16)), "encoder_hidden_states: blocks on a mesh have no"),
        (lambda: open_mesh(2, 1, replicas=3), "replicas, d1, d2: 3 x 2 x 1 is not the number of ranks, 4"),
        (lambda: parallelize(DistributedDataParallel(language_model("gpt2")), (4, 1)), "give the module in it"),
    ],
)
def test_bad_input_is_named_on_all_ranks(ranks, call, rule):
    assert all(rule in message for message in ranks.run(tidy, refusal, call))


def dropped(sequence_parallel):
    """Run on a rank: the masks of a sub-layer's and of the attention's dropout."""
    mesh = open_mesh(2, 2)
    sizes = {"hidden_size": HIDDEN, "num_heads": HEADS, "mlp_size": INNER, "dropout": 0.5, "attention_dropout": 0.5}
    block = MeshBlock(BlockConfig(**sizes, sequence_parallel=sequence_parallel), mesh)
    like = torch.ones(1)
    return block.dropouts[0].scale((64,), like), block.attention_dropout.scale((64,), like)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_ranks_drop_the_same_of_what_they_share_and_other_units_of_what_is_theirs(ranks, sequence_parallel):
    masks, attention = zip(*ranks.run(tidy, dropped, sequence_parallel), strict=True)
    assert torch.equal(masks[0], masks[2]) is not sequence_parallel  # ranks of axis 1: one hidden part, all positions
    assert not torch.equal(masks[0], masks[1])
    assert len({tuple(mask.tolist()) for mask in attention}) == 4  # every rank has heads of its own


def with_dropout(mesh):
    model = language_model("gpt2", dropout=0.3)
    parallelize(model, mesh)
    ids = torch.arange(24).view(2, 12)
    model.train()
    losses = [model(input_ids=ids, labels=ids).loss.item() for _ in range(2)]
    model.eval()
    return losses, model(input_ids=ids, labels=ids).loss.item()


def test_dropout_acts_in_training_and_all_ranks_have_one_loss(ranks):
    results = ranks.run(tidy, with_dropout, (2, 2))
    (losses, evaluated), plain = results[0], language_model("gpt2").eval()
    ids = torch.arange(24).view(2, 12)
    assert losses[0] != losses[1]
    assert evaluated == pytest.approx(plain(input_ids=ids, labels=ids).loss.item(), rel=1e-5)
    assert all(other == (pytest.approx(losses), pytest.approx(evaluated)) for other in results)


def generated(mesh):
    """Return tokens of a beam search, and all hidden states of a model that had recorded them before."""
    model, ids = language_model("gpt2").eval(), torch.arange(8).view(2, 4)
    before = model(ids, output_hidden_states=True).hidden_states
    if mesh is not None:
        parallelize(model, mesh)
    options = {"num_beams": 2, "do_sample": False, "pad_token_id": 0, "use_cache": False}
    after = model(ids, output_hidden_states=True).hidden_states
    return model.generate(ids, max_new_tokens=6, **options), [x.detach() for x in before], [x.detach() for x in after]


def test_tokens_and_hidden_states_are_those_of_one_process(ranks):
    tokens, *hidden_states = generated(None)
    for shape in ((2, 2), (4, 1)):
        for mesh_tokens, *mesh_states in ranks.run(tidy, generated, shape):
            assert torch.equal(mesh_tokens, tokens)
            torch.testing.assert_close(mesh_states, hidden_states)


def events():
    """Run on a rank: what a forward pass of two chunks starts and waits for, in order."""
    mesh, seen = open_mesh(4, 1), []
    block = MeshBlock(BlockConfig(hidden_size=HIDDEN, num_heads=HEADS, mlp_size=INNER, chunks=2), mesh)
    begun, waited = mesh.axis1.start, exchanges.Pending.wait

    def start(collective, *tensors, **where):
        seen.append("start")
        return begun(collective, *tensors, **where)

    def wait(pending):
        seen.extend(["wait"] * (pending.work is not None))
        return waited(pending)

    mesh.axis1.start, exchanges.Pending.wait = start, wait
    try:
        block(inputs().float())
    finally:
        exchanges.Pending.wait = waited
    return seen


def test_a_chunks_message_is_waited_for_when_the_next_chunk_has_computed(ranks):
    # Two chunks with two messages each: the second chunk's first one starts before the first chunk's is waited for.
    wanted = ["start", "start", "wait", "start", "wait", "start", "wait", "wait"]
    assert ranks.run(tidy, events) == [wanted] * 4


def timeline():
    mesh = open_mesh(4, 1, group=partial(RecordedTensorGroup, recorder=(recorder := Recorder(resource="rank"))))
    config = BlockConfig(hidden_size=256, num_heads=8, mlp_size=1024, chunks=2)
    block = MeshBlock(config, mesh)
    x = torch.randn(8, 64, 256, requires_grad=True)
    for _ in range(2):
        block(x).sum().backward()
    return [(action.label, action.start_s, action.end_s) for action in recorder.actions]


def test_a_recorder_sees_every_message_from_its_start_to_its_end(ranks):
    for actions in ranks.run(tidy, timeline):
        sums = [(start, end) for label, start, end in actions if label == "all_reduce"]
        assert len(sums) == 2 * (2 * 2 + 2 * 2)  # twice: forward two a block and chunk, backward two a chunk
        assert all(end >= start for start, end in sums)
