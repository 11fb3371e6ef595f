"""The rivals on real ranks: All-Reduce+Pipe, AD-PSGD+Pipe, and HetPipe with a parameter server on an extra rank.

Every worker calls `before_update` and `after_update` around the optimizer's step, and `close` at the end.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _get_default_group

from workbench.checks import require_counts
from workbench.parallel.replicas import Place
from workbench.techniques.sdpipe.cost import pairs
from workbench.techniques.sdpipe.method.scheduler import Group

from .averaging import Log, SDPipe

__all__ = ["AdPsgd", "AllReduce", "HetPipe", "SDPipeWorker", "Worker", "serve_parameters"]

HEAD, PUSH, PULL = 10, 11, 12  # message tags
END = -1.0  # clock value of a worker's last message


class Worker:
    """The interface of a scheme on one worker."""

    log: Log

    def before_update(self) -> None:
        """Run after the backward pass."""

    def after_update(self) -> None:
        """Run after the optimizer's step."""

    def close(self) -> dict[str, int]:
        """Free all resources; every worker calls it."""
        return {}


class _Flat:
    """The trained parameters of a module as one vector."""

    def __init__(self, module: nn.Module):
        self._weights = [weight for weight in module.parameters() if weight.requires_grad]
        self._sizes = [weight.numel() for weight in self._weights]

    def read(self) -> Tensor:
        return torch.cat([weight.detach().flatten() for weight in self._weights])

    def gradient(self) -> Tensor:
        gradients = [weight.grad.flatten() for weight in self._weights if weight.grad is not None]
        if len(gradients) < len(self._weights):
            raise ValueError("a trained parameter has no gradient; the scheme adds up the gradients of all")
        return torch.cat(gradients)

    @torch.no_grad()
    def write(self, flat: Tensor, *, gradients: bool = False) -> None:
        for weight, part in zip(self._weights, flat.split(self._sizes), strict=True):
            target = weight.grad if gradients else weight
            assert target is not None
            target.copy_(part.view_as(weight))


class SDPipeWorker(Worker):
    """SDPipe behind the interface of its rivals."""

    def __init__(self, sdpipe: SDPipe):
        self._sdpipe, self.log = sdpipe, sdpipe.log

    def before_update(self) -> None:
        """Report to the scheduler."""
        self._sdpipe.ready()

    def after_update(self) -> None:
        """Average the model among the group's members."""
        self._sdpipe.average_()

    def close(self) -> dict[str, int]:
        """Give all workers their mean."""
        return self._sdpipe.close()


class AllReduce(Worker):
    """Averages gradients over all workers of the stage before each update."""

    def __init__(self, module: nn.Module, place: Place, group: dist.ProcessGroup):
        self._flat, self._place, self._group, self.log = _Flat(module), place, group, Log()

    def before_update(self) -> None:
        """Replace this worker's gradient by the mean gradient."""
        began_s, flat = time.monotonic(), self._flat.gradient()
        dist.all_reduce(flat, group=self._group)
        self._flat.write(flat / self._place.num_pipelines, gradients=True)
        self.log.averaged_s += time.monotonic() - began_s
        self.log.groups.append(Group(self._place.stage, frozenset(range(self._place.num_pipelines))))


class AdPsgd(Worker):
    """Averages its model with one other worker after each update; see `cost.pairs`."""

    def __init__(self, module: nn.Module, place: Place, group: dist.ProcessGroup, seed: int = 0):
        self._flat, self._place, self._group, self.log = _Flat(module), place, group, Log()
        self._iteration, self._seed = 0, seed

    def after_update(self) -> None:
        """Exchange models with this iteration's partner; both workers keep the mean."""
        began_s, own = time.monotonic(), self._place.pipeline
        (pair,) = (p for p in pairs(self._place.num_pipelines, self._iteration, self._seed) if own in p)
        self._iteration += 1
        if len(pair) == 2:
            partner, flat = sum(pair) - own, self._flat.read()
            other = torch.empty_like(flat)
            sending = self._group.send([flat], partner, 0)
            dist.recv(other, group_src=partner, group=self._group)
            sending.wait()
            self._flat.write((flat + other) / 2)
        self.log.averaged_s += time.monotonic() - began_s
        self.log.groups.append(Group(self._place.stage, frozenset(pair)))


class HetPipe(Worker):
    """Pushes its updates to the server and continues with a local model, at most s pushes ahead of the slowest worker.

    A pull overlaps with the next mini-batch. The worker adds its newer updates to the model that it pulls. Updates are
    divided by the number of pipelines, so that together they make one mean step.

    Args:
        module: this worker's stage.
        place: this worker's stage and pipeline.
        server: rank of the server, which runs `serve_parameters`.
        staleness: s of SSP; 0 behaves like all-reduce.
        push_every: mini-batches from push to push.
    """

    def __init__(self, module: nn.Module, place: Place, *, server: int, staleness: int, push_every: int = 1):
        require_counts(0, staleness=staleness)
        require_counts(1, push_every=push_every)
        self._flat, self._place, self._server = _Flat(module), place, server
        self._everyone = _get_default_group()
        self.log, self._before, self._push_every = Log(), self._flat.read(), push_every
        self._unpushed = torch.zeros_like(self._before)  # updates since the last push
        self._num_unpushed = 0
        self._most_under_way = _overlapped(staleness)
        self._under_way: deque[tuple[int, Tensor, Tensor, list[dist.Work], Future]] = deque()  # clock, update, answer
        self._waiter = ThreadPoolExecutor(1)  # only a waiting thread sees that a pull has arrived
        self._clock = 0

    def before_update(self) -> None:
        """Store the model."""
        self._before = self._flat.read()

    def after_update(self) -> None:
        """Push the updates if it is time, then load the models that have arrived or that the bound requires."""
        update = (self._flat.read() - self._before) / self._place.num_pipelines
        self._flat.write(self._before + update)  # scaled as on the server
        self._unpushed += update
        self._num_unpushed += 1
        if self._num_unpushed == self._push_every:
            self._push()
        began_s = time.monotonic()
        while self._under_way and (len(self._under_way) > self._most_under_way or self._under_way[0][-1].done()):
            self._take_in()
        self.log.waited_s += time.monotonic() - began_s

    def _push(self) -> None:
        self._clock += 1
        update = self._unpushed
        answer = torch.empty(1 + update.numel())
        head = torch.tensor([float(self._clock)])
        pushes = [self._everyone.send([head], self._server, HEAD), self._everyone.send([update], self._server, PUSH)]
        pull = self._waiter.submit(self._everyone.recv([answer], self._server, PULL).wait)
        self._under_way.append((self._clock, update, answer, pushes, pull))
        self._unpushed, self._num_unpushed = torch.zeros_like(update), 0

    def _take_in(self) -> None:
        _, _, answer, pushes, pull = self._under_way.popleft()
        for push in pushes:
            push.wait()
        pull.result()
        held, model = answer[0].item(), answer[1:] + self._unpushed
        for clock, update, *_ in self._under_way:
            if clock > held:
                model += update
        self._flat.write(model)

    def close(self) -> dict[str, int]:
        """Push what is left, finish all pulls, and tell the server that this worker has ended."""
        if self._num_unpushed:
            self._push()
        while self._under_way:
            self._take_in()
        self._everyone.send([torch.tensor([END])], self._server, HEAD).wait()
        self._waiter.shutdown()
        return {"num_signals": self._clock}


def _overlapped(staleness: int) -> int:
    """Return how many of the s pushes may be unanswered at the worker; the server applies the rest of the bound."""
    return min(1, staleness)


def serve_parameters(models: Sequence[Tensor], num_pipelines: int, staleness: int) -> int:
    """Add the updates of all workers until all have ended; return the number of pushes.

    The server answers a push once it is within the bound of the slowest worker of its stage. The answer holds the model
    and the clock of the worker's last push in it.

    Args:
        models: the flat model of each stage, changed in place. Workers are the first ranks, in order of pipelines, and
            of stages in each pipeline.
        num_pipelines: N.
        staleness: s.
    """
    everyone = _get_default_group()
    num_stages, num_pushes, ahead = len(models), 0, staleness - _overlapped(staleness)
    clocks = dict.fromkeys(range(num_stages * num_pipelines), 0.0)
    head, updates = torch.empty(1), [torch.empty_like(model) for model in models]
    unanswered: list[tuple[int, float]] = []  # rank and clock of each push, in order of arrival
    answers: dict[int, deque[tuple[Tensor, dist.Work]]] = {rank: deque() for rank in clocks}
    while min(clocks.values()) < math.inf:
        sender = dist.recv(head, tag=HEAD)
        clock, model, update = head.item(), models[sender % num_stages], updates[sender % num_stages]
        if clock == END:
            clocks[sender] = math.inf
        else:
            dist.recv(update, src=sender, tag=PUSH)
            clocks[sender], num_pushes = clock, num_pushes + 1
            model += update
            unanswered.append((sender, clock))
        for push in list(unanswered):
            rank, clock = push
            slowest = min(clocks[other] for other in range(rank % num_stages, len(clocks), num_stages))
            if clock - slowest > ahead:
                continue
            unanswered.remove(push)
            answer = torch.cat([torch.tensor([clocks[rank]]), models[rank % num_stages]])
            answers[rank].append((answer, everyone.send([answer], rank, PULL)))
            if len(answers[rank]) > 1 + _overlapped(staleness):  # the worker has the first, or it would not have pushed
                answers[rank].popleft()[1].wait()
    for _, work in (sent for of_rank in answers.values() for sent in of_rank):
        work.wait()
    return num_pushes
