"""Gradients of a BERT's embeddings are summed without their zeros, evenly over the ranks (Zen)."""

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForSequenceClassification

from workbench.launch import run_on_ranks
from workbench.techniques import zen


def train(num_iterations: int) -> str:
    torch.manual_seed(torch.distributed.get_rank())  # each rank has its own batch
    ids, labels = torch.randint(30_000, (4, 64)), torch.randint(2, (4,))
    bert = BertForSequenceClassification(BertConfig(hidden_size=48, intermediate_size=192, num_hidden_layers=2))
    model = DistributedDataParallel(bert, bucket_cap_mb=zen.BUCKET_MB)
    sums = zen.synchronise(model)  # one line; the loop is as before
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_iterations):
        loss = model(ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with model.no_sync():  # leaves this rank's own gradient
        model(ids, labels=labels).loss.backward()
    advice = zen.advise(bert.get_input_embeddings().weight.grad)  # what each scheme takes for it on these links
    return f"loss {loss.item():.3f}, {sums.wire.sent_bytes:,} bytes sent for embeddings\n{advice}"


print(run_on_ranks(train, 4, 10, preload=["transformers.models.bert.modeling_bert"])[0])
