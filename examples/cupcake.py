"""Gradients of a BERT are compressed in those groups with which an iteration is shortest (Cupcake)."""

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForSequenceClassification

from workbench.launch import run_on_ranks
from workbench.techniques import cupcake


def train(num_iterations: int) -> str:
    torch.manual_seed(torch.distributed.get_rank())  # each rank has its own batch
    ids, labels = torch.randint(1000, (4, 32)), torch.randint(2, (4,))
    bert = BertForSequenceClassification(BertConfig(hidden_size=96, num_hidden_layers=1, vocab_size=1000))
    model = DistributedDataParallel(bert, bucket_cap_mb=cupcake.BUCKET_MB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exchange = cupcake.fuse(model, "efsignsgd")  # one line; the loop is as before
    for _ in range(num_iterations):
        loss = model(ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return f"loss {loss.item():.3f}, {exchange.plan}"  # the groups, and predicted iterations of this and other rules


print(run_on_ranks(train, 2, 10, preload=["transformers.models.bert.modeling_bert"])[0])
