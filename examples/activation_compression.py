"""How much a Llama loses when its last two blocks hand on compressed activations: one codec a rank, trained alike."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from workbench.compression import AutoEncoder, Quantize, TopK
from workbench.launch import PerRank, run_on_ranks
from workbench.techniques.activation_compression import compress

CODECS = [TopK(0.05), Quantize(4), AutoEncoder(hidden=64, code_size=8)]


def train(codec, num_iterations):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, hidden_size=64, intermediate_size=256, num_hidden_layers=4))
    compressed = compress(model, codec, layers=2)  # the last two blocks
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)  # afterwards: learned codes are parameters, too
    for _ in range(num_iterations):
        tokens = (torch.randint(50, (8, 1)) + torch.arange(32)) % 50  # counting, from anywhere
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return f"{compressed}\nloss {loss:.3f}\n{compressed.report()}\n"


if __name__ == "__main__":
    print(*run_on_ranks(train, 3, PerRank(CODECS), 60, preload=["transformers.models.llama.modeling_llama"]), sep="\n")
