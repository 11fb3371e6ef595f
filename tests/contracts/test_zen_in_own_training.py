"""Zen in a training of one's own: beside DistributedDataParallel with the same model, batches and steps."""

import itertools
import warnings
import weakref
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.cases import refusal, tidy
from tests.contracts.language_models import NAMES, language_model
from tests.contracts.trainings import Guest, all_of, equal, resumed
from tests.contracts.works_with import Feature, refuses, works
from tests.lost_ranks import ENDINGS, errors_of_the_rest
from workbench.techniques import zen

VOCABULARY, WIDTH = 50, 4


class Text(nn.Module):
    """A table, normalised rows, and a head; a second table that some passes do not use."""

    def __init__(self, sparse: bool = False, dtype: torch.dtype | None = None):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(VOCABULARY, WIDTH, sparse=sparse, dtype=dtype)
        self.other = nn.Embedding(9, WIDTH, dtype=dtype)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(3))
        self.norm, self.head = nn.BatchNorm1d(WIDTH, dtype=dtype), nn.Linear(WIDTH, 3, dtype=dtype)
        self.uses_other, self.recompute = True, lambda block, x: block(x)

    def forward(self, ids):
        x = self.table(ids).mean(dim=1)
        if self.uses_other:
            x = x + self.other(ids[:, 0] % 9)
        for block in self.blocks:
            x = torch.tanh(self.recompute(block, x))
        return self.head(self.norm(x))


def batch(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randint(VOCABULARY, (6, 3), generator=generator)


def wrapped(module: nn.Module, with_zen: bool, **options) -> DistributedDataParallel:
    model = DistributedDataParallel(module, **{"bucket_cap_mb": zen.BUCKET_MB, **options})
    if with_zen:
        zen.synchronise(model)
    return model


def whole(tensors) -> list[torch.Tensor]:
    return [tensor.to_dense().detach().clone() for tensor in tensors if tensor is not None]


def losses_of(model):
    """Return the loss of a step's batch, as in a loop."""
    return lambda step: model(batch(step)).float().square().sum()


def sgd(model):
    return torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


def with_and_without(train, cases) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return what `train` gives for each of its arguments, with Zen and by DistributedDataParallel alone."""
    return [pair for case in cases for pair in zip(train(True, *case), train(False, *case), strict=True)]


def assert_equal_to_ddp(pools, train, cases=((),), exactly: bool = True) -> None:
    for pairs in pools(2).run(tidy, with_and_without, train, cases):
        assert pairs
        for tensor, expected in pairs:
            torch.testing.assert_close(tensor, expected, equal_nan=True, **({"rtol": 0, "atol": 0} if exactly else {}))


def scaled(with_zen: bool, sparse: bool) -> list:
    """Train by a scaler; in the second step rank 1's loss is not finite. Return the weights and scales."""
    model = wrapped(Text(sparse), with_zen)
    broken = float("inf") if dist.get_rank() == 1 else 1.0
    guest = Guest(model, lambda step: losses_of(model)(step) * (broken if step == 10 else 1.0), sgd(model))
    outcome = all_of(guest, scales=True)
    assert guest.seen == [1024, 512, 512, 1024]  # the second step is skipped, on all ranks
    return outcome


@works("zen", Feature.GRADIENT_SCALING, note="Nothing is remembered of gradients.")
@works("zen", Feature.NOT_FINITE, Feature.BUFFERS)
def test_a_scaler_skips_the_step_that_one_ranks_infinity_spoils(pools):
    assert_equal_to_ddp(pools, scaled, [[True], [False]])


def static(with_zen: bool, sparse: bool) -> list[torch.Tensor]:
    """Train a model: with sparse gradients its first pass has several buckets, each of which torch calls the first."""
    model = wrapped(Text(sparse), with_zen, static_graph=True)
    return all_of(Guest(model, losses_of(model), sgd(model)))


def test_a_static_graph_whose_buckets_come_together_at_the_end_of_the_first_pass(pools):
    assert_equal_to_ddp(pools, static, [[True], [False]])


def with_unused(with_zen: bool) -> list[torch.Tensor]:
    """Return all gradients of passes in which both ranks, one, and neither use the second table."""
    model, all_gradients = wrapped(Text(), with_zen, find_unused_parameters=True), []
    for step, users in enumerate([(0, 1), (1,), (), (0,)]):
        model.zero_grad()
        model.module.uses_other = dist.get_rank() in users
        model(batch(step)).square().sum().backward()
        assert (model.module.other.weight.grad is None) == (not users)
        all_gradients += whole(gradients(model))
    return all_gradients


@works(
    "zen", Feature.UNUSED_PARAMETERS, note="Of embeddings with sparse=True, torch itself refuses a missing gradient."
)
def test_passes_without_some_gradients(pools):
    assert_equal_to_ddp(pools, with_unused)


def frozen() -> nn.Module:
    module = Text()
    module.table.requires_grad_(False)
    return module


def all_tables_frozen() -> str:
    module = Text()
    module.table.requires_grad_(False)
    module.other.requires_grad_(False)
    return refusal(zen.synchronise, DistributedDataParallel(module))


@works("zen", Feature.FROZEN_PARAMETERS, note="A model whose embeddings are all frozen is refused.")
def test_tables_that_are_all_frozen_are_refused(pools):
    assert all("no embedding of its own that is trained" in text for text in pools(2).run(tidy, all_tables_frozen))


class Tied(Text):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.again = nn.Embedding(VOCABULARY, WIDTH)
        self.out.weight = self.table.weight
        self.again.weight = self.other.weight

    def forward(self, ids):
        return self.out(self.table(ids) + self.again(ids % 9) + self.other(ids % 7))


def adapted() -> nn.Module:
    import peft

    torch.manual_seed(0)
    module = peft.get_peft_model(Text(), peft.LoraConfig(target_modules=["blocks.0"], modules_to_save=["table"]))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_("lora" in name or "modules_to_save" in name)
    return module


def trained(with_zen: bool, build, how: dict, **options) -> list:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a tied table is summed densely
        model = wrapped(build(), with_zen, **options)
    outcome = all_of(Guest(model, losses_of(model), sgd(model)), **how)
    if build is Tied:
        assert model.module.out.weight is model.module.table.weight
    return outcome


@works("zen", Feature.FROZEN_PARAMETERS, Feature.ACCUMULATION, Feature.BF16, Feature.AUTOCAST, Feature.EMA)
@works("zen", Feature.TIED_WEIGHTS, note="A table that a layer shares is summed densely, with a warning.")
@works("zen", Feature.CLIPPING, note="torch itself cannot clip gradients of embeddings with sparse=True.")
@works("zen", Feature.LORA, note="Where an embedding is trained, as by modules_to_save; else there is nothing sparse.")
@pytest.mark.parametrize(
    ("build", "how"),
    [
        (frozen, {}),
        (Tied, {}),
        (adapted, {}),
        (Text, {"parts": 2}),
        (partial(Text, sparse=True), {"parts": 2}),
        (Text, {"most": 0.1}),
        (partial(Text, dtype=torch.bfloat16), {}),  # of two ranks each sum is rounded once
        (Text, {"narrow": True}),
        (Text, {"averages": True}),
    ],
)
def test_trainings_equal_those_of_ddp(pools, build, how):
    assert_equal_to_ddp(pools, partial(trained, find_unused_parameters=build is Tied), [(build, how)])


def with_a_seed():
    model = DistributedDataParallel(Text(), bucket_cap_mb=zen.BUCKET_MB)
    sums = zen.synchronise(model, seed=7)
    return losses_of(model), model.module, torch.optim.Adam(model.parameters(), lr=0.1), sums


def resumed_and_loaded():
    whole_run, again = resumed(with_a_seed)
    plain = Text()
    plain.load_state_dict(again[0])  # a saved model is a plain one
    return whole_run, again, dict(plain.state_dict())


@works("zen", Feature.RESUME, Feature.SAVING, note="`state_dict` of what `synchronise` returns holds scheme and seed.")
def test_a_resumed_training_equals_the_uninterrupted_one_and_its_saved_model_is_a_plain_one(pools):
    for uninterrupted, again, loaded in pools(2).run(tidy, resumed_and_loaded):
        assert equal(again, uninterrupted) and equal(dict(again[0]), loaded)


def refused_states() -> list[str]:
    state = zen.SparseSynchroniser(seed=7).state_dict()
    changes = {"seed": 8}, {"scheme": "AGsparse"}, {"num_ranks": 4}, {"residual": 1}
    return [refusal(zen.SparseSynchroniser(seed=7).load_state_dict, state | change) for change in changes]


def test_a_state_of_another_training_is_refused(pools):
    rules = ["seed of the state is 8", "scheme of the state is AGsparse", "num_ranks of the state is 4", "it must"]
    for messages in pools(2).run(refused_states):
        assert all(rule in message for rule, message in zip(rules, messages, strict=True)), messages


def recomputed(with_zen: bool, reentrant: bool, several: bool) -> list[torch.Tensor]:
    module = Text()
    if several:
        module = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Flatten(), nn.Linear(3 * WIDTH, 4), nn.Dropout(0.3))
        start, rest = module[0], module[1:]
        module.forward = lambda ids: checkpoint(rest, start(ids), use_reentrant=reentrant)
    else:
        module.recompute = lambda block, x: checkpoint(block, x, use_reentrant=reentrant)
    model = wrapped(module, with_zen)
    torch.manual_seed(5)
    model(batch(0)).square().sum().backward()
    return whole(gradients(model))


@works("zen", Feature.CHECKPOINTING)
def test_activation_checkpointing(pools):
    assert_equal_to_ddp(pools, recomputed, [*itertools.product((False, True), repeat=2)])


def compiled(with_zen: bool, when: str) -> list[torch.Tensor]:
    """Compile inside the wrapper, or around it, with a first pass before the hook."""
    module = Text()
    if when == "inside":
        module = torch.compile(module, backend="eager")
    model = DistributedDataParallel(module, bucket_cap_mb=1)
    call = torch.compile(model, backend="eager") if when == "before" else model
    if when == "before":
        call(batch(9)).sum().backward()
        model.zero_grad()
    if with_zen:
        zen.synchronise(model)
    all_gradients = []
    for step in range(2):
        model.zero_grad()
        call(batch(step)).square().sum().backward()
        all_gradients += whole(gradients(model))
    torch.compiler.reset()
    return all_gradients


@works(
    "zen",
    Feature.COMPILE,
    note="Wrap with bucket_cap_mb=1: dynamo refuses smaller buckets, but with torch._dynamo.config.optimize_ddp=False.",
)
@pytest.mark.parametrize("when", ["inside", "before"])
def test_compiled_models(pools, when):
    assert_equal_to_ddp(pools, compiled, [[when]], exactly=False)


def uneven(with_zen: bool, sparse: bool) -> list[torch.Tensor]:
    module = Text(sparse)
    module.norm = nn.LayerNorm(WIDTH)
    model = wrapped(module, with_zen)
    with model.join():
        all_of(Guest(model, losses_of(model), sgd(model)), steps=2 + 2 * dist.get_rank())
    return whole(model.parameters())


def shrinking() -> str:
    module = Text()
    module.norm = nn.LayerNorm(WIDTH)
    model = wrapped(module, True)
    with pytest.raises(RuntimeError) as refused, model.join(divide_by_initial_world_size=False):
        model(batch(0)).sum().backward()
    return str(refused.value)


@works("zen", Feature.UNEVEN_ENDS, note="In `model.join()`; its divide_by_initial_world_size=False is refused.")
def test_ranks_that_run_out_of_batches(pools):
    assert_equal_to_ddp(pools, uneven, [[True], [False]])
    assert all("divide_by_initial_world_size" in message for message in pools(2).run(tidy, shrinking))


def fully_sharded() -> str:
    return refusal(zen.synchronise, fully_shard(Text(), mesh=dist.device_mesh.init_device_mesh("cpu", (2,))))


@refuses("zen", Feature.FSDP, note="Its gradients are shards, summed by reduce-scatter.")
def test_fully_shard_is_refused(pools):
    assert all("it must be a DistributedDataParallel" in message for message in pools(2).run(tidy, fully_sharded))


def of_language_model(with_zen: bool, name: str) -> list[torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tied tables
        model = wrapped(
            language_model(name, bert="BertForSequenceClassification"), with_zen, find_unused_parameters=True
        )
    all_gradients = []
    for step in range(2):
        model.zero_grad()
        ids = batch(step)
        labels = {"labels": ids[:, 0] % 2} if name == "bert" else {"labels": ids}
        model(input_ids=ids, **labels).loss.backward()
        all_gradients += whole(gradients(model))
    return all_gradients


@works("zen", Feature.MODELS, note="GPT-2 and T5 share their largest table with the head: it is summed densely.")
def test_language_models(pools):
    pytest.importorskip("transformers")
    assert_equal_to_ddp(pools, of_language_model, [[name] for name in NAMES])


def one_step(group, kept) -> None:
    if not kept:
        module = Text()
        module.norm = nn.LayerNorm(WIDTH)
        kept["model"] = DistributedDataParallel(module, process_group=group, bucket_cap_mb=zen.BUCKET_MB)
        zen.synchronise(kept["model"])
    kept["model"](batch(0)).square().sum().backward()


@works("zen", Feature.RAISES, Feature.EXITS, Feature.FREEZES, note="Ranks that are left end with `RankLost`.")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_lost_rank_is_named(ending):
    (heard,) = errors_of_the_rest(one_step)[ending].values()
    assert "rank 1 does not answer, having raised, ended or stopped" in heard


def freed() -> bool:
    model = wrapped(Text(), True)
    model(batch(0)).sum().backward()
    seen = weakref.ref(model.module)
    del model
    return seen() is None


def test_a_model_with_the_hook_is_freed(pools):
    assert pools(2).run(tidy, freed) == [True, True]
