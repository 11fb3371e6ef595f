"""Virtual ranks against real ranks, against algorithm 1 pass by pass, and by hand."""

import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from workbench.techniques.sdpipe import Endless1F1B, Options, synchronized
from workbench.techniques.sdpipe.cost import Run, Scheme, drawn_delays_s, simulate
from workbench.techniques.sdpipe.method import Group
from workbench.techniques.sdpipe.simulated import PAPER, workload_of
from workbench.techniques.sdpipe.training import Setting, run_workers, stages_of
from workbench.techniques.sdpipe.virtual import VirtualServer, VirtualWorkers, train
from workbench.timeline import Kind, one_forward_one_backward


def flat(part):
    return nn.utils.parameters_to_vector(part.parameters()).detach()


def followed(workers, **order):
    """Let workers follow groups, or a server's steps; return what has ended, in order."""
    return sorted(workers.follow(Run(ends_s=np.zeros(0), **order)))


def in_order(seen, num_stages, has_flush=True):
    """Put the groups that workers logged in one order in which each follows what it needs."""
    ahead = [1 if has_flush else num_stages - stage for stage in range(num_stages)]
    logs = [list(worker.log.groups) for worker in seen]
    num_synced, groups = [0] * len(logs), []

    def is_next(rank, group):
        """Whether a worker averages in this group next, and its pipeline has the weights of the mini-batch."""
        of_pipeline = num_synced[rank // num_stages * num_stages :]
        has_weights = all(synced + a > num_synced[rank] for synced, a in zip(of_pipeline, ahead, strict=False))
        return has_weights and logs[rank] and logs[rank][0].members == group.members

    while any(logs):
        for log in logs:
            for group in log[:1]:
                members = [pipeline * num_stages + group.stage for pipeline in group.members]
                if all(is_next(member, group) for member in members):
                    groups.append(group)
                    for member in members:
                        logs[member].pop(0)
                        num_synced[member] += 1
    return groups


def replayed(setting, groups):
    data = setting.data()
    workers = VirtualWorkers(
        stages_of(setting.model, setting.num_stages, setting.seed),
        setting.num_pipelines,
        setting.optimizer,
        data.batch,
        data.loss,
        has_flush=setting.has_flush,
        averages_gradients=setting.scheme == Scheme.ALL_REDUCE,
        num_micro_batches=setting.num_micro_batches if setting.has_flush else 1,
    )
    followed(workers, groups=groups)
    return [flat(part) for part in workers.mean()]


@pytest.mark.parametrize(
    ("scheme", "model", "flush"),
    [
        ("All-Reduce+Pipe", "resnet", "all"),
        ("AD-PSGD+Pipe", "resnet", "all"),
        ("SDPipe", "resnet", "all"),
        ("SDPipe", "resnet", "rivals"),
        ("SDPipe", "gpt2", "all"),
        ("SDPipe", "gpt2", "rivals"),
    ],
)
def test_virtual_ranks_in_the_order_of_real_ranks_have_the_same_parameters_bit_for_bit(scheme, model, flush):
    more = {"learning_rate": 0.05 if model == "resnet" else 0.001, "flush": flush}
    setting = Setting(scheme=scheme, model=model, num_stages=2, num_pipelines=2, iterations=5, pass_s=0.002, **more)
    seen = run_workers(setting, drawn_delays_s(5, 2, 2, delay_s=0.05, share=0.3))
    for part, worker in zip(replayed(setting, in_order(seen, 2, setting.has_flush)), seen, strict=False):
        assert torch.equal(part, worker.flat)


def small_workers(num_stages, num_pipelines, kind=VirtualWorkers, **how):
    """Give tanh layers of random weights as stages, with random batches."""
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(num_stages)]

    def batch(pipeline, number):
        draw = torch.Generator().manual_seed(100 * pipeline + number)
        return torch.randn(4, 3, generator=draw), torch.randn(4, 3, generator=draw)

    def make_optimizer(part):
        return torch.optim.SGD(part.parameters(), lr=0.5, momentum=0.9)

    return kind(parts, num_pipelines, make_optimizer, batch, functional.mse_loss, **how), batch


class ByDefinition:
    """Algorithm 1 pass by pass: each stage keeps the graph of its forward pass, and its weights, until it is undone."""

    def __init__(self, workers, batch, orders):
        self.parts = [[worker.part for worker in pipeline] for pipeline in workers.pipelines]
        self.optimizers = [[worker.optimizer for worker in pipeline] for pipeline in workers.pipelines]
        self.batch, self.orders = batch, orders
        self.place = {(j, i): 0 for i, pipeline in enumerate(self.parts) for j in range(len(pipeline))}
        self.num_synced = dict.fromkeys(self.place, 0)
        self.inputs, self.stashed, self.sent, self.gradients = {}, {}, {}, {}

    def do(self, kind, j, i, k):
        """Do stage j's passes in pipeline i up to this one, after the passes that they need."""
        while (kind, k) not in self.orders[j][: self.place[j, i]]:
            now, number = self.orders[j][self.place[j, i]]
            neighbour = j - 1 if now is Kind.FORWARD else j + 1
            if 0 <= neighbour < len(self.orders):
                self.do(now, neighbour, i, number)
            (self.forward if now is Kind.FORWARD else self.backward)(j, i, number)
            self.place[j, i] += 1

    def forward(self, j, i, k):
        x = self.batch(i, k)[0] if j == 0 else self.stashed[j - 1, i, k][1].detach()
        x.requires_grad_()
        weights = {
            name: weight.detach().clone().requires_grad_() for name, weight in self.parts[i][j].named_parameters()
        }
        self.inputs[j, i, k] = x
        self.stashed[j, i, k] = weights, functional_call(self.parts[i][j], weights, (x,))

    def backward(self, j, i, k):
        weights, y = self.stashed.pop((j, i, k))
        is_last = j == len(self.orders) - 1
        result = functional.mse_loss(y, self.batch(i, k)[1]) if is_last else y
        wanted = [self.inputs[j, i, k], *weights.values()]
        sent, *self.gradients[j, i, k] = torch.autograd.grad(result, wanted, None if is_last else self.sent[j, i, k])
        self.sent[j - 1, i, k] = sent

    def average(self, group):
        j = group.stage
        parts = [self.parts[i][j] for i in group.members]
        for i in group.members:
            number = self.num_synced[j, i]
            self.num_synced[j, i] += 1
            self.do(Kind.BACKWARD, j, i, number)
            for weight, gradient in zip(self.parts[i][j].parameters(), self.gradients[j, i, number], strict=True):
                weight.grad = gradient
            self.optimizers[i][j].step()
        with torch.no_grad():
            for weights in zip(*(part.parameters() for part in parts), strict=True):
                mean = torch.stack(weights).mean(0)
                for weight in weights:
                    weight.copy_(mean)


@pytest.mark.parametrize("seed", range(3))
def test_without_a_flush_they_do_what_algorithm_1_does_pass_by_pass(seed):
    num_stages, num_pipelines, num_iterations = 3, 4, 12
    workload = workload_of("ResNet-50", num_stages)
    late_s = drawn_delays_s(num_iterations, num_stages, num_pipelines, delay_s=0.3, share=0.3, seed=seed)
    run = simulate("SDPipe", workload, PAPER, late_s, flush=False)
    workers, batch = small_workers(num_stages, num_pipelines, has_flush=False)
    rows = one_forward_one_backward(num_stages, num_iterations + num_stages).rows
    orders = [[(cell.kind, cell.micro_batch) for cell in row] for row in rows]
    literal = ByDefinition(small_workers(num_stages, num_pipelines, has_flush=False)[0], batch, orders)
    for group in run.groups:
        workers.average_(group)
        literal.average(group)
    assert len({len(group.members) for group in run.groups}) > 1
    for pipeline, parts in zip(workers.pipelines, literal.parts, strict=True):
        for worker, part in zip(pipeline, parts, strict=True):
            assert torch.allclose(flat(worker.part), flat(part), rtol=1e-5, atol=1e-6)


def of_a_user(num_batches):
    """Train a user's own pipeline without a flush; return this rank's weights."""
    groups = [dist.new_group(members) for members in ([0, 1], [2, 3], [0])]  # rank 0 has one more
    pipeline, stage = divmod(dist.get_rank(), 2)
    workers, batch = small_workers(2, 2, has_flush=False)
    worker = workers.pipelines[pipeline][stage]
    schedule = Endless1F1B(worker.part, functional.mse_loss, group=groups[pipeline])
    with synchronized(worker.part, worker.optimizer, num_stages=2, options=Options(window_s=math.inf)):
        for _ in schedule.run(batch(pipeline, number) for number in range(num_batches)):
            worker.optimizer.step()
            worker.optimizer.zero_grad()
    return flat(worker.part)


def test_a_users_pipeline_without_a_flush_ends_as_virtual_ranks_do(pools):
    expected, _ = small_workers(2, 2, has_flush=False)
    followed(expected, groups=[Group(stage, frozenset({0, 1})) for _ in range(5) for stage in (1, 0)])
    parts = [flat(part) for part in expected.mean()]
    for rank, weights in enumerate(pools(4).run(of_a_user, 5)):
        assert torch.allclose(weights, parts[rank % 2], atol=1e-6)


def test_a_mean_of_models_is_a_mean_of_gradients_where_each_group_holds_all_workers_and_starts_are_equal():
    groups, means = [Group(stage, frozenset({0, 1})) for _ in range(3) for stage in range(2)], []
    for averages_gradients in (True, False):
        workers, _ = small_workers(2, 2, has_flush=True, averages_gradients=averages_gradients)
        followed(workers, groups=groups)
        means.append(flat(workers.mean()[1]))
    assert torch.allclose(*means, atol=1e-6)  # momentum is linear, too


def test_pipelines_share_one_budget_and_the_clock_is_the_simulations():
    setting = {"iterations": 3, "num_stages": 2, "num_pipelines": 2, "examples": 2, "delays": "homogeneous"}
    results = {scheme: train(scheme=scheme, **setting) for scheme in ("All-Reduce+Pipe", "HetPipe", "SDPipe")}
    for training in results.values():
        assert training["curve"][-1][1] == 3.0  # mini-batches of a mean pipeline
        assert training["tests"][-1][0] == training["seconds"] == pytest.approx(training["curve"][-1][0])
    workload = workload_of("ResNet-50", 2)
    averaged_s = PAPER.average_s(workload, range(2))
    assert results["All-Reduce+Pipe"]["seconds"] == pytest.approx(3 * (workload.iteration_s + averaged_s))


def test_hetpipe_whose_pipelines_wait_for_each_other_learns_as_all_reduce_and_otherwise_not():
    same, _ = small_workers(2, 2, has_flush=True, averages_gradients=True)
    waiting, stale = (small_workers(2, 2, VirtualServer, has_flush=True, staleness=number)[0] for number in (0, 2))
    groups = [Group(stage, frozenset({0, 1})) for _ in range(4) for stage in range(2)]
    expected = followed(same, groups=groups)
    train, push = [(0, False), (1, False)], [(0, True), (1, True)]
    together = followed(waiting, steps=[*train, *push] * 4)
    assert [loss for *_, loss in together] == pytest.approx([loss for *_, loss in expected], abs=1e-6)
    late = [*train, *train, *push, *train, *push, *train, *push, *push]  # a mini-batch ahead of its pushes
    ahead = followed(stale, steps=late)
    assert max(abs(row[2] - wanted[2]) for row, wanted in zip(ahead, expected, strict=True)) > 1e-3
