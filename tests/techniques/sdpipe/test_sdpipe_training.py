"""Adam with less variance, the rivals on real ranks against their definitions, and the server on virtual ranks."""

import math
import time

import pytest
import torch
import torch.distributed as dist

from workbench.launch import Ranks
from workbench.parallel.replicas import Place
from workbench.techniques.sdpipe import VarianceReducedAdam
from workbench.techniques.sdpipe.cost import pairs
from workbench.techniques.sdpipe.method.optimizer import reduced_by_definition
from workbench.techniques.sdpipe.runtime.rivals import AdPsgd, AllReduce, HetPipe, serve_parameters
from workbench.techniques.sdpipe.virtual import VirtualServer

BETA2 = 0.9


def gradients(num_steps, shape=(3,), seed=0, mean=0.0):
    draw = torch.Generator().manual_seed(seed)
    return [mean + torch.randn(shape, generator=draw) for _ in range(num_steps)]


def adam_steps(drawn, lr=0.1, **options):
    weight = torch.nn.Parameter(torch.ones(drawn[0].shape))
    kind = VarianceReducedAdam if "num_workers" in options else torch.optim.AdamW
    optimizer = kind([weight], lr=lr, betas=(0.8, BETA2), weight_decay=0.1, **options)
    for gradient in drawn:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach(), optimizer.state[weight]


@pytest.mark.parametrize(("drawn", "num_workers"), [(gradients(5), 1), (gradients(1), 8), (gradients(1) * 4, 8)])
def test_with_one_worker_or_gradients_without_variance_it_is_adamw(drawn, num_workers):
    assert torch.allclose(adam_steps(drawn, num_workers=num_workers)[0], adam_steps(drawn)[0])


@pytest.mark.parametrize("lr", [0.0, torch.tensor(0.1)])
def test_a_learning_rate_may_be_zero_or_a_tensor_as_with_adamw(lr):
    assert torch.allclose(adam_steps(gradients(3), lr, num_workers=1)[0], adam_steps(gradients(3), lr)[0])


def test_sparse_gradients_are_refused_by_name():
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="gradient is torch.sparse_coo; it must be dense, as with sparse=False"):
        VarianceReducedAdam(table.parameters(), num_workers=2).step()


def test_second_moments_by_hand():
    # gradients 1 and 3: v = (0.09 + 0.9) / 0.19 = 5.2105, m = (0.09 + 0.3) / 0.19 = 2.0526, variance 0.9972
    second_moment = reduced_by_definition([torch.tensor(1.0), torch.tensor(3.0)], BETA2, 2)
    assert second_moment.item() == pytest.approx(2.052632**2 + 0.997230 / 2, rel=1e-5)


def test_the_optimizer_keeps_the_second_moments_of_the_definition():
    drawn = gradients(7, seed=3)
    _, state = adam_steps(drawn, num_workers=4)
    mean, square = (state[name] / (1 - BETA2**7) for name in ("mean", "square"))
    second = mean**2 + (square - mean**2).clamp(min=0) / 4
    assert torch.allclose(second, reduced_by_definition(drawn, BETA2, 4), atol=1e-6)


@pytest.fixture(scope="module")
def ranks():
    with Ranks(5, echo=False, preload=[__name__]) as pool:
        yield pool


def model_of(value):
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.constant_(model.weight, value)
    return model


def step(worker, model, gradient):
    """Do plain SGD with rate 1."""
    model.weight.grad = torch.full_like(model.weight, gradient)
    worker.before_update()
    with torch.no_grad():
        model.weight -= model.weight.grad
    worker.after_update()


def by_exchange(kind, num_steps):
    group, weights, rank = dist.new_group([0, 1, 2, 3]), [], dist.get_rank()
    if rank == 4:
        return None
    place = Place(stage=0, pipeline=rank, num_stages=1, num_pipelines=4)
    model = model_of(0.0 if kind == "all" else float(rank))
    worker = AllReduce(model, place, group) if kind == "all" else AdPsgd(model, place, group, seed=2)
    for _ in range(num_steps):
        step(worker, model, float(rank))
        weights.append(model.weight[0, 0].item())
    worker.close()
    return weights


def test_all_reduce_takes_the_mean_gradient(ranks):
    assert ranks.run(by_exchange, "all", 2)[:4] == [[-1.5, -3.0]] * 4


def test_ad_psgd_averages_the_drawn_pairs(ranks):
    results, models = ranks.run(by_exchange, "pairs", 5)[:4], [float(worker) for worker in range(4)]
    for iteration in range(5):
        models = [model - worker for worker, model in enumerate(models)]
        for pair in pairs(4, iteration, 2):
            mean = sum(models[worker] for worker in pair) / len(pair)
            models = [mean if worker in pair else model for worker, model in enumerate(models)]
        assert [weights[iteration] for weights in results] == pytest.approx(models)


def by_server(num_steps, staleness, slow=None, first_s=0.0, push_every=1):
    """Return a worker's weight after each step and in the end, its pushes, and when steps end; the server's models."""
    rank = dist.get_rank()
    if rank == 4:
        models = [torch.zeros(2), torch.zeros(2)]
        serve_parameters(models, 2, staleness)
        return [model[0].item() for model in models]
    place = Place(stage=rank % 2, pipeline=rank // 2, num_stages=2, num_pipelines=2)
    model, weights, ends_s = model_of(0.0), [], []
    worker = HetPipe(model, place, server=4, staleness=staleness, push_every=push_every)
    began_s = time.monotonic()
    time.sleep(first_s if place.pipeline == slow else 0.0)
    for _ in range(num_steps):
        time.sleep(0.02 if place.pipeline == slow else 0.0)
        step(worker, model, 1.0 + place.pipeline)
        weights.append(model.weight[0, 0].item())
        ends_s.append(time.monotonic() - began_s)
    pushes = worker.close()["num_signals"]
    return weights, model.weight[0, 0].item(), pushes, ends_s


def test_without_staleness_a_server_adds_up_all_updates_of_an_iteration(ranks):
    *workers, models = ranks.run(by_server, 3, 0)
    assert models == [-4.5, -4.5]
    for weights, last, pushes, _ in workers:
        assert weights == pytest.approx([-1.5, -3.0, -4.5]) and last == -4.5 and pushes == 3


def test_with_staleness_no_update_is_lost_and_the_models_end_as_the_servers(ranks):
    *workers, models = ranks.run(by_server, 8, 2, 1)
    assert models == pytest.approx([-12.0, -12.0])
    for _, last, *_ in workers:
        assert math.isclose(last, -12.0, abs_tol=3.0)  # the other's last updates may come after its own last pull


def test_a_push_of_several_mini_batches_holds_all_their_updates_and_the_last_one_what_is_left(ranks):
    *workers, models = ranks.run(by_server, 5, 2, None, 0.0, 2)
    assert models == pytest.approx([-7.5, -7.5]) and [pushes for _, _, pushes, _ in workers] == [3] * 4
    for weights, *_ in workers[:2]:  # of the first pipeline, whose own updates are -0.5
        assert weights[0] == -0.5


def test_a_worker_goes_on_while_it_is_s_pushes_ahead_and_counts_its_own_updates_once(ranks):
    workers = ranks.run(by_server, 6, 3, 1, 3.0)[:4]
    for weights, *_, ends_s in workers[:2]:  # of the first pipeline; the other one sleeps for three seconds
        assert sum(end_s < 2.9 for end_s in ends_s) == 3
        assert weights[:3] == [-0.5, -1.0, -1.5]


def server(staleness):
    """Give a server of one weight, 0 at first, with the gradient 1 + pipeline."""
    return VirtualServer(
        [model_of(0.0)],
        2,
        lambda part: torch.optim.SGD(part.parameters(), lr=1.0),
        lambda pipeline, _: (torch.full((1, 2), 1.0 + pipeline), torch.zeros(1)),
        lambda output, _: output.sum(),
        has_flush=True,
        staleness=staleness,
    )


def weights_of(workers, steps):
    """Return each pipeline's weight after each of its mini-batches."""
    weights = {0: [], 1: []}
    for pipeline, is_push in steps:
        if is_push:
            workers.push_(pipeline)
        else:
            workers.train_(pipeline)
            weights[pipeline].append(workers.pipelines[pipeline][0].weights[0][0, 0].item())
    return weights


def test_the_virtual_server_gives_the_models_of_the_real_one(ranks):
    # Without staleness each mini-batch begins when both pushes of the one before have arrived.
    together = ranks.run(by_server, 3, 0)
    virtual = weights_of(server(0), 4 * [(0, False), (1, False), (0, True), (1, True)])
    for pipeline in range(2):
        real = together[2 * pipeline][0]  # after the answer, which the virtual pipeline takes in at its next mini-batch
        assert [weight + 0.5 * (1 + pipeline) for weight in virtual[pipeline][1:]] == pytest.approx(real)
    # Pipeline 1 is late: pipeline 0 does three mini-batches with its own updates alone, as on real ranks above.
    assert weights_of(server(3), [(0, False), (0, True)] * 3)[0] == pytest.approx([-0.5, -1.0, -1.5])


def test_a_pipeline_adds_its_newer_updates_to_the_model_that_it_takes_in():
    # Pipeline 0 has pushed its first update, -0.5, when pipeline 1's -1.0 has arrived: the answer to it holds -0.5;
    # its own second update, under way, is added once.
    steps = [(0, False), (1, False), (0, False), (1, True), (0, True), (0, False)]
    assert weights_of(server(2), steps)[0] == [-0.5, -1.0, -2.5]
