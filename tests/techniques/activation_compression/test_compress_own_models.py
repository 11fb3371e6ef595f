"""`compress` on models of others: which layers a number means, what is asked where that is not clear, bytes saved."""

import pickle
from collections import namedtuple

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaModel,
    T5Config,
    T5Model,
)

from workbench.compression import AutoEncoder, Quantize, TopK
from workbench.parallel import RowParallelLinear, VirtualTensorGroup
from workbench.techniques.activation_compression import compress

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}


class Block(nn.Module):
    def __init__(self, width_in, width):
        super().__init__()
        self.linear = nn.Linear(width_in, width)

    def forward(self, x):
        return self.linear(x).relu()


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=3, n_head=2))


def perceptron():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


STACKS = {
    "GPT-2": (gpt2, "transformer.h.1 transformer.h.2"),
    "BERT": (lambda: BertModel(BertConfig(**SMALL)), "encoder.layer.1 encoder.layer.2"),
    "DistilBERT": (
        lambda: DistilBertModel(DistilBertConfig(vocab_size=50, dim=16, n_layers=3, n_heads=2, hidden_dim=32)),
        "transformer.layer.1 transformer.layer.2",
    ),
    "Llama": (lambda: LlamaModel(LlamaConfig(**SMALL)), "layers.1 layers.2"),
    "torch's encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3),
        "layers.1 layers.2",
    ),
    "blocks between other layers": (
        lambda: nn.Sequential(nn.Linear(4, 8), Block(8, 8), Block(8, 9), Block(9, 9), nn.Linear(9, 2)),
        "2 3",
    ),
    "blocks beside a list of heads": (
        lambda: nn.ModuleDict(
            {"body": nn.Sequential(Block(8, 8), Block(8, 8)), "heads": nn.ModuleList([nn.Linear(8, 8)])}
        ),
        "body.0 body.1",
    ),
}


@pytest.mark.parametrize("name", STACKS)
def test_a_number_means_the_last_blocks_of_a_transformer_or_of_another_stack(name):
    build, sites = STACKS[name]
    assert compress(build(), TopK(0.25), layers=2).sites == tuple(sites.split())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (perceptron, r"Sequential has no stack of equal blocks, .* layers=\['0', '2', '4'\] or some"),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)),
            "no stack of equal blocks",
        ),
        (lambda: nn.Linear(4, 4), r"layers=\[\]"),
        (lambda: nn.ModuleList([nn.LayerNorm(4)] * 3), "no stack of equal blocks"),
        (
            lambda: T5Model(T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)),
            r"2 stacks of blocks \(encoder.block.0 to encoder.block.1 \(T5Block\); decoder.*\['decoder.block.0', ",
        ),
    ],
)
def test_where_it_is_not_clear_which_layers_a_number_means_names_are_asked_for(build, message):
    with pytest.raises(ValueError, match=message):
        compress(build(), TopK(0.25), layers=1)


@pytest.mark.parametrize(
    ("codec", "layers", "message"),
    [
        ("A1", 2, r"the width of transformer.h.1's output is not known: pass AutoEncoder\(hidden, code_size\)"),
        ("Q2", 4, r"layers is 4; it must be in 1..3, the blocks transformer.h.0 to transformer.h.2 \(GPT2Block\)"),
        ("Q2", "transformer.h", r"a list without an output; name its modules, such as .*'transformer.h.2'"),
        ("Q2", ["h.0"], "layers has 'h.0'; it must name modules of the model, such as .'transformer.h.0'"),
    ],
)
def test_what_cannot_be_compressed_is_refused_with_what_to_do_and_nothing_changes(codec, layers, message):
    model = gpt2()
    with pytest.raises(ValueError, match=message):
        compress(model, codec, layers=layers)
    assert not any(module._forward_hooks for module in model.modules())


def test_the_report_has_the_bytes_of_the_last_forward_pass_and_asks_for_one_where_there_was_none():
    model = gpt2()
    compressed = compress(model, AutoEncoder(16, 4), layers=2)
    assert repr(compressed).startswith("Compression(AutoEncoder at transformer.h.1, transformer.h.2; report()")
    with pytest.raises(RuntimeError, match="run a forward pass of the model"):
        compressed.report()
    for batch in (5, 3):
        pickle.loads(pickle.dumps(model))(torch.ones(batch, 8, dtype=torch.int64))
        model(torch.ones(batch, 8, dtype=torch.int64))
    table = compressed.report()  # 3 sequences of 8 tokens of 16 numbers of 4 bytes, of which 4 are sent
    assert table.loc["transformer.h.2"].tolist() == [3 * 8 * 16 * 4, 3 * 8 * 4 * 4, 3 * 8 * 12 * 4, "75%"]
    assert table.loc["all"].tolist() == [3072, 768, 2304, "75%"]
    compressed.remove()
    assert not any(module._forward_hooks for module in model.modules())


def test_a_sum_over_ranks_counts_what_a_rank_sends_in_rings():
    # Of [2, 8] floats a rank of 4 sends 2 · 3/4 · 64 bytes in an all-reduce, 3 copies of its codes in an all-gather.
    layer = RowParallelLinear(8, 8, VirtualTensorGroup(4))
    compressed = compress(nn.ModuleDict({"sum": layer}), "Q2", layers="sum")
    layer([torch.ones(2, 2)] * 4)
    (codec,) = compressed.codecs
    sent_bytes = 3 * codec.payload_bytes((2, 8), torch.float32)
    assert compressed.report().loc["row"].tolist()[:3] == [96, sent_bytes, 96 - sent_bytes]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_torchs_encoder_are_refused_with_what_to_do():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    compress(model, TopK(0.25), layers=1)
    is_padding = torch.tensor([[False, True], [False, False]])
    with pytest.raises(ValueError, match="is a nested tensor; .* enable_nested_tensor=False"), torch.no_grad():
        model(torch.ones(2, 2, 16), src_key_padding_mask=is_padding)


class Named(nn.Module):
    def forward(self, x):
        return namedtuple("Output", "hidden number")(x, 3)


def test_a_named_tuple_stays_one():
    compress(model := nn.Sequential(Named()), TopK(1), layers="0")
    output = model(torch.tensor([[1.0, 2.0]]))
    assert (output.hidden.tolist(), output.number) == ([[0.0, 2.0]], 3)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_outputs_that_are_not_of_floats_are_refused_by_name(dtype):
    compress(model := nn.Sequential(nn.Identity()), Quantize(4), layers="0")
    with pytest.raises(ValueError, match=f"output of Identity is {dtype}; it must be of floats"):
        model(torch.ones(2, 4, dtype=dtype))


def test_the_output_of_a_sequential_is_encoded_once():
    """A code of one column keeps E D x; running the codec as a further layer would give (E D)² x."""
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model = nn.Sequential(block, nn.Linear(4, 2))
    x, length = torch.randn(3, 4), len(block)
    plain = block(x)
    compressed = compress(model, AutoEncoder(4, 1), layers="0")
    (codec,) = compressed.codecs
    torch.testing.assert_close(block(x), plain @ codec.encoder @ codec.decoder, rtol=0, atol=0)
    assert len(block) == length and {id(weight) for weight in codec.parameters()} < set(map(id, model.parameters()))
    compressed.remove()
    assert torch.equal(block(x), plain) and next(iter(codec.parameters())) not in set(model.parameters())


class AllChildren(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        for child in self.children():
            x = child(x)
        return x


def test_a_layer_that_calls_all_of_its_sub_modules_is_refused_by_name():
    model = nn.ModuleDict({"block": AllChildren()})
    compress(model, TopK(0.5), layers="block")
    with pytest.raises(RuntimeError, match="TopK of block is called by another; compress the layer around it"):
        model["block"](torch.randn(3, 4))
