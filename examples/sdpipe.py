"""Two replicas of a ViT, each a pipeline of two stages, average whenever both are ready at about one time (SDPipe)."""

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy
from transformers import ViTConfig, ViTForImageClassification

from workbench.launch import run_on_ranks
from workbench.techniques.sdpipe import synchronized


def train(num_iterations: int) -> str:
    replica, index = divmod(torch.distributed.get_rank(), 2)  # stages of a replica are neighbouring ranks
    torch.manual_seed(replica)  # each replica has its own batch
    model = ViTForImageClassification(ViTConfig(hidden_size=96, intermediate_size=384, num_hidden_layers=2))
    layers = [model.vit.embeddings, *model.vit.layers, model.vit.layernorm, model.classifier]
    part = torch.nn.Sequential(*(layers[:2], layers[2:])[index])
    stage = PipelineStage(part, index, 2, torch.device("cpu"), group=torch.distributed.new_subgroups(2)[0])
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=lambda y, label: cross_entropy(y[:, 0], label))
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    images, labels = torch.randn(4, 3, 224, 224), torch.randint(2, (4,))
    with synchronized(part, optimizer, num_stages=2) as sdpipe:  # one line; the loop is as before
        for _ in range(num_iterations):
            y = schedule.step(images) if index == 0 else schedule.step(target=labels)
            optimizer.step()
            optimizer.zero_grad()
    return cross_entropy(y[:, 0], labels).item() if index else f"waited {sdpipe.log.waited_s:.2f} s to average; loss"


print(*run_on_ranks(train, 4, 10, preload=["transformers.models.vit.modeling_vit"]))
