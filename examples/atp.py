"""The blocks of a GPT-2 are cut over the mesh of ranks that is best for the links between them (ATP)."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from workbench.launch import run_on_ranks
from workbench.techniques import atp

TOKENS = {"vocab_size": 500, "bos_token_id": 0, "eos_token_id": 0}


def train(num_iterations: int) -> str:
    torch.manual_seed(0)  # the same batch and dropout on every rank
    model = GPT2LMHeadModel(GPT2Config(n_embd=128, n_layer=2, n_head=8, n_positions=64, **TOKENS))
    strategy = atp.parallelize(model, batch=4)  # one line; the loop is as before
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(500, (4, 64))
    for _ in range(num_iterations):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    held = sum(weight.numel() for weight in model.transformer.h.parameters())
    return f"{strategy.name}: loss {loss.item():.2f}, {held:,} parameters of the blocks on each rank"


print(run_on_ranks(train, 4, 10, preload=["transformers.models.gpt2.modeling_gpt2"])[0])
