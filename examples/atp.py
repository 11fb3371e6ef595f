"""The blocks of a BERT are cut over the mesh of ranks that is best for the links between them (ATP)."""

import torch
from transformers import BertConfig, BertForSequenceClassification

from workbench.launch import run_on_ranks
from workbench.techniques import atp


def train(num_iterations: int) -> str:
    torch.manual_seed(0)  # the same batch and dropout on every rank
    bert = BertForSequenceClassification(BertConfig(hidden_size=96, num_hidden_layers=2, vocab_size=1000))
    strategy = atp.parallelize(bert, batch=4, sequence=64)  # one line; the loop is as before
    optimizer = torch.optim.SGD(bert.parameters(), lr=0.1)
    ids, labels = torch.randint(1000, (4, 64)), torch.randint(2, (4,))
    for _ in range(num_iterations):
        loss = bert(ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    held = sum(weight.numel() for weight in bert.bert.encoder.parameters())
    return f"{strategy.name}: loss {loss.item():.3f}, {held:,} parameters of the blocks on each rank"


print(run_on_ranks(train, 4, 10, preload=["transformers.models.bert.modeling_bert"])[0])
