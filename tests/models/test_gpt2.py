"""GPT-2 against Hugging Face's own, in logits, loss and every gradient; alone and sharded block by block."""

import pytest
import torch
import torch.distributed as dist
from small_models import small_model

from workbench.models.gpt2 import GPT2, GPT2Config, load_gpt2_from_hugging_face_, to_gpt2_of_hugging_face


def hugging_face_model():
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return small_model("GPT2LMHeadModel", "GPT2Config", **sizes, **dropout, bos_token_id=0, eos_token_id=0)


def ids() -> torch.Tensor:
    return torch.randint(0, 64, (3, 9), generator=torch.Generator().manual_seed(1))


def test_weights_logits_loss_and_all_gradients_equal_those_of_transformers():
    plain = hugging_face_model()
    model = GPT2(GPT2Config.from_hugging_face(plain.config.to_dict()))
    load_gpt2_from_hugging_face_(model, plain.state_dict())
    collected = to_gpt2_of_hugging_face(model)
    assert all(torch.equal(plain.state_dict()[f"transformer.{name}"], tensor) for name, tensor in collected.items())
    assert len(collected) == 2 + 2 * 12 + 2  # embeddings, 4 linears and 2 norms a block with biases, the last norm
    expected, loss = plain(ids(), labels=ids()), model(ids(), ids())
    torch.testing.assert_close(model(ids()), expected.logits, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(loss, expected.loss, rtol=1e-5, atol=1e-6)
    expected.loss.backward()
    loss.backward()
    gradients = {name.removeprefix("transformer."): parameter.grad for name, parameter in plain.named_parameters()}
    torch.testing.assert_close(to_gpt2_of_hugging_face(model, gradients=True), gradients, rtol=1e-4, atol=1e-6)


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


def test_bad_sizes_sequences_and_weights_are_refused_by_name():
    with pytest.raises(ValueError, match="num_heads: 3 does not divide hidden_size 32"):
        GPT2Config.tiny(num_heads=3)
    with pytest.raises(ValueError, match="17 tokens are more than max_positions 16"):
        GPT2(GPT2Config.tiny())(torch.zeros(1, 17, dtype=torch.long))
    config = hugging_face_model().config.to_dict()
    with pytest.raises(ValueError, match="activation_function: 'relu' is not 'gelu_new'"):
        GPT2Config.from_hugging_face(config | {"activation_function": "relu"})
    state = hugging_face_model().state_dict()
    model = GPT2(GPT2Config.tiny())
    before = model.word.weight.clone()
    state["transformer.ln_f.bias"] = torch.zeros(31)
    with pytest.raises(ValueError, match=r"ln_f.bias: shape \(31,\) does not fit; it must be \(32,\)"):
        load_gpt2_from_hugging_face_(model, state)
    assert torch.equal(model.word.weight, before)


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
