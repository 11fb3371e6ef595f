"""ATP in a training of one's own: a Hugging Face model on meshes of ranks beside the same model in one process."""

import copy
import re
import tempfile
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from tests.cases import refusal, tidy
from tests.contracts.trainings import equal, resumed
from tests.contracts.works_with import Feature, refuses, works
from tests.lost_ranks import ENDINGS, errors_of_the_rest
from tests.techniques.atp.atp_models import VOCABULARY, language_model, step_of_a_block
from workbench.launch import RankFailed
from workbench.techniques import atp
from workbench.techniques.atp.runtime import whole
from workbench.techniques.atp.runtime.on_mesh import OnMesh

MESHES = [(2, 1), (1, 2)]


def batch(step, size=4):
    return torch.randint(VOCABULARY, (size, 8), generator=torch.Generator().manual_seed(step))


def loss_of(model, step=0, size=4):
    return model(batch(step, size), labels=batch(step, size)).loss


def adam(model, **options):
    return torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.01, **options)


def trained(model, optimizer, num_steps):
    for step in range(num_steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    return model


def weights(model):
    """Return the weights of the whole model, on a mesh or not, by their names before it was put there."""
    on_mesh = any(isinstance(module, OnMesh) for module in model.modules())
    state = atp.full_state_dict(model) if on_mesh else model.state_dict()
    return {name: value.detach().clone() for name, value in state.items()}


def gradients(model):
    """Return the gradients of the whole model, on a mesh or not, by the names of its weights."""
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None and "shard" not in name}
    for name, block in model.named_modules():
        if isinstance(block, OnMesh) and next(block.parameters()).grad is not None:
            whole_block = block.names.to_plain(block.shard.full(gradient=True))
            grads |= {f"{name}.{weight}": gradient for weight, gradient in whole_block.items()}
    return grads


def on(mesh, model):
    if mesh is not None:
        atp.parallelize(model, mesh)
    return model


def with_and_without(train, mesh, *args):
    """Return what `train` gives on a mesh and in one process."""
    return train(mesh, *args), train(None, *args)


def assert_equal_to_one_process(pools, train, *args, meshes=MESHES, num_ranks=2, rtol=1e-7, atol=1e-10):
    for mesh in meshes:
        for on_mesh, expected in pools(num_ranks).run(tidy, with_and_without, train, mesh, *args):
            assert expected
            torch.testing.assert_close(on_mesh, expected, rtol=rtol, atol=atol)


def assert_refused(pools, rule, call, *args):
    for message in pools(2).run(tidy, refusal, call, *args):
        assert re.search(rule, message), message


def scaled(mesh, fused):
    """Train by a GradScaler; in the second step one gradient of one shard, on one rank only, is infinite."""
    model = on(mesh, language_model())
    optimizer, scaler = adam(model, fused=fused), torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    scales = []
    for step in range(5):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        block = model.transformer.h[1]
        if step == 1 and (mesh is None or dist.get_rank() == 1):
            (block.mlp.c_fc.weight if mesh is None else block.shard.input.weights[0]).grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [1024, 512, 512, 1024, 1024]  # the second step is skipped, on all ranks
    return weights(model)


@works("atp", Feature.GRADIENT_SCALING, Feature.NOT_FINITE)
@pytest.mark.parametrize("fused", [False, True])
def test_all_ranks_skip_the_step_that_one_shards_infinity_spoils(pools, fused):
    assert_equal_to_one_process(pools, scaled, fused)


def spoilt():
    model = on((2, 1), language_model())
    with torch.no_grad():
        if dist.get_rank() == 1:
            model.transformer.h[0].shard.input.weights[0][0, 0] = torch.nan
    return loss_of(model).item()


@works("atp", Feature.NOT_FINITE)
def test_nan_in_one_shard_is_the_loss_of_all_ranks(pools):
    assert str(pools(2).run(tidy, spoilt)) == "[nan, nan]"


class Own(nn.Module):
    """A user's model: BERT's encoder, BatchNorm, and one of two heads a pass; each with weights that no other has."""

    def __init__(self):
        super().__init__()
        self.body = language_model("bert").bert
        self.norm, self.heads = nn.BatchNorm1d(16).double(), nn.ModuleList(nn.Linear(16, 2).double() for _ in range(2))

    def forward(self, ids, head):
        x = self.norm(self.body(ids).last_hidden_state.mean(1))
        return self.heads[head](x).square().mean()


def with_unused(mesh):
    model = on(mesh, Own())
    optimizer, by_step = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step, head in enumerate((0, 1, 0)):
        optimizer.zero_grad()
        model(batch(step), head).backward()
        by_step.append(gradients(model))
        assert (model.heads[1 - head].weight.grad is None) and model.body.embeddings.word_embeddings.weight.grad.any()
        optimizer.step()
    return [*by_step, weights(model)]


@works("atp", Feature.UNUSED_PARAMETERS, Feature.BUFFERS)
def test_passes_without_some_gradients_and_with_running_statistics(pools):
    assert_equal_to_one_process(pools, with_unused)


def frozen(mesh):
    by_block = []
    for which in range(3):
        model = language_model(num_layers=3)
        for module in (model.transformer.wte, model.transformer.wpe, model.transformer.h[which]):
            module.requires_grad_(False)
        on(mesh, model)
        loss_of(model).backward()
        by_block.append(gradients(model))
        assert len(by_block[-1]) == 3 * 12 + 4 - 12 - 2  # without a block and two tables, one of which is the head, too
    return by_block


@works("atp", Feature.FROZEN_PARAMETERS, note="Freeze all parameters of a block or none; others are refused.")
def test_frozen_blocks(pools):
    assert_equal_to_one_process(pools, frozen)


def tied(mesh):
    model = on(mesh, language_model())
    trained(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), 2)
    assert model.lm_head.weight is model.transformer.wte.weight
    return weights(model)


@works("atp", Feature.TIED_WEIGHTS, note="Blocks that share parameters are refused.")
def test_a_head_that_is_tied_to_the_embedding_stays_so(pools):
    assert_equal_to_one_process(pools, tied, meshes=[(2, 2), (4, 1)], num_ranks=4)


def resumed_with_dropout():
    def build():
        model = on((2, 2), language_model(dropout=0.2))
        return (lambda step: loss_of(model, step)), model, adam(model)

    return resumed(build)


@works("atp", Feature.RESUME, note="Each rank saves and loads its own model.state_dict() and optimizer.state_dict().")
def test_a_resumed_training_with_dropout_equals_the_uninterrupted_one_bit_for_bit(pools):
    assert all(equal(*ends) for ends in pools(4).run(tidy, resumed_with_dropout))


def shards_of_another_rank():
    model, states = on((2, 1), language_model()), [None, None]
    dist.all_gather_object(states, model.state_dict())
    return refusal(model.load_state_dict, states[1 - dist.get_rank()])


def test_the_shards_of_another_place_are_refused(pools):
    first, second = pools(2).run(tidy, shards_of_another_rank)
    assert "these are the shards of mesh 2 x 1, place (1, 0); here is mesh 2 x 1, place (0, 0)" in first
    assert "place (0, 0); here is mesh 2 x 1, place (1, 0)" in second


def plain_into_shards(strict):
    on((2, 1), language := language_model())
    language.load_state_dict(language_model().state_dict(), strict=strict)


@pytest.mark.parametrize("strict", [True, False])
def test_a_plain_checkpoint_in_the_place_of_shards_is_refused_also_where_names_may_be_missing(pools, strict):
    assert_refused(pools, r"of a plain model: call atp.load_full_state_dict\(model, state\)", plain_into_shards, strict)


def saved(kind, mesh, path):
    """Return the plain model's state, that on a mesh, that of what was saved, and that loaded into another."""
    plain = language_model(kind, dtype=torch.float32)
    cut = on(mesh, copy.deepcopy(plain))
    states = [plain.state_dict(), atp.full_state_dict(cut)]
    (cut if kind == "gpt2" else cut.bert).save_pretrained(path)
    part = plain if kind == "gpt2" else plain.bert
    again = type(part).from_pretrained(path, **({} if kind == "gpt2" else {"add_pooling_layer": False}))
    written = dict.fromkeys(("architectures", "dtype", "_name_or_path"))  # by Hugging Face itself
    assert again.config.to_dict() | written == part.config.to_dict() | written
    states += [part.state_dict(), again.state_dict()]
    other = on(mesh, type(plain)(plain.config))
    atp.load_full_state_dict(other, {name: value for name, value in states[0].items() if name != "lm_head.weight"})
    return [*states, states[0], atp.full_state_dict(other)]


@works(
    "atp",
    Feature.SAVING,
    note="atp.full_state_dict, atp.load_full_state_dict and save_pretrained, which every rank calls, are of the plain "
    "model.",
)
@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_whole_checkpoint_is_that_of_the_plain_model_bit_for_bit(pools, kind, tmp_path):
    for mesh in ((2, 2), (4, 1)):
        for states in pools(4).run(tidy, saved, kind, mesh, str(tmp_path / f"{mesh}")):
            for expected, state in zip(states[::2], states[1::2], strict=True):
                assert [*expected] == [*state]
                torch.testing.assert_close(state, expected, rtol=0, atol=0)


def saved_by_the_first_rank():
    model = on((2, 1), language_model())
    whole.WAIT = timedelta(seconds=1)
    if dist.get_rank() == 0:
        model.save_pretrained("never_written")


def saved_with_shards():
    model = on((2, 1), language_model())
    model.save_pretrained(tempfile.gettempdir(), state_dict=model.state_dict())


def test_a_checkpoint_that_one_rank_asks_for_is_refused(pools):
    rule = "a whole model is asked for, which every rank of its mesh must do together: rank 1 does not"
    with pytest.raises(RankFailed, match=rule):
        pools(2).run(saved_by_the_first_rank)  # which starts the pool anew
    assert_refused(pools, r"transformer.h.0.shard.\S+ .* are parts of this rank", saved_with_shards)


def loaded_wrongly():
    model, state = on((2, 1), language_model()), language_model().state_dict()
    before, name = weights(model), "transformer.h.1.mlp.c_fc.bias"
    lacking = {other: value for other, value in state.items() if other != name}
    broken = [lacking, state | {"transformer.h.2.ln_1.bias": torch.ones(2)}, lacking | {name: torch.ones(3)}]
    messages = [refusal(atp.load_full_state_dict, model, wrong) for wrong in broken]
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)
    return messages


def test_whole_states_that_do_not_fit_are_refused_before_anything_changes(pools):
    for lacks, has, shape in pools(2).run(tidy, loaded_wrongly):
        assert lacks == "state: it lacks transformer.h.1.mlp.c_fc.bias"
        assert "it has transformer.h.2.ln_1.bias, which" in has
        assert "transformer.h.1.mlp.c_fc.bias is (3,); it must be (64,)" in shape


WAYS = ("kept", "gradient_checkpointing_enable", "reentrant", "not reentrant")


def recomputed(mesh, kind, how):
    """Return loss and gradients with dropout, activations kept or recomputed, and the bytes that autograd kept."""
    model, by_step, kept = on(mesh, language_model(kind, dropout=0.3)), [], []
    if how == "gradient_checkpointing_enable":
        model.gradient_checkpointing_enable()
    start = torch.zeros((), requires_grad=True)

    def run(add=0.0):
        return loss_of(model) + add

    def pack(tensor):
        kept.append(tensor.numel())
        return tensor

    for step in range(2):
        model.zero_grad()
        torch.manual_seed(step)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            if how == "reentrant":
                loss = checkpoint(run, start, use_reentrant=True)
            else:
                loss = checkpoint(run, use_reentrant=False) if how == "not reentrant" else run()
        loss.backward()
        by_step.append([loss.detach(), gradients(model)])
    return by_step, sum(kept)


@works("atp", Feature.CHECKPOINTING, note="Also gradient_checkpointing_enable() before or after atp.parallelize.")
@pytest.mark.parametrize(("kind", "mesh"), [*zip(("gpt2", "bert"), MESHES, strict=True)])
def test_recomputed_activations_give_the_same_gradients_and_are_not_kept(pools, mesh, kind):
    for (expected, most), *others in pools(2).run(tidy, lambda: [recomputed(mesh, kind, how) for how in WAYS]):
        for by_step, few in others:
            torch.testing.assert_close(by_step, expected, rtol=0, atol=0)
            assert few < most / 2


def compiled(mesh):
    """Return the gradients of a model that was compiled before it was put on a mesh, or of one that never was."""
    model = call = language_model(num_layers=1)
    if mesh is not None:
        call = torch.compile(model, backend="aot_eager")
        loss_of(call)
        on(mesh, model)
    loss_of(call).backward()
    torch.compiler.reset()
    return gradients(model)


@works("atp", Feature.COMPILE, note="What is around the blocks is compiled; the blocks with their messages are not.")
def test_a_compiled_model(pools):
    assert_equal_to_one_process(pools, compiled, meshes=[(2, 1)])


def penalised(mesh):
    model = on(mesh, language_model())
    x = model.transformer.wte(batch(0)).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs_embeds=x, labels=batch(0)).loss, x, create_graph=True)
    gradient.square().sum().backward()


@pytest.mark.parametrize("mesh", MESHES)
def test_a_penalty_on_gradients_is_refused(pools, mesh):
    assert_refused(pools, "once_differentiable", penalised, mesh)


def clipped(mesh):
    """Return norms and clipped gradients, of a model and of a copy of it that is trained in its place."""
    model, norms_and_gradients = on(mesh, language_model(num_layers=1)), []
    loss_of(model).backward()
    for held in (model, copy.deepcopy(model)):
        for clip in (nn.utils.clip_grad_norm_, atp.clip_grad_norm_ if mesh else nn.utils.clip_grad_norm_):
            for order in (2.0, 3.0, float("inf")):
                held.zero_grad()
                loss_of(held).backward()
                norm = clip(held.parameters(), 0.1, order)
                assert norm > 0.1
                norms_and_gradients.append((norm, gradients(held)))
    return norms_and_gradients


@works("atp", Feature.CLIPPING, note="torch's own is right; atp.clip_grad_norm_ sends one message for all parameters.")
@pytest.mark.parametrize("mesh", [(2, 2), (4, 1)])
def test_the_norm_counts_each_shard_and_each_whole_parameter_once(pools, mesh):
    assert_equal_to_one_process(pools, clipped, meshes=[mesh], num_ranks=4, rtol=1e-6)


def clipped_steps(clip):
    """Return the whole weights that each rank holds itself after clipped steps."""
    model = on((2, 2), language_model("bert", dtype=torch.float32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        (atp.clip_grad_norm_(model, 0.1) if clip == "atp" else nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
    return {name: weight for name, weight in model.state_dict().items() if "layer" not in name}


@pytest.mark.parametrize("clip", ["atp", "torch"])
def test_after_clipped_steps_whole_weights_are_the_same_bits_on_all_ranks(pools, clip):
    first, *others = pools(4).run(tidy, clipped_steps, clip)
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)


def replicated(mesh, ends_early, **options):
    """Train two replicas of a mesh with batches of their own, or by DistributedDataParallel on as many ranks."""
    module, replica, group = language_model(), dist.get_rank(), None
    if mesh is not None:
        mesh = atp.open_mesh(*mesh, replicas=2)
        atp.parallelize(module, mesh)
        replica, group = dist.get_rank(mesh.replicas), mesh.replicas
    model = DistributedDataParallel(module, process_group=group, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join(enable=ends_early):
        for step in range(3 - (ends_early and replica)):
            optimizer.zero_grad()
            with model.no_sync():
                loss_of(model, 100 + 10 * step + replica).backward()
            loss_of(model, 10 * step + replica).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return weights(module)


@works(
    "atp",
    Feature.UNEVEN_ENDS,
    Feature.ACCUMULATION,
    note="Of replicas of a mesh, in `model.join()`; the ranks of one mesh train on the same batches.",
)
@pytest.mark.parametrize(("ends_early", "gradient_as_bucket_view"), [(False, True), (True, False)])
def test_replicas_of_a_mesh_train_as_distributed_data_parallel(pools, ends_early, gradient_as_bucket_view):
    options = {"gradient_as_bucket_view": gradient_as_bucket_view}
    on_mesh = pools(4).run(tidy, replicated, (2, 1), ends_early, **options)
    by_ddp = pools(2).run(tidy, replicated, None, ends_early, **options)
    for replica in on_mesh:
        torch.testing.assert_close(replica, by_ddp[0], rtol=1e-7, atol=1e-9)


def over_all_ranks():
    model = language_model()
    atp.parallelize(model, atp.open_mesh(2, 1, replicas=2))
    loss_of(DistributedDataParallel(model))


def test_averages_over_other_ranks_than_the_replicas_are_refused(pools):
    for message in pools(4).run(tidy, refusal, over_all_ranks):
        rule = r"averages over ranks \[0, 1, 2, 3\]; wrap by .*mesh.replicas\), ranks \[[01], [23]\]"
        assert re.search(rule, message), message


def narrow_error(how):
    """Return how far gradients in narrow numbers are from those in float64: on a mesh, and in one process."""
    exact = language_model("bert")
    loss_of(exact).backward()
    wanted, errors = gradients(exact), []
    for mesh in ((2, 2), (4, 1), None):
        model = on(mesh, language_model("bert", dtype=torch.bfloat16 if how == "weights" else torch.float32))
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
            loss = loss_of(model)
        loss.backward()
        assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {next(model.parameters()).dtype}
        narrow = gradients(model)
        assert narrow.keys() == wanted.keys()
        errors.append(torch.stack([(narrow[name] - wanted[name]).norm() for name in wanted]).norm().item())
    *ours, plain = errors
    size = torch.stack([gradient.norm() for gradient in wanted.values()]).norm().item()
    return max(ours) / plain, plain / size


@works("atp", Feature.BF16, note="Parameters of a block must have one type.")
@works("atp", Feature.AUTOCAST)
@pytest.mark.parametrize("how", ["weights", "autocast"])
def test_narrow_numbers_are_no_further_from_exact_ones_than_in_one_process(pools, how):
    for ratio, of_plain in pools(4).run(tidy, narrow_error, how):
        assert 0 < of_plain < 0.05
        assert ratio < 1.5


def averaged(mesh):
    model = on(mesh, language_model())
    mean, optimizer = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5)), adam(model)
    for _ in range(2):
        mean.update_parameters(trained(model, optimizer, 1))
    return weights(mean.module), loss_of(mean).detach()


@works("atp", Feature.EMA, note="atp.full_state_dict takes the averaged model's `module`, too.")
def test_averages_of_weights(pools):
    assert_equal_to_one_process(pools, averaged)


def adapted(merges):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(language_model(), LoraConfig(target_modules=["c_attn"], init_lora_weights=False))
    return model.merge_and_unload().requires_grad_() if merges else model


def of_merged_adapters(mesh):
    model = on(mesh, adapted(merges=True))
    loss_of(model).backward()
    return gradients(model)


def adapted_afterwards():
    from peft import LoraConfig, get_peft_model

    get_peft_model(on((2, 1), language_model()), LoraConfig(target_modules=["c_attn"]))


@refuses("atp", Feature.LORA, note="Merged adapters are weights like others.")
def test_adapters_are_refused_and_merged_ones_are_not(pools):
    pytest.importorskip("peft")
    assert_refused(
        pools, r"block 0 has or lacks attn.c_attn.base_layer.*; .*merge adapters such as LoRA's", cut_with_adapters
    )
    assert_refused(pools, "c_attn", adapted_afterwards)
    assert_equal_to_one_process(pools, of_merged_adapters, meshes=[(2, 1)])


def cut_with_adapters():
    atp.parallelize(adapted(merges=False), (2, 1))


def sharded(first, whole_model):
    """Put a model on a mesh and under fully_shard, in this or the other order."""
    model, mesh = language_model(), dist.device_mesh.init_device_mesh("cpu", (2,))
    if first == "atp":
        on((2, 1), model)
    for block in [] if whole_model else model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    loss_of(on(None if first == "atp" else (2, 1), model))


@refuses("atp", Feature.FSDP, note="Its shards would be mixed with those of the mesh.")
@pytest.mark.parametrize(("first", "whole_model"), [("atp", True), ("fsdp", False)])
def test_fully_shard_is_refused(pools, first, whole_model):
    assert_refused(pools, r"fully_shard|FSDPGPT2Block; it must be a GPT2Block", sharded, first, whole_model)


def of_language_model(mesh, kind):
    model = on(mesh, language_model(kind))
    by_step, mask = [], torch.ones_like(batch(0))
    mask[1, 5:] = mask[2, 3:] = 0
    for step in range(2):
        model.zero_grad()
        out = model(batch(step), attention_mask=mask, labels=batch(step), output_hidden_states=step == 1)
        out.loss.backward()
        by_step.append((out.loss.detach(), out.hidden_states and [x.detach() for x in out.hidden_states]))
        by_step.append(gradients(model))
    return by_step


def other_language_model(name):
    import transformers

    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    if name == "Llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=VOCABULARY, **sizes))
    small = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=VOCABULARY, **small))


def cut_other(name):
    atp.parallelize(other_language_model(name), (2, 1))


@works("atp", Feature.MODELS, note="GPT-2 and BERT work; T5 and Llama are refused by name.")
def test_language_models(pools):
    for kind in ("gpt2", "bert"):
        assert_equal_to_one_process(pools, of_language_model, kind, meshes=[(2, 2), (4, 1)], num_ranks=4)
    for name in ("T5", "Llama"):
        assert_refused(pools, f"{name}\\w+ has neither a GPT2Model nor a BertModel in it", cut_other, name)


@works("atp", Feature.RAISES, Feature.EXITS, Feature.FREEZES, note="Ranks that are left end with `RankLost`.")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_lost_rank_is_named(ending):
    (heard,) = errors_of_the_rest(step_of_a_block)[ending].values()
    assert "RankLost" in heard and "rank 1 does not answer, having raised, ended or stopped" in heard
