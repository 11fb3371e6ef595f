"""The rivals on real ranks: All-Reduce+Pipe, AD-PSGD+Pipe, and HetPipe with a parameter server on an extra rank.

Every worker calls `before_update` and `after_update` around the optimizer's step, and `close` at the end. All weights
are trained.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _get_default_group
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from workbench.parallel.replicas import Place
from workbench.techniques.sdpipe.cost import pairs
from workbench.techniques.sdpipe.method.scheduler import Group

from .averaging import Log

__all__ = ["AdPsgd", "AllReduce", "HetPipe", "Worker", "serve_parameters"]

HEAD, PUSH, PULL = 10, 11, 12  # message tags
END = -1.0  # clock value of a worker's last message


class Worker(Protocol):
    """The interface of a scheme on one worker; `SDPipe` has it, too."""

    log: Log

    def before_update(self) -> object:
        """Run after the backward pass."""
        return None

    def after_update(self) -> object:
        """Run after the optimizer's step."""
        return None

    def close(self) -> dict[str, int]:
        """Free all resources; every worker calls it."""
        return {}


class AllReduce(Worker):
    """Averages gradients over all workers of the stage before each update."""

    def __init__(self, module: nn.Module, place: Place, group: dist.ProcessGroup):
        self._weights, self._place, self._group, self.log = [*module.parameters()], place, group, Log()

    def before_update(self) -> None:
        """Replace this worker's gradient by the mean gradient."""
        began_s = time.monotonic()
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        if len(gradients) < len(self._weights):
            raise ValueError("a weight has no gradient; All-Reduce adds up the gradients of all")
        flat = parameters_to_vector(gradients)
        dist.all_reduce(flat, group=self._group)
        vector_to_parameters(flat / self._place.num_pipelines, gradients)
        self.log.averaged_s += time.monotonic() - began_s
        self.log.groups.append(Group(self._place.stage, frozenset(range(self._place.num_pipelines))))


class AdPsgd(Worker):
    """Averages its model with one other worker after each update; see `cost.pairs`."""

    def __init__(self, module: nn.Module, place: Place, group: dist.ProcessGroup, seed: int = 0):
        self._weights, self._place, self._group, self.log = [*module.parameters()], place, group, Log()
        self._iteration, self._seed = 0, seed

    def after_update(self) -> None:
        """Exchange models with this iteration's partner; both workers keep the mean."""
        began_s, pipeline = time.monotonic(), self._place.pipeline
        (pair,) = (p for p in pairs(self._place.num_pipelines, self._iteration, self._seed) if pipeline in p)
        self._iteration += 1
        if len(pair) == 2:
            partner, flat = sum(pair) - pipeline, parameters_to_vector(self._weights).detach()
            other = torch.empty_like(flat)
            sending = self._group.send([flat], partner, 0)
            dist.recv(other, group_src=partner, group=self._group)
            sending.wait()
            vector_to_parameters((flat + other) / 2, self._weights)
        self.log.averaged_s += time.monotonic() - began_s
        self.log.groups.append(Group(self._place.stage, frozenset(pair)))


class HetPipe(Worker):
    """Pushes its updates to the server and continues with a local model, at most s pushes ahead of the slowest worker.

    A pull overlaps with the next mini-batch. The worker adds its newer updates to the model that it pulls. Updates are
    divided by the number of pipelines, so that together they make one mean step.

    Args:
        module, place: this worker's stage, and where it is.
        server: rank of the server, which runs `serve_parameters`.
        staleness: s of SSP; 0 behaves like all-reduce.
        push_every: mini-batches from push to push.
    """

    def __init__(self, module: nn.Module, place: Place, *, server: int, staleness: int, push_every: int = 1):
        self._weights, self._place, self._server = [*module.parameters()], place, server
        self._everyone = _get_default_group()
        self.log, self._before, self._push_every = Log(), parameters_to_vector(self._weights).detach(), push_every
        self._unpushed = torch.zeros_like(self._before)  # updates since the last push
        self._num_unpushed = 0
        self._most_under_way = min(1, staleness)  # unanswered pushes; the server applies the rest of the bound
        self._under_way: deque[tuple[int, Tensor, Tensor, Future]] = deque()  # clock, update, answer
        self._waiter = ThreadPoolExecutor(1)  # only a waiting thread sees that a pull has arrived
        self._clock = 0

    def before_update(self) -> None:
        """Store the model."""
        self._before = parameters_to_vector(self._weights).detach()

    def after_update(self) -> None:
        """Push the updates if it is time, then load the models that have arrived or that the bound requires."""
        update = (parameters_to_vector(self._weights).detach() - self._before) / self._place.num_pipelines
        vector_to_parameters(self._before + update, self._weights)  # scaled as on the server
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
        works = [
            self._everyone.send([torch.tensor([float(self._clock)])], self._server, HEAD),
            self._everyone.send([update], self._server, PUSH),
            self._everyone.recv([answer], self._server, PULL),
        ]
        pull = self._waiter.submit(lambda: [work.wait() for work in works])
        self._under_way.append((self._clock, update, answer, pull))
        self._unpushed, self._num_unpushed = torch.zeros_like(update), 0

    def _take_in(self) -> None:
        _, _, answer, pull = self._under_way.popleft()
        pull.result()
        held, model = answer[0].item(), answer[1:] + self._unpushed
        for clock, update, *_ in self._under_way:
            if clock > held:
                model += update
        vector_to_parameters(model, self._weights)

    def close(self) -> dict[str, int]:
        """Push what is left, finish all pulls, and tell the server that this worker has ended."""
        if self._num_unpushed:
            self._push()
        while self._under_way:
            self._take_in()
        self._everyone.send([torch.tensor([END])], self._server, HEAD).wait()
        self._waiter.shutdown()
        return {"num_signals": self._clock}


def serve_parameters(models: Sequence[Tensor], num_pipelines: int, staleness: int) -> None:
    """Add the updates of all workers until all have ended.

    The server answers a push once it is within the bound of the slowest worker of its stage. The answer holds the model
    and the clock of the worker's last push in it.

    Args:
        models: the flat model of each stage, changed in place. Workers are the first ranks, in order of pipelines, and
            of stages in each pipeline.
        num_pipelines: N.
        staleness: s.
    """
    everyone = _get_default_group()
    num_stages, overlapped = len(models), min(1, staleness)  # as `HetPipe` has it
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
            clocks[sender] = clock
            model += update
            unanswered.append((sender, clock))
        for push in list(unanswered):
            rank, clock = push
            slowest = min(clocks[other] for other in range(rank % num_stages, len(clocks), num_stages))
            if clock - slowest > staleness - overlapped:
                continue
            unanswered.remove(push)
            answer = torch.cat([torch.tensor([clocks[rank]]), models[rank % num_stages]])
            answers[rank].append((answer, everyone.send([answer], rank, PULL)))
            if len(answers[rank]) > 1 + overlapped:  # the worker has the first, or it would not have pushed
                answers[rank].popleft()[1].wait()
    for _, work in chain(*answers.values()):
        work.wait()
