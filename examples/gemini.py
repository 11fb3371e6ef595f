"""A BERT trained on two machines; one of them is killed midway, and the training ends as if nothing had happened."""

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForMaskedLM

from workbench.techniques.gemini import InMemoryCheckpoints, run_training
from workbench.techniques.gemini.control import Fault, Victim

CONFIG = BertConfig(vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)


def train(context, num_iterations):
    torch.manual_seed(context.rank)
    model = DistributedDataParallel(BertForMaskedLM(CONFIG))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoints = InMemoryCheckpoints(context, model, optimizer)  # 1: goes back to the newest checkpoint
    for _ in checkpoints.iterations(num_iterations):  # 2: a checkpoint in a peer's memory after each
        tokens = torch.randint(100, (8, 32))
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    for faults in [], [Fault(kills=Victim.MACHINE, numbers=(1,), at_iteration=10)]:
        outcome = run_training(train, 2, args=(20,), faults=faults, preload=["transformers.models.bert.modeling_bert"])
        print(f"started {outcome.num_generations} times, losses {outcome.results}")
