"""How much does a GPT-2 lose when its last blocks hand on compressed activations? One way a rank, trained alike."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from workbench.compression import AutoEncoder, Quantize, TopK
from workbench.launch import PerRank, run_on_ranks
from workbench.techniques.activation_compression import compress

WAYS = [None, Quantize(4), TopK(0.05), AutoEncoder(hidden=64, code_size=8)]


def train(codec, num_iterations):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=64, n_layer=4, n_head=4))
    compressed = codec and compress(model, codec, layers=2)  # the last two blocks
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # afterwards: learned codes are parameters
    for _ in range(num_iterations):
        tokens = (torch.randint(100, (8, 1)) + torch.arange(32)) % 100  # counting, from anywhere
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return f"loss {loss:.3f}\n{compressed.report() if compressed else 'uncompressed'}"


if __name__ == "__main__":
    for codec, told in zip(WAYS, run_on_ranks(train, len(WAYS), PerRank(WAYS), 100), strict=True):
        print(f"\n{type(codec).__name__}: {told}")
