"""A Llama cut over three ranks by torch's `parallelize_module`; one rank is slow, and the others help it."""

import time

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaModel

from workbench.launch import run_on_ranks
from workbench.techniques import flextp
from workbench.timeline import StragglerTrace


def train(num_iterations):
    model = LlamaModel(LlamaConfig(vocab_size=50, hidden_size=256, intermediate_size=1536, num_hidden_layers=2))
    mesh, ended_s = init_device_mesh("cpu", (3,)), []
    plan = {"layers.*.mlp.gate_proj": ColwiseParallel(), "layers.*.mlp.up_proj": ColwiseParallel()}
    parallelize_module(model, mesh, plan | {"layers.*.mlp.down_proj": RowwiseParallel()})
    balancer = flextp.balance(model, mesh, trace=StragglerTrace.fixed(3, {1: 8.0}))  # here, rank 1 is made slow
    for _ in range(num_iterations):
        with balancer.iteration():  # around each step of training
            model(torch.arange(256).reshape(4, 64) % 50).last_hidden_state.square().mean().backward()
        ended_s.append(time.perf_counter())
    return balancer.plan.ranks, [1000 * (ended_s[end] - ended_s[end - 7]) / 7 for end in (7, -1)]


if __name__ == "__main__":
    plan, times_ms = run_on_ranks(train, 3, 32, preload=["transformers.models.llama.modeling_llama"])[0]
    print("{:.0f} ms an iteration at first, {:.0f} ms at the end".format(*times_ms), *plan, sep="\n")
