"""Compressed activations in a training of one's own, beside the definition as a hook of plain torch operations."""

import copy
import functools
import itertools
import re

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from transformers import GPT2LMHeadModel

from tests.cases import tidy
from tests.contracts.language_models import language_model
from tests.contracts.trainings import Guest, all_of, equal, resumed
from tests.contracts.works_with import Feature, works
from tests.lost_ranks import ENDINGS, errors_of_the_rest
from workbench.compression import DGC, AutoEncoder, ErrorFeedback, Quantize, RandomK, TopK, clear_error_feedback
from workbench.parallel import ProcessTensorGroup, RowParallelLinear
from workbench.techniques.activation_compression import compress
from workbench.techniques.activation_compression.method import method
from workbench.techniques.activation_compression.runtime import CODEC_NAMES

NAME = "activation_compression"
WIDTH, SHARE = 16, 0.25
CODECS = {
    "TopK": lambda: TopK(SHARE),
    "RandomK": lambda: RandomK(SHARE),
    "Quantize": lambda: Quantize(2),
    "AutoEncoder": lambda: AutoEncoder(WIDTH, 4),
    "DGC": lambda: DGC(SHARE),
    "ErrorFeedback": lambda: ErrorFeedback(TopK(SHARE)),
    "ErrorFeedback of RandomK": lambda: ErrorFeedback(RandomK(SHARE)),
}
WITH_STATE = ("AutoEncoder", "DGC", "ErrorFeedback of RandomK")  # weights, two sums, a residual and a stream
ONE_OF_A_KIND = ("w/o", "fp16", "A1", "T1", "R1", "Q1", "Q3", "Q1f")  # other methods differ in a number
SILENT = pytest.mark.filterwarnings("ignore:.*loss_type=None.*")


class TopKByDefinition:
    """A forward hook: x + e where that is among the largest quarter, 0 elsewhere; e is what that loses."""

    def __init__(self, feeds_back: bool):
        self.feeds_back, self.error = feeds_back, 0.0

    def __call__(self, module, inputs, output):
        x = output if isinstance(output, torch.Tensor) else output[0]
        corrected = x + self.error
        kept = torch.zeros(x.numel(), dtype=x.dtype)
        kept[corrected.detach().flatten().abs().topk(round(SHARE * x.numel())).indices] = 1
        sent = corrected * kept.view_as(x)
        if self.feeds_back and module.training:
            self.error = (corrected - sent).detach()
        return sent if isinstance(output, torch.Tensor) else (sent, *output[1:])


def hooked(model, layers, feeds_back=True):
    """Hook the definition into layers; return the hooks."""
    hooks = [TopKByDefinition(feeds_back) for _ in layers]
    for name, hook in zip(layers, hooks, strict=True):
        model.get_submodule(name).register_forward_hook(hook)
    return hooks


class Net(nn.Module):
    """Three blocks, the second of which some passes do not use; a norm with buffers; a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))
        self.norm, self.head = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1)
        self.uses_second = True

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = block(x) if number != 1 or self.uses_second else x
        return self.head(self.norm(x))


SITES = ["blocks.0", "blocks.1"]


def with_codecs(codec=None, model=None):
    model = Net() if model is None else model
    return model, compress(model, codec or ErrorFeedback(TopK(SHARE)), layers=SITES)


def with_definition():
    model = Net()
    return model, hooked(model, SITES)


def batches(number, seed=1, size=8):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, WIDTH, generator=generator) for _ in range(number)]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def trained(model, xs, *, forward=None, step=None):
    """Train on batches; return the parameters and buffers."""
    optimizer = sgd(model)
    for x in xs:
        optimizer.zero_grad()
        (model if forward is None else forward)(x).square().mean().backward()
        (step or (lambda optimizer: optimizer.step()))(optimizer)
    return plain_state(model)


def plain_state(model):
    """Copy the state without that of codecs."""
    state = model.state_dict()
    return {name: value.clone() for name, value in state.items() if not set(CODEC_NAMES) & set(name.split("."))}


def assert_same_bits(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def assert_same_errors(compression, hooks):
    for codec, hook in zip(compression.codecs, hooks, strict=True):
        assert_same_bits(codec.error, hook.error)


# One process


@works(NAME, Feature.GRADIENT_SCALING, note="The remembered error is one of activations: no loss scale enters it.")
@pytest.mark.parametrize("codec", WITH_STATE)
def test_a_changing_scale_of_the_loss_changes_nothing(codec):
    (scaled, compression), (plain, expected) = (with_codecs(CODECS[codec]()) for _ in range(2))
    optimizer = sgd(scaled)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1, backoff_factor=0.25)
    for x in batches(4):
        optimizer.zero_grad()
        scaler.scale(scaled(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 1024.0 * 2**4
    assert_same_bits(plain_state(scaled), trained(plain, batches(4)))
    assert_same_bits([c.state_dict() for c in compression.codecs], [c.state_dict() for c in expected.codecs])


@works(NAME, Feature.NOT_FINITE)
@pytest.mark.parametrize(
    ("name", "value"), [*zip(ONE_OF_A_KIND, itertools.cycle([torch.inf, torch.nan]), strict=False)]
)
def test_an_activation_that_is_not_finite_makes_the_loss_not_finite_and_the_scaler_skip_the_step(name, value):
    model = Net()
    compress(model, method(name).codec(WIDTH), layers=SITES)
    model.float()  # learned codes of the paper are FP16, which the scaler refuses
    before = copy.deepcopy(model.head.weight)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
    (x,) = batches(1)
    with torch.no_grad():
        model.blocks[0][0].bias[3] = value  # tanh(inf) is 1, so after it:
    model.blocks[0][1].register_forward_hook(lambda module, inputs, y: y + (inputs[0] - inputs[0]))
    loss = model(x).square().mean()
    assert not loss.isfinite()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    assert torch.equal(model.head.weight, before)


@works(NAME, Feature.FROZEN_PARAMETERS, Feature.CLIPPING, Feature.AUTOCAST)
@pytest.mark.parametrize(
    ("frozen", "how"),
    [([], {"most": 0.01}), (SITES[:1], {"most": 0.01}), (SITES, {"most": 0.01}), ([], {"narrow": True})],
)
def test_frozen_layers_clipped_gradients_and_autocast_are_those_of_the_definition(frozen, how):
    outcomes, xs = [], batches(40)
    for model, codecs in (with_codecs(), with_definition()):
        for name in frozen:
            model.get_submodule(name).requires_grad_(False)
        loss = functools.partial(lambda model, step: model(xs[step]).square().mean(), model)
        outcomes.append(all_of(Guest(model, loss, state=plain_state), **how))
        outcomes[-1].append([codec.error for codec in getattr(codecs, "codecs", codecs)])
    assert_same_bits(*outcomes)


@works(NAME, Feature.BF16)
def test_bf16_weights_learn_as_the_definition_says():
    """Of a learned code: x E D, with all three in bf16."""
    model, compression = with_codecs(AutoEncoder(WIDTH, 4))
    codes = nn.ModuleList(copy.deepcopy(codec) for codec in compression.codecs)
    plain = Net()
    for block, code in zip(plain.blocks, codes, strict=False):
        block.register_forward_hook(lambda module, inputs, x, code=code: x @ code.encoder @ code.decoder)
    plain.codes = codes
    xs = [x.bfloat16() for x in batches(3)]
    expected = {name: p for name, p in trained(plain.bfloat16(), xs).items() if not name.startswith("codes.")}
    assert_same_bits(trained(model.bfloat16(), xs), expected)
    for codec, code in zip(compression.codecs, codes, strict=True):
        assert_same_bits(list(codec.parameters()), list(code.parameters()))


def test_the_report_counts_autocasts_messages():
    model, compression = with_codecs()
    with torch.autocast("cpu", torch.bfloat16):
        model(batches(1)[0])
    assert compression.report().sent_bytes["blocks.0"] == 8 * WIDTH * SHARE * (2 + 8)  # BF16 values, int64 indices


@works(NAME, Feature.EMA)
@pytest.mark.parametrize("codec", WITH_STATE)
def test_averaged_models_have_codecs_of_their_own(codec):
    """Every step's average is 0.9 times the former and 0.1 times the weights; evaluating it changes no training."""
    (model, _), (plain, _) = (with_codecs(CODECS[codec]()) for _ in range(2))
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    expected = []

    def step(optimizer):
        optimizer.step()
        averaged.update_parameters(model)
        averaged.module.eval()(batches(1, seed=7)[0])
        averaged.module.train()(batches(1, seed=7)[0])
        expected.append([p.detach().clone() for p in model.parameters()])

    assert_same_bits(trained(model, batches(3), step=step), trained(plain, batches(3)))
    average = expected[0]
    for weights in expected[1:]:
        average = [0.9 * a + 0.1 * w for a, w in zip(average, weights, strict=True)]
    torch.testing.assert_close([p.detach() for p in averaged.module.parameters()], average)


@works(NAME, Feature.RESUME)
@pytest.mark.parametrize("codec", CODECS)
def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(codec):
    def build():
        model, _ = with_codecs(CODECS[codec]())
        return (lambda step: model(batches(6)[step]).square().mean()), model, sgd(model)

    assert equal(*resumed(build))


@works(
    NAME,
    Feature.CHECKPOINTING,
    note="A recomputed layer starts from the state of its forward pass; a layer changed in between is refused.",
)
@pytest.mark.parametrize("codec", WITH_STATE)
def test_gradient_checkpointing_of_a_transformer_changes_no_bit(codec):
    outcomes = []
    for reentrant in (None, False, True):
        model = gpt2()
        compression = compress(model, CODECS[codec](), layers=2)
        if reentrant is not None:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        for _ in range(2):
            model(IDS, labels=IDS).loss.backward()
        gradients = [p.grad for p in model.parameters()]
        outcomes.append((gradients, [codec.state_dict() for codec in compression.codecs]))
    assert_same_bits(outcomes[1:], [outcomes[0]] * 2)


def in_place(model, modules):
    for module in modules:
        module.compile(backend="aot_eager")
    return model


def a_submodule(model):
    model.blocks[1] = torch.compile(model.blocks[1], backend="aot_eager")
    return model


WAYS = {
    "each block in place": lambda model: in_place(model, model.blocks),
    "a submodule": a_submodule,
    "a function": lambda model: torch.compile(lambda x: model(x), backend="aot_eager"),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by torch's compiler
@works(NAME, Feature.COMPILE, note="`compress` and `remove` make torch compile everything again.")
@pytest.mark.parametrize("way", WAYS)
def test_compiled_models_follow_compress_and_remove(way):
    model, eager = Net(), Net()
    run = WAYS[way](model)
    layers = [name.replace("1", "1._orig_mod") if way == "a submodule" else name for name in SITES]
    for x in batches(2):
        assert_same_bits(run(x), eager(x))
    compression, hooks = compress(model, ErrorFeedback(TopK(SHARE)), layers=layers), hooked(eager, SITES)
    for x in batches(4):
        for module, forward in ((model, run), (eager, eager)):
            module.zero_grad()
            forward(x).square().mean().backward()
        gradients = [[p.grad for p in module.parameters()] for module in (model, eager)]
        torch.testing.assert_close(*gradients)
        torch.testing.assert_close([codec.error for codec in compression.codecs], [hook.error for hook in hooks])
    assert compression.report().sent_bytes["all"] == 2 * 8 * WIDTH * SHARE * (4 + 8)
    compression.remove()
    for block in eager.blocks:
        block._forward_hooks.clear()
    torch.testing.assert_close(run(x), eager(x))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("codec", ["AutoEncoder", "ErrorFeedback of RandomK"])  # summed, or gathered with a state
def test_compiled_codecs_remember_and_draw_as_without_a_compiler(codec):
    (model, compression), (plain, eager) = (with_codecs(CODECS[codec]()) for _ in range(2))
    compiled = torch.compile(model, backend="aot_eager")
    expected = trained(plain, batches(4))
    torch.testing.assert_close(trained(model, batches(4), forward=compiled), expected)
    torch.testing.assert_close([c.state_dict() for c in compression.codecs], [c.state_dict() for c in eager.codecs])


# Transformers

IDS = torch.arange(32).reshape(4, 8) % 30


def gpt2():
    return transformer("gpt2")


def transformer(name):
    return language_model(name, width=WIDTH, num_layers=2).train()


MODELS = {
    "gpt2": ["transformer.h.0", "transformer.h.1"],
    "bert": ["bert.encoder.layer.0", "bert.encoder.layer.1"],
    "llama": ["model.layers.0", "model.layers.1"],
    "t5": ["encoder.block.1", "decoder.block.0"],
}


def losses_and_gradients(model, steps=2):
    losses = []
    for _ in range(steps):
        losses.append(model(input_ids=IDS, labels=IDS).loss)
        losses[-1].backward()
    return [loss.detach() for loss in losses], [p.grad for p in model.parameters()]


@SILENT
@works(NAME, Feature.MODELS, Feature.TIED_WEIGHTS)
@pytest.mark.parametrize("name", MODELS)
def test_transformers_with_tied_weights_follow_the_definition(name):
    model, plain = transformer(name), transformer(name)
    compress(model, ErrorFeedback(TopK(SHARE)), layers=MODELS[name])
    hooked(plain, MODELS[name])
    assert_same_bits(losses_and_gradients(model), losses_and_gradients(plain))


@SILENT
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # which peft reads
@works(
    NAME,
    Feature.LORA,
    note="Call `compress` after `get_peft_model` for learned codes, and where peft wraps the layer itself.",
)
@pytest.mark.parametrize("compresses_first", [True, False])
def test_lora_trains_as_with_the_definition(compresses_first):
    config = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    layers, outcomes = ["transformer.h.0", "transformer.h.1"], []
    for compressed in (True, False):
        model = gpt2()
        if compressed and compresses_first:
            compress(model, ErrorFeedback(TopK(SHARE)), layers=layers)
        torch.manual_seed(1)
        model = get_peft_model(model, config)
        inner = [f"base_model.model.{name}" for name in layers]
        if not compressed:
            hooked(model, inner)
        elif not compresses_first:
            compress(model, ErrorFeedback(TopK(SHARE)), layers=inner)
        outcomes.append(losses_and_gradients(model))
    assert_same_bits(*outcomes)


@SILENT
@works(NAME, Feature.SAVING, note="Remove DGC before `save_pretrained`: safetensors take no dict.")
@pytest.mark.parametrize(
    ("codec", "passes"), [("AutoEncoder", 1), ("ErrorFeedback of RandomK", 1), ("ErrorFeedback", 0)]
)
def test_a_saved_model_loads_and_is_plain_again_without_its_codecs(codec, passes, tmp_path):
    model, names = gpt2(), set(gpt2().state_dict())
    compression = compress(model, CODECS[codec](), layers=2)
    for _ in range(passes):
        model(IDS)
    model.save_pretrained(tmp_path)
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path)
    compression.remove()
    assert set(model.state_dict()) == names
    assert_same_bits(loaded.state_dict(), model.state_dict())


# Ranks


def averaged_gradients_(model):
    """What DistributedDataParallel does, by definition."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad /= dist.get_world_size()
        dist.all_reduce(parameter.grad)


def steps_of_rank(number=4):
    return batches(number, seed=10 + dist.get_rank())


def beside_ddp(case):
    """Train with codecs inside DistributedDataParallel, and with the definition and averages by hand."""
    (model, compression), (plain, hooks) = with_codecs(), with_definition()
    unused = case == "unused"
    wrapped = DistributedDataParallel(model, broadcast_buffers=case == "buffers", find_unused_parameters=unused)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (model, plain)]
    for number, x in enumerate(steps_of_rank()):
        for module in (model, plain):
            module.uses_second = not unused or number % 2 == 0
        if case == "buffers" and number:
            for buffer in plain.buffers():
                dist.broadcast(buffer, 0)
        is_last = case != "accumulation" or number % 2 == 1
        wrapped.require_backward_grad_sync = is_last  # what no_sync sets, which must hold from the forward pass on
        wrapped(x).square().mean().backward()
        plain(x).square().mean().backward()
        if is_last:
            averaged_gradients_(plain)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert_same_bits(plain_state(model), plain_state(plain))
    assert_same_errors(compression, hooks)
    errors = [None] * 2
    dist.all_gather_object(errors, compression.codecs[0].error)
    assert not torch.equal(*errors)


@works(NAME, Feature.UNUSED_PARAMETERS, Feature.BUFFERS, Feature.ACCUMULATION)
def test_ddp_trains_as_the_definition_says_and_each_rank_keeps_its_own_error(pools):
    pools(2).run(tidy, lambda: [beside_ddp(case) for case in ("unused", "buffers", "accumulation")])


def uneven():
    (model, compression), (plain, hooks) = with_codecs(), with_definition()
    wrapped = DistributedDataParallel(model, broadcast_buffers=False)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (model, plain)]
    xs = steps_of_rank(4)[: 2 + dist.get_rank()]
    with Join([wrapped]):
        for x in xs:
            optimizers[0].zero_grad()
            wrapped(x).square().mean().backward()
            optimizers[0].step()
    for number in range(3):
        optimizers[1].zero_grad()
        if number < len(xs):
            plain(xs[number]).square().mean().backward()
        averaged_gradients_(plain)
        optimizers[1].step()
    if dist.get_rank() == 1:
        assert_same_bits(list(model.parameters()), list(plain.parameters()))
    assert_same_errors(compression, hooks)


@works(NAME, Feature.UNEVEN_ENDS)
def test_ranks_with_fewer_batches_join(pools):
    pools(2).run(tidy, uneven)


@works(
    NAME,
    Feature.UNEVEN_ENDS,
    note="Error feedback needs batches of one size: `drop_last=True`, or `clear_error_feedback(model)` before another.",
)
def test_a_last_batch_of_another_size_is_refused_by_error_feedback_until_it_is_cleared():
    model, _ = with_codecs()
    model(batches(1)[0])
    (last,) = batches(1, size=4)
    with pytest.raises(ValueError, match=r"x at site 'blocks.0' has shape \(4, 16\), the remembered error \(8, 16\)"):
        model(last)
    assert clear_error_feedback(model) == 2
    model(last)


def sharded(kind):
    """Train with FSDP2 and with the definition, or the learned code in one piece, and averages by hand."""
    codec = ErrorFeedback(TopK(SHARE)) if kind == "definition" else AutoEncoder(WIDTH, 4)
    model, compression = with_codecs(codec)
    plain, hooks = with_definition() if kind == "definition" else with_codecs(codec)
    for module in (model, plain):
        module.norm = nn.Identity()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (model, plain)]
    for x in steps_of_rank():
        for module, optimizer in zip((model, plain), optimizers, strict=True):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            if module is plain:
                averaged_gradients_(plain)
            optimizer.step()
    torch.testing.assert_close([p.full_tensor() for p in model.parameters()], list(plain.parameters()))
    if kind == "definition":
        torch.testing.assert_close([c.error for c in compression.codecs], [hook.error for hook in hooks])


@works(NAME, Feature.FSDP, note="Learned codes: call `compress` before `fully_shard` (and before DDP wraps the model).")
def test_sharded_models_train_as_whole_ones(pools):
    pools(2).run(tidy, lambda: [sharded(kind) for kind in ("definition", "learned")])


def late(wrap):
    model = Net()
    if wrap == "FSDP2":
        fully_shard(model)
    whole = DistributedDataParallel(model) if wrap.startswith("DDP") else model
    compress(model if wrap == "DDP around" else whole, AutoEncoder(WIDTH, 4), layers=1)
    whole(steps_of_rank()[0])


@pytest.mark.parametrize(
    ("wrap", "said"),
    [
        ("FSDP2", "ValueError: model holds a FSDPModule, which would not synchronise the weights of learned codes"),
        ("DDP", "ValueError: model holds a DistributedDataParallel, which would not synchronise the weights"),
        ("DDP around", "RuntimeError: weights of AutoEncoder.* would not be synchronised between ranks: compress the"),
    ],
)
def test_learned_codes_that_came_after_the_wrapper_are_refused(wrap, said, pools):
    def refused():
        try:
            late(wrap)
        except (ValueError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"

    for message in pools(2).run(tidy, refused):
        assert re.search(said, message)


def summed(name):
    """Sum partial activations of which the last rank's has an element that is not finite."""
    layer, are_finite = RowParallelLinear(2 * WIDTH, WIDTH, ProcessTensorGroup()), []
    compress(nn.ModuleDict({"sum": layer}), name, layers="sum")
    for value in (torch.inf, torch.nan):
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
        if dist.get_rank() == 1:
            x[5, 3] = value
        are_finite.append(bool(layer(x).isfinite().all()))
    return are_finite


@works(NAME, Feature.NOT_FINITE)
def test_a_partial_sum_that_is_not_finite_on_one_rank_is_not_finite_on_all(pools):
    are_finite = pools(2).run(tidy, lambda: {name: summed(name) for name in ONE_OF_A_KIND})
    assert are_finite == [dict.fromkeys(ONE_OF_A_KIND, [False, False])] * 2


def checkpointed_reduction(name, saves):
    layers = nn.ModuleList(RowParallelLinear(2 * WIDTH, WIDTH, ProcessTensorGroup(), site=f"{n}") for n in range(2))
    compression = compress(nn.ModuleDict({"all": layers}), name, layers=["all.0", "all.1"])
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()), requires_grad=True)

    def run(x):
        return layers[1](layers[0](x).tanh())

    for _ in range(2):
        y = run(x) if saves is None else checkpoint(run, x, use_reentrant=saves)
        y.square().sum().backward()
    state = [layer.reduction.state_dict() for layer in layers]
    return [x.grad, *(p.grad for p in layers.parameters())], state, compression.report().to_dict()


def checkpointed_reductions(codec):
    codec = CODECS[codec]()
    plain, *recomputed = (checkpointed_reduction(codec, saves) for saves in (None, False, True))
    for reduction in recomputed:
        assert_same_bits(reduction[:2], plain[:2])
        assert reduction[2] == plain[2]


@works(NAME, Feature.CHECKPOINTING)
def test_recomputed_sums_over_ranks_have_the_same_bits_and_bytes(pools):
    pools(2).run(tidy, lambda: [checkpointed_reductions(codec) for codec in WITH_STATE])


def one_sum(group, kept):
    if not kept:
        kept["layer"] = RowParallelLinear(2 * WIDTH, WIDTH, ProcessTensorGroup(group))
        compress(nn.ModuleDict({"sum": kept["layer"]}), kept.setdefault("codec", TopK(SHARE)), layers="sum")
    kept["layer"](batches(1)[0]).sum().backward()


@functools.cache
def heard():
    return errors_of_the_rest(one_sum)


@works(NAME, Feature.RAISES, Feature.EXITS, Feature.FREEZES, note="Ranks that are left end with `RankLost`.")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_lost_rank_of_a_sum_is_named(ending):
    (message,) = heard()[ending].values()
    assert "rank 1 does not answer, having raised, ended or stopped" in message
