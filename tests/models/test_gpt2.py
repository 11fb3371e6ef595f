"""GPT-2 against Hugging Face's own, in logits, loss and every gradient; alone and sharded block by block."""

import pytest
import torch
import torch.distributed as dist
from small_models import small_model

from workbench.models.gpt2 import GPT2, GPT2Config

LINEARS = {"query_key_value": "attn.c_attn", "output": "attn.c_proj", "input": "mlp.c_fc", "projection": "mlp.c_proj"}
NORMS = {"attention_norm": "ln_1", "mlp_norm": "ln_2"}  # of a block, here -> in `transformers`


def hugging_face_model():
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return small_model("GPT2LMHeadModel", "GPT2Config", **sizes, **dropout, bos_token_id=0, eos_token_id=0)


def ids() -> torch.Tensor:
    return torch.randint(0, 64, (3, 9), generator=torch.Generator().manual_seed(1))


def pairs(model, plain):
    """Give each parameter of `transformers`, the same parameter here, and whether the former is transposed."""
    body = plain.transformer
    yield from ((body.wte.weight, model.word.weight, False), (body.wpe.weight, model.position.weight, False))
    modules = [(body.ln_f, model.norm, False)]
    for block, their_block in zip(model.blocks, body.h, strict=True):
        parts = [(ours, name, False) for ours, name in NORMS.items()] + [(*part, True) for part in LINEARS.items()]
        modules += [(their_block.get_submodule(name), getattr(block, ours), turned) for ours, name, turned in parts]
    for their_module, module, is_transposed in modules:
        yield their_module.weight, module.weight, is_transposed
        yield their_module.bias, module.bias, False


def test_logits_loss_and_all_gradients_equal_those_of_transformers_with_the_same_weights():
    plain, model = hugging_face_model(), GPT2(GPT2Config.tiny(dropout=0.0))
    assert len(list(pairs(model, plain))) == len(list(model.parameters())) == len(list(plain.parameters()))
    with torch.no_grad():
        for source, parameter, is_transposed in pairs(model, plain):
            parameter.copy_(source.T if is_transposed else source)
    expected, loss = plain(ids(), labels=ids()), model(ids(), ids())
    torch.testing.assert_close(model(ids()), expected.logits, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(loss, expected.loss, rtol=1e-5, atol=1e-6)
    expected.loss.backward()
    loss.backward()
    for source, parameter, is_transposed in pairs(model, plain):
        gradient = source.grad.T if is_transposed else source.grad
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


def test_no_position_looks_at_a_later_one_and_only_dropout_draws_from_the_global_generator():
    before = torch.get_rng_state()
    model = GPT2(GPT2Config.tiny()).eval()
    changed = ids()
    changed[:, 5:] = 0
    torch.testing.assert_close(model(changed)[:, :5], model(ids())[:, :5])
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        model.train()(ids())
        assert not torch.equal(torch.get_rng_state(), before)


def test_published_sizes_count_the_published_parameters():
    with torch.device("meta"):
        model = GPT2(GPT2Config.small())
    # transformers counts 124,439,808 parameters in "gpt2".
    assert sum(p.numel() for p in model.parameters()) == GPT2Config.small().num_parameters == 124_439_808


def test_bad_sizes_and_sequences_are_refused_by_name():
    with pytest.raises(ValueError, match="num_heads: 3 does not divide hidden_size 32"):
        GPT2Config.tiny(num_heads=3)
    with pytest.raises(ValueError, match="17 tokens are more than max_positions 16"):
        GPT2(GPT2Config.tiny())(torch.zeros(1, 17, dtype=torch.long))


def gradients_when_sharded() -> dict[str, torch.Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    ranks = init_device_mesh("cpu", (dist.get_world_size(),))
    model = GPT2(GPT2Config.tiny(dropout=0.0))
    for block in model.blocks:
        fully_shard(block, mesh=ranks)
    fully_shard(model, mesh=ranks)
    model(ids(), ids()).backward()
    return {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}


def test_sharded_block_by_block_on_two_ranks_every_gradient_is_that_of_one_process(pools):
    alone = GPT2(GPT2Config.tiny(dropout=0.0))
    alone(ids(), ids()).backward()
    expected = {name: parameter.grad for name, parameter in alone.named_parameters()}
    for gradients in pools(2).run(gradients_when_sharded):
        torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)
