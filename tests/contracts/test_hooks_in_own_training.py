"""Espresso's and Cupcake's hooks in trainings of their users' own: what both promise, asked of both.

Nothing is lost: the gradients that are applied in some passes and what all ranks still remember are together those that
DistributedDataParallel alone would have applied.
"""

import copy
import io
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.cases import tidy
from tests.contracts.works_with import Feature, refuses, works
from tests.lost_ranks import ENDINGS, errors_of_the_rest
from workbench.cluster.machines import Link, Machines
from workbench.compression.costs import CodecTimes, Processor
from workbench.launch import Ranks
from workbench.techniques import cupcake, espresso
from workbench.techniques.espresso.cost import Job
from workbench.techniques.espresso.method import Option
from workbench.techniques.espresso.planning import plan_of
from workbench.timeline.gradients import Gradients

HOOKS = ("espresso", "cupcake")
COMPRESSED = Option.parse("comp.gpu flat.allgather* decomp.gpu")
GIVEN = "Give the GradScaler, or an object with get_scale(), as scaler=; one that is not given is refused."
ROUNDING = 1e-5  # of sums of a few gradients in FP32, relative to the largest


def both_work(*features, note=""):
    return lambda test: [works(name, *features, note=note)(test) for name in HOOKS][-1]


def both_refuse(*features, note=""):
    return lambda test: [refuses(name, *features, note=note)(test) for name in HOOKS][-1]


@pytest.fixture(params=HOOKS)
def technique(request):
    return request.param


def attach(technique, model, codec="efsignsgd", place=None, option=COMPRESSED, **options):
    """Make an exchange of a model in which all gradients are compressed, or, of the codec "momentum", none."""
    module, world = getattr(model, "module", model), dist.get_world_size()
    sizes = {name: p.numel() for name, p in reversed([*module.named_parameters()]) if p.requires_grad}
    names, is_compressed = tuple(sizes), codec != "momentum"
    codec = codec if is_compressed else "dgc"
    if technique == "cupcake":
        groups = names[::2], names[1::2]
        facts = {"num_elements": sizes, "groups": groups, "compressed": (is_compressed,) * 2, "predicted_s": {}}
        return cupcake.exchange(model, cupcake.Plan(codec=codec, num_ranks=world, **facts), **options)
    order = {"tensors": names, "num_elements": tuple(sizes.values()), "gap_s": (1e-3,) * len(names)}
    link = Link(bandwidth_bytes_per_s=1e8, latency_s=1e-4)
    num_machines, gpus_per_machine = place or (world, 1)
    machines = Machines(num_machines=num_machines, gpus_per_machine=gpus_per_machine, intra=link, inter=link)
    costs = {processor: lambda elements: 1e-9 * elements for processor in Processor}
    times = CodecTimes(name=codec, encode_s=costs, decode_s=costs, sent_bytes=0.2)
    job = Job(Gradients(name="own", forward_s=1e-3, source="a test", **order), machines, times)
    strategy = [option if is_compressed else job.uncompressed] * len(names)
    return espresso.compress_gradients(model, plan_of(job, strategy, codec), **options)


def remembered(exchange, module):
    """Return what this rank remembers of each parameter, as a share in the mean over ranks."""
    state, found = exchange.state_dict(), {}
    sizes = {name: p.numel() for name, p in reversed([*module.named_parameters()]) if p.requires_grad}

    def of(codec):
        extra = codec["_extra_state"]
        return extra["accumulated"] if "accumulated" in extra else extra["error"]

    if "gradients" in state:
        shares = {name: of(one["encoders"]["0, 0"]) / dist.get_world_size() for name, one in state["gradients"].items()}
        return {name: share[: sizes[name]] for name, share in shares.items()}
    for members, group in zip((tuple(sizes)[::2], tuple(sizes)[1::2]), state["groups"], strict=True):
        found |= dict(zip(members, of(group["codec"]).split([sizes[name] for name in members]), strict=True))
    return found


def net():
    return nn.Sequential(nn.Linear(7, 30), nn.Tanh(), nn.Linear(30, 3))


def batch(step, rank=None, size=5):
    seed = 10 * step + (dist.get_rank() if rank is None else rank)
    return torch.randn(size, 7, generator=torch.Generator().manual_seed(seed))


def squares(model, step):
    return model(batch(step)).square().mean()


def early(module, **options):
    return DistributedDataParallel(module, bucket_cap_mb=cupcake.BUCKET_MB, **options)


def one_pass(model, step, loss=squares):
    model.zero_grad()
    loss(model, step).backward()


def lost(technique, codec="efsignsgd", build=net, run=one_pass, **options):
    """Run on a rank: by how much the sum of what is applied and remembered misses DistributedDataParallel's."""
    module = build()
    ours, plain = early(copy.deepcopy(module), **options), DistributedDataParallel(module, **options)
    with_exchange = attach(technique, ours, codec)
    sums = []
    for step in range(4):
        run(ours, step)
        run(plain, step)
        sums.append([gradients_of(model.module) for model in (ours, plain)])
    shares = remembered(with_exchange, ours.module)
    with_exchange.close()
    return largest_miss(sums, shares)


def gradients_of(module):
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in trained.items()}


def largest_miss(sums, shares):
    """Return the largest difference between applied + remembered, and wanted, in parts of the largest wanted."""
    miss = largest = 0.0
    for name, share in shares.items():
        dist.all_reduce(share)
        applied, wanted = (sum(gradients[which][name] for gradients in sums) for which in (0, 1))
        miss = max(miss, (applied.flatten() + share - wanted.flatten()).abs().max().item())
        largest = max(largest, wanted.abs().max().item())
    return miss / largest


def nothing_is_lost(pools, technique, *arguments, **options):
    assert max(pools(2).run(tidy, lost, technique, *arguments, **options)) < ROUNDING


class Branch(nn.Module):
    """In step 0 both ranks use the branch, in step 1 the first, in 2 and 3 none."""

    def __init__(self):
        super().__init__()
        self.trunk, self.branch = net(), net()

    def forward(self, x, step):
        return self.trunk(x) + (self.branch(x) if step == 0 or (step == 1 and dist.get_rank() == 0) else 0)


def branched(model, step):
    model.zero_grad(set_to_none=step % 2 == 0)
    model(batch(step), step).square().mean().backward()


def branched_and_accumulated(model, step):
    model.zero_grad()
    with model.no_sync():
        model(batch(10 + step), (step + 1) % 4).square().mean().backward()
    model(batch(step), step).square().mean().backward()


@pytest.mark.parametrize(
    ("codec", "run", "options"),
    [
        ("efsignsgd", branched, {}),
        ("dgc", branched, {}),
        ("dgc", branched, {"gradient_as_bucket_view": True}),
        ("efsignsgd", branched_and_accumulated, {}),
    ],
)
@both_work(Feature.UNUSED_PARAMETERS)
def test_of_parameters_without_a_gradient_nothing_is_lost(pools, technique, codec, run, options):
    nothing_is_lost(pools, technique, codec, Branch, run, find_unused_parameters=True, **options)


def never_used():
    made = net()
    made.unused = nn.Parameter(torch.zeros(3))
    return made


@both_work(Feature.UNUSED_PARAMETERS)
def test_a_static_graph_may_have_parameters_that_are_never_used(pools, technique):
    nothing_is_lost(pools, technique, build=never_used, static_graph=True)


def frozen():
    made = net()
    made[0].weight.requires_grad_(False)
    return made


@both_work(Feature.FROZEN_PARAMETERS)
def test_frozen_parameters_are_left_alone(pools, technique):
    nothing_is_lost(pools, technique, build=frozen)


def tied():
    made = nn.Sequential(nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 7))
    made[2].weight = made[0].weight
    return made


@both_work(Feature.TIED_WEIGHTS)
def test_tied_weights_have_the_sum_of_their_gradients(pools, technique):
    nothing_is_lost(pools, technique, build=tied)


def normalised():
    return nn.Sequential(nn.Linear(7, 30), nn.BatchNorm1d(30), nn.Tanh(), nn.Linear(30, 3))


@both_work(Feature.BUFFERS)
def test_buffers_that_ddp_broadcasts_are_no_memory_of_the_exchange(pools, technique):
    nothing_is_lost(pools, technique, build=normalised)


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = net(), nn.Linear(3, 3)

    def forward(self, x):
        x = checkpoint(self.first, x.requires_grad_(), use_reentrant=True)
        return checkpoint(self.second, x, use_reentrant=False)


@both_work(Feature.CHECKPOINTING)
def test_activations_may_be_recomputed(pools, technique):
    nothing_is_lost(pools, technique, build=Recomputed)


def compiled():
    made = net()
    made.compile(backend="aot_eager")
    return made


@both_work(Feature.COMPILE, note="Compile the module before DDP wraps it: torch refuses DDP with such small buckets.")
def test_a_compiled_module_is_exchanged(pools, technique):
    nothing_is_lost(pools, technique, build=compiled)


def accumulated(model, step):
    model.zero_grad()
    with model.no_sync():
        squares(model, 10 + step).backward()
    squares(model, step).backward()


@both_work(Feature.ACCUMULATION)
def test_gradients_may_be_accumulated_without_being_sent(pools, technique):
    nothing_is_lost(pools, technique, run=accumulated)


def in_bf16(model, step):
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = squares(model, step)
    loss.backward()


@both_work(Feature.AUTOCAST)
def test_autocast_leaves_gradients_in_fp32(pools, technique):
    nothing_is_lost(pools, technique, run=in_bf16)


def adapted():
    import peft

    config = peft.LoraConfig(r=2, target_modules=["0", "2"], init_lora_weights=False)
    return peft.get_peft_model(net(), config)


@both_work(Feature.LORA)
def test_adapters_are_exchanged_alone(pools, technique):
    nothing_is_lost(pools, technique, build=adapted)


def transformer(kind):
    import transformers as hf

    sizes = {"vocab_size": 50, "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 20, "num_key_value_heads": 2}
    match kind:
        case "BERT":
            return hf.BertForMaskedLM(hf.BertConfig(**sizes)).eval()
        case "GPT-2":
            return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2)).eval()
        case "Llama":
            return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes)).eval()
    config = hf.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=20, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    return hf.T5ForConditionalGeneration(config).eval()


def language(model, step):
    model.zero_grad()
    ids = (torch.arange(12).view(2, 6) * (step + 2) + dist.get_rank()) % 50
    model(input_ids=ids, labels=ids).loss.backward()


def lost_of_transformers(technique):
    kinds = ("BERT", "GPT-2", "Llama", "T5")
    return {
        kind: lost(
            technique,
            "onebit" if technique == "cupcake" else "efsignsgd",
            lambda kind=kind: transformer(kind),
            language,
            find_unused_parameters=kind == "BERT",
        )
        for kind in kinds
    }


@both_work(Feature.MODELS)
def test_transformers_are_exchanged(pools, technique):
    for misses in pools(2).run(tidy, lost_of_transformers, technique):
        assert max(misses.values()) < ROUNDING, misses


def lost_with_unequal_ends(technique):
    module = net()
    ours, plain = early(copy.deepcopy(module)), DistributedDataParallel(module)
    exchange, sums = attach(technique, ours), []
    with Join([ours, plain]):
        for step in range(4 if dist.get_rank() == 0 else 1):
            one_pass(ours, step)
            one_pass(plain, step)
            sums.append([gradients_of(model.module) for model in (ours, plain)])
    shares = remembered(exchange, ours.module)
    exchange.close()
    return largest_miss(sums, shares)


NO_SCALER = (
    "With `join()` as in DDP, but not with scaler=, nor with divide_by_initial_world_size=False, which are refused."
)


@both_work(Feature.UNEVEN_ENDS, note=NO_SCALER)
def test_ranks_that_have_joined_send_what_they_remember(pools, technique):
    assert pools(2).run(tidy, lost_with_unequal_ends, technique)[0] < ROUNDING  # the other has missed three steps


def trained(technique, codec="efsignsgd", scaler=None, steps=range(6), resumed=None, **options):
    """Run on a rank: train with SGD; return the weights, and what is saved of all after three steps and at the end."""
    torch.manual_seed(0)
    ours, saved = early(net()), []
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.0 if "momentum" in options else 0.9)
    exchange = attach(technique, ours, codec, scaler=scaler, **options)
    scaler = GradScaler("cpu", enabled=False) if scaler is None else scaler
    for part, state in zip((ours.module, optimizer, exchange), resumed or (), strict=False):
        part.load_state_dict(state)
    for step in steps:
        exchange.at_epoch(step // 2)
        optimizer.zero_grad()
        scaler.scale(squares(ours, step) / (0 if step == OVERFLOW and dist.get_rank() == 1 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        if step in (2, 5):
            file = io.BytesIO()
            torch.save([part.state_dict() for part in (ours.module, optimizer, exchange)], file)
            saved.append(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    exchange.close()
    return torch.cat([p.detach().flatten() for p in ours.parameters()]), saved


OVERFLOW = 100  # the step in which one rank's loss is infinite


class ByHand:
    """A loss that a user multiplies himself, by a factor that goes up and down."""

    def __init__(self):
        self.scales = [2.0, 1.0, 1024.0, 1.0, 0.5, 8.0]

    def get_scale(self):
        return self.scales[0]

    def scale(self, loss):
        return loss * self.scales[0]

    def step(self, optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad /= self.scales[0]
        optimizer.step()

    def update(self):
        self.scales = self.scales[1:]


CODECS = {"espresso": ("efsignsgd", "randomk", "dgc"), "cupcake": ("efsignsgd", "onebit", "randomk", "dgc")}
CASES = [(name, codec) for name, codecs in CODECS.items() for codec in (*codecs, "momentum")]


def options_of(codec):
    return {"momentum": 0.9, "warmup": (0.5, 0.25)} if codec in ("dgc", "momentum") else {}


def scaled(technique, codec, **options):
    """Run on a rank: whether a scaler's and a user's own scale leave the weights of a loss that is not scaled."""
    growing, options = GradScaler("cpu", init_scale=1024.0, growth_interval=2), options | options_of(codec)
    runs = [trained(technique, codec, scaler, **options)[0] for scaler in (growing, ByHand())]
    scale = growing.get_scale()
    del growing  # a scaler that lives must be given
    return [torch.equal(run, trained(technique, codec, **options)[0]) for run in runs], scale


@pytest.mark.parametrize(("technique", "codec"), CASES)
@both_work(Feature.GRADIENT_SCALING, note=GIVEN)
def test_a_loss_scaled_by_powers_of_two_gives_the_same_weights_bit_for_bit(pools, technique, codec):
    assert pools(2).run(tidy, scaled, technique, codec) == [([True, True], 8192.0)] * 2


def skipped(technique, codec):
    """Run on a rank: whether a step that the scaler skips leaves no trace, and the scale that it leaves."""
    backing_off = GradScaler("cpu", init_scale=1024.0)
    one = trained(technique, codec, backing_off, [0, 1, OVERFLOW, 2, 3], **options_of(codec))[0]
    scale = backing_off.get_scale()
    other = trained(technique, codec, GradScaler("cpu"), [0, 1, 2, 3], **options_of(codec))[0]
    return torch.equal(one, other), scale


@pytest.mark.parametrize("codec", ["efsignsgd", "dgc"])
@both_work(Feature.GRADIENT_SCALING, note="What a skipped step has sent is remembered again.")
def test_a_step_that_the_scaler_skips_leaves_no_trace(pools, technique, codec):
    assert pools(2).run(tidy, skipped, technique, codec) == [(True, 512.0)] * 2


def message_of(error, call, *arguments, **options):
    with pytest.raises(error) as raised:
        call(*arguments, **options)
    return str(raised.value)


def with_a_scaler_made(when, technique):
    """Run on a rank: what is said of a GradScaler that was not given, made before the first pass or later."""
    ours = early(net())
    scaler = GradScaler("cpu") if when == "before" else None
    exchange = attach(technique, ours)
    if when == "later":
        one_pass(ours, 0)
    scaler = scaler or GradScaler("cpu")
    found = message_of(ValueError, scaler.scale(squares(ours, 1)).backward)
    exchange.close()
    return found


@pytest.mark.parametrize("when", ["before", "between", "later"])
def test_a_scaler_that_was_not_given_is_refused_by_name(pools, technique, when):
    for found in pools(2).run(tidy, with_a_scaler_made, when, technique):
        assert "give it as scaler=" in found


def finite_after(technique, codec, value):
    """Run on a rank: whether all gradients are finite after rank 1 has one element that is not, and after that pass."""
    ours, found = early(net()), []
    exchange = attach(technique, ours, codec)
    for step in range(2):
        ours.zero_grad()
        loss = squares(ours, step)
        if step == 0 and dist.get_rank() == 1:
            loss = loss + ours.module[0].weight[3, 4] * value
        loss.backward()
        found.append(all(bool(p.grad.isfinite().all()) for p in ours.parameters()))
    exchange.close()
    return found


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@both_work(Feature.NOT_FINITE)
def test_a_gradient_that_is_not_finite_on_one_rank_is_so_on_all_and_not_in_the_next_pass(pools, technique, value):
    for codec in CODECS[technique]:
        assert pools(2).run(tidy, finite_after, technique, codec, value) == [[False, True]] * 2


def resumed(technique, codec):
    """Run on a rank: whether a training that was resumed after three steps ends as one that was not interrupted."""
    whole, (at_three, at_end) = trained(technique, codec, **options_of(codec))
    own, (again,) = trained(technique, codec, steps=range(3, 6), resumed=at_three, **options_of(codec))
    return torch.equal(whole, own), equal(at_end[2], again[2])


def equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize(("technique", "codec"), CASES)
@both_work(Feature.RESUME, note="Each rank saves and loads the exchange's own state_dict beside the model's.")
def test_a_training_is_resumed_bit_for_bit(pools, technique, codec):
    assert pools(2).run(tidy, resumed, technique, codec) == [(True, True)] * 2


def refused_states(technique):
    ours = early(net())
    exchange = attach(technique, ours)
    one_pass(ours, 0)
    before, found = exchange.state_dict(), []
    for changed in ({"rank": 7}, {"codec": '"dgc"'}, {"momentum": "0.5"}):
        found.append(message_of(ValueError, exchange.load_state_dict, before | {"scale": 2.0} | changed))
    found.append(message_of(ValueError, exchange.load_state_dict, {}))
    is_unchanged = equal(before, exchange.state_dict())
    exchange.close()
    return found, is_unchanged


def test_a_state_of_another_rank_or_plan_is_refused_before_anything_is_loaded(pools, technique):
    for rank, (found, is_unchanged) in enumerate(pools(2).run(tidy, refused_states, technique)):
        starts = (
            f"rank of the state is 7, here it is {rank}",
            'codec of the state is "dgc", here',
            "momentum of the state",
        )
        assert all(text.startswith(start) for text, start in zip(found, starts, strict=False)) and is_unchanged
        assert found[3].startswith("rank of the state is missing")


def clipped_and_averaged(technique):
    """Run on a rank: the clipped norm, and weights, their average and a saved copy of the model."""
    ours = early(net())
    exchange = attach(technique, ours)
    average, optimizer = torch.optim.swa_utils.AveragedModel(ours), torch.optim.SGD(ours.parameters(), lr=0.1)
    by_hand = 0
    for step in range(2):
        one_pass(ours, step)
        norm = nn.utils.clip_grad_norm_(ours.parameters(), 0.1)
        clipped = torch.cat([p.grad.flatten() for p in ours.parameters()]).norm()
        optimizer.step()
        average.update_parameters(ours)
        by_hand = by_hand + ours.module[0].weight.detach() / 2
    loaded = net()
    loaded.load_state_dict(ours.module.state_dict())
    exchange.close()
    weights = [model[0].weight.detach() for model in (ours.module, loaded, average.module.module)]
    return norm.item(), clipped.item(), *weights, by_hand


@both_work(Feature.CLIPPING, Feature.EMA, Feature.SAVING)
def test_norms_averages_and_saved_models_are_those_of_the_gradients_that_all_ranks_have(pools, technique):
    first, second = pools(2).run(tidy, clipped_and_averaged, technique)
    assert equal(first, second) and first[0] > 0.1
    assert first[1] == pytest.approx(0.1, rel=1e-4)
    assert torch.equal(first[2], first[3])
    torch.testing.assert_close(first[4], first[5])


def ignoring():
    module = net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["0.weight"])
    return early(module)


def sharded():
    from torch.distributed.fsdp import fully_shard

    return fully_shard(net())


def compiled_before():
    return torch.compile(early(net()))


def half():
    return early(net().bfloat16())


def refusal(technique, build):
    return message_of(ValueError, attach, technique, build())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (sharded, "model is a FSDPSequential; it must be a DistributedDataParallel"),
        (half, "is torch.bfloat16; parameters must be float32"),
        (compiled_before, "model is a OptimizedModule; it must be a DistributedDataParallel"),
        (ignoring, "0.weight is trained, but ignored by DistributedDataParallel"),
    ],
)
@both_refuse(Feature.FSDP, Feature.BF16, note="Train in FP32 with autocast.")
def test_models_whose_gradients_cannot_be_exchanged_are_refused(pools, technique, build, message):
    for found in pools(2).run(tidy, refusal, technique, build):
        assert message in found


def refusal_of_join(technique, scaler, divide):
    ours = early(net())
    exchange = attach(technique, ours, scaler=scaler and ByHand())

    def train():
        with Join([ours], divide_by_initial_world_size=divide):
            one_pass(ours, 0)

    found = message_of(ValueError, train)
    exchange.close()
    return found


def test_a_join_in_which_scales_would_differ_is_refused(pools, technique):
    for found in pools(2).run(tidy, refusal_of_join, technique, True, True):
        assert found.startswith("join() with scaler=: ")
    for found in pools(2).run(tidy, refusal_of_join, technique, False, False):
        assert found.startswith("join(divide_by_initial_world_size=False): ")


def exchanged(technique, group, kept):
    """Run on a rank whose peer may fail: one backward pass, and the end of the exchange if that fails."""
    if not kept:
        kept["model"] = early(net(), process_group=group)
        kept["exchange"] = attach(technique, kept["model"])
        one_pass(kept["model"], 0)  # DDP rebuilds its buckets together after the first
    try:
        one_pass(kept["model"], 0)
    except BaseException:
        kept["exchange"].close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("espresso")]
        raise


def espresso_exchanged(group, kept):
    exchanged("espresso", group, kept)


def cupcake_exchanged(group, kept):
    exchanged("cupcake", group, kept)


def one_rank_raises():
    """Run on a rank: what it hears when rank 1 raises in the middle of a backward pass, and ends the exchange."""
    ours = early(net())
    try:
        with attach("espresso", ours):
            one_pass(ours, 0)
            if dist.get_rank() == 1:
                ours.module[0].register_full_backward_pre_hook(lambda *_: 1 / 0)
            one_pass(ours, 1)
    except (RuntimeError, ZeroDivisionError) as error:
        return str(error), [thread.name for thread in threading.enumerate() if thread.name.startswith("espresso")]


def test_the_exchange_of_a_rank_that_raises_in_a_backward_pass_ends_that_of_the_others():
    with Ranks(2, timeout_s=300) as ranks:
        heard, raised = ranks.run(tidy, one_rank_raises)
    assert "rank 1 does not answer" in heard[0] and "division by zero" in raised[0]
    assert heard[1] == raised[1] == []


STEPS = {"espresso": espresso_exchanged, "cupcake": cupcake_exchanged}
NAMED = {"espresso": "rank 0 could not exchange ", "cupcake": "gradients of group 0, 2.bias to "}


@pytest.mark.parametrize("ending", ENDINGS)
@both_work(Feature.RAISES, Feature.EXITS, Feature.FREEZES)
def test_when_a_rank_fails_the_others_end_within_the_timeout_and_name_it(technique, ending):
    (heard,) = errors_of_the_rest(STEPS[technique])[ending].values()
    assert "rank 1 does not answer" in heard and NAMED[technique] in heard
