"""A BERT on two machines with a slow network: those gradients are compressed for which it pays (Espresso)."""

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForSequenceClassification

from workbench.cluster import Link, Machines
from workbench.launch import run_on_ranks
from workbench.techniques import espresso


def train(bert, plan, num_iterations: int) -> float:
    quarter = slice(torch.distributed.get_rank(), None, 4)  # this rank's quarter of the data
    model = DistributedDataParallel(bert, bucket_cap_mb=espresso.BUCKET_MB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with espresso.compress_gradients(model, plan):  # 2: gradients are exchanged as planned; the loop is as before
        for _ in range(num_iterations):
            loss = model(ids[quarter], labels=labels[quarter]).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


ids, labels = torch.randint(1000, (16, 32)), torch.randint(2, (16,))
bert = BertForSequenceClassification(BertConfig(hidden_size=192, num_hidden_layers=1, vocab_size=1000))
links = {"intra": Link(bandwidth_bytes_per_s=5e9), "inter": Link(bandwidth_bytes_per_s=1e7)}
cluster = Machines(num_machines=2, gpus_per_machine=2, **links)
plan = espresso.plan(bert, cluster, step=lambda: bert(ids[:4], labels=labels[:4]).loss.backward())  # 1: measured here
print(plan, run_on_ranks(train, 4, bert, plan, 10, preload=["transformers.models.bert.modeling_bert"]), sep="\n")
