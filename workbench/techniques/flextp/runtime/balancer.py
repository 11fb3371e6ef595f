"""Balancing a model's ranks while it is trained: algorithms 1 and 2.

Ranks hand their times to all others while they fetch the next batch; rank 0 makes the plan for all, and only a sender
says which of its columns migrate. Reentrant checkpointing is refused: its forward pass records no gradients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from workbench.parallel import ColumnParallelLinear, ProcessTensorGroup, TensorGroup, VirtualTensorGroup
from workbench.parallel.gradients import mark_shard_
from workbench.parallel.groups import both
from workbench.parallel.linear import ShardedLinear
from workbench.parallel.moves import Shape, moves_of
from workbench.timeline.stragglers import StragglerTrace

from ..method.costs import Costs
from ..method.plan import Plan, RankTimes, Solution
from ..method.planners import Reference, have_moved
from ..method.resizing import Buffers, Lineage, num_dropped_columns
from .delivery import delivery_of
from .division import ColumnChooser, Columns, Division, divide
from .meter import MeasuredTimes, Meter, ModelledTimes, Times
from .policy import Planner, Policy, check_policy, needs_costs, planner_of
from .pre_test import measure_costs
from .products import Cut, FlexibleProduct
from .state import State, Step, costs_from_record, costs_record

if TYPE_CHECKING:
    from .torch_linears import TorchLinear

__all__ = ["PATIENCE", "Balancer", "Step", "balance", "check_model"]

PATIENCE = 8  # iterations; on shared cores times stray by a tenth for two in a row every few dozen
PRE_TEST_AFTER = 2  # iterations: the first one opens connections and fills caches


def balance(
    model: nn.Module,
    group: TensorGroup | dist.ProcessGroup | DeviceMesh,
    *,
    policy: Policy | None = None,
    costs: Costs | None = None,
    trace: StragglerTrace | None = None,
    slowness: float = 1.0,
    modelled: ModelledTimes | None = None,
) -> Balancer:
    """Let the ranks of a tensor-parallel model help their stragglers.

    Wrap each training step in `with balancer.iteration():`; evaluation needs nothing. Balance a model once it is on its
    device and loaded; a training that resumes then loads what `balancer.state_dict()` gave on the same rank.

    Args:
        model: any model with the workbench's parallel linears, or with linears that torch's `parallelize_module` has
            cut; their matrix products are replaced.
        group: its ranks: a tensor group, real or virtual, torch's own process group, or a mesh of one axis.
        policy: how to balance; by default SEMI-migration that levels all ranks, with a patience of eight iterations for
            machines that are shared; `Policy()` is the paper's.
        costs: of migration; by default measured in a pre-test once the first times are known, for which training
            halts for as long as some 35 iterations of one layer of every kind.
        trace: makes stragglers of ranks, by sleeping after their products.
        slowness: how many times slower than this machine all ranks' products are, by sleeping (see `Meter`).
        modelled: times to plan from in place of measured ones; virtual ranks, which share a process, need them.
    """
    policy = Policy(refine=True, patience=PATIENCE) if policy is None else policy
    group = _tensor_group(model, group)
    check_policy(policy, group.size)
    for given in (trace, None if modelled is None else modelled.trace):
        if given is not None and given.num_ranks != group.size:
            raise ValueError(f"trace is of {given.num_ranks} ranks; it must be of the group's {group.size}")
    if trace is not None and modelled is not None:
        raise ValueError("trace is given; it must be None where `modelled` is given, which has a trace of its own")
    if isinstance(group, ProcessTensorGroup):
        (rank,) = group.local_ranks
        meter = Meter(rank, trace, slowness=slowness, device=next(model.parameters()).device)
        times = MeasuredTimes(meter) if modelled is None else modelled
        return Balancer(model, group, policy, times=times, costs=costs, meters={rank: meter})
    if modelled is None:
        raise ValueError("modelled is None; it must be given for virtual ranks, which have no times of their own")
    if costs is None and needs_costs(policy):
        raise ValueError("costs is None; it must be given for virtual ranks, which have no messages to test")
    if slowness != 1:
        raise ValueError(f"slowness is {slowness}; it must be 1 for virtual ranks, which cannot sleep for one another")
    return Balancer(model, group, policy, times=modelled, costs=costs)


def check_model(build: Callable[[TensorGroup], nn.Module], num_ranks: int) -> None:
    """Refuse, before any rank starts, a model without parallel linears, or with some of another group.

    `build` makes the model of a group's ranks. It is called once, with virtual ranks of this process, so that this
    takes the memory of the whole model for a moment.
    """
    group = VirtualTensorGroup(num_ranks)
    _parallel_linears(build(group), group)


class Balancer:
    """Keeps the ranks of a model in balance; `balance` makes one and documents the arguments.

    Without costs that the policy needs, a pre-test measures them after the second iteration, or the last of the
    policy's patience, and nothing is planned before. On every rank ValueError refuses ranks that were given different
    policies, costs or layers.
    """

    def __init__(
        self,
        model: nn.Module,
        group: TensorGroup,
        policy: Policy,
        *,
        times: Times,
        costs: Costs | None = None,
        meters: Mapping[int, Meter] | None = None,
    ):
        self.group, self.policy, self.costs, self.lineage = group, policy, costs, Lineage()
        self._layers = _parallel_linears(model, group)
        self._device = next(iter(self._layers.values())).weights[0].device
        self._times, self._moves, self._is_inside = times, moves_of(group), False
        self._check_equal_on_all_ranks()
        self._is_corrected = needs_costs(policy) and not times.is_proportional
        self._plan_by(costs)
        self._choosers = {
            rank: ColumnChooser(weights, policy, rank) for rank, weights in self._weights_by_rank().items()
        }
        delivery = delivery_of(policy.scheme, group)
        options = {"delivery": delivery, "imputation": policy.imputation, "meters": meters, "buffers": Buffers()}
        self._products = [FlexibleProduct(group, _cut(one), one.site, **options) for one in self._layers.values()]
        for layer, product in zip(self._layers.values(), self._products, strict=True):
            layer.matrix_product = product
        if len(group.local_ranks) == 1:
            for parameter in _cut_parameters(self._layers.values()):
                mark_shard_(parameter, group, counts=True)
        self._undo: list[Callable[[], None]] = []
        for meter in (meters or {}).values():
            if meter.is_wall_clock:
                self._undo.append(partial(setattr, group, "watch", group.watch))
                group.watch = both(group.watch, meter.waiting)
        self._state = State(plan=policy.plan or Plan.plain(group.size))
        self._divisions = self._divided()

    @property
    def plan(self) -> Plan:
        """The plan at the moment."""
        return self._state.plan

    @property
    def steps(self) -> tuple[Step, ...]:
        """All plans that were made, in their order; the last `STEPS_KEPT` of them."""
        return tuple(self._state.steps)

    @property
    def dropped_share(self) -> float:
        """Share of the local ranks' products that nobody computed in the last iteration; layers differ in theirs."""
        shares = [self._weighted(partial(Division.dropped, rank=rank), 0.0) for rank in self.group.local_ranks]
        return sum(shares) / len(shares)

    @property
    def num_iterations(self) -> int:
        """Iterations that have ended."""
        return self._state.iteration

    def remove(self) -> None:
        """Give the model its plain products back; every rank of the group calls it, before the group is destroyed."""
        if self._state.pending is not None:
            self._state.pending.wait()
            self._state.pending = None
        for layer in self._layers.values():
            layer.matrix_product = functional.linear
        while self._undo:
            self._undo.pop()()

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Balance the forward and backward passes inside; every rank of the group enters it.

        Products are balanced wherever gradients are recorded, so that an evaluation belongs outside, or under
        `torch.no_grad`. RuntimeError inside of another iteration, after `remove`, or if the model has moved to another
        device since it was balanced.
        """
        self._check_ready()
        self._prepare()
        self._is_inside = True
        for rank in self.group.local_ranks:
            self._times.begin(rank, self._state.iteration)
        for product, division in zip(self._products, self._divisions, strict=True):
            product.division, product.has_multiplied = division, False
        try:
            yield
        finally:
            self._is_inside = False
            for product in self._products:
                product.division = None
        self._finish()

    def rescale_(self, factor: float) -> None:
        """Multiply what `Imputation.SAME` remembers of gradients, as when the loss's scale changes by a factor."""
        for gradient in (gradient for product in self._products for gradient in product.previous.values()):
            gradient.mul_(factor)

    def state_dict(self) -> dict[str, Any]:
        """Return all that this rank has measured, planned and drawn: plain values, and tensors that are its own.

        Every rank saves its own, with its part of the model, between two iterations.
        """
        self._check_ready()
        return {
            "made_for": self._made_for(),
            "state": self._state.as_record(),
            "costs": costs_record(self.costs),
            "choosers": {str(rank): chooser.state_dict() for rank, chooser in self._choosers.items()},
            "products": [product.state_dict() for product in self._products],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as the balancer of a state would have; every rank of the group calls it, with its own state.

        ValueError on all ranks, before anything is changed, if a state is of another model, policy, rank or iteration.
        """
        self._check_ready()
        self._check_fits(state)
        self._state = State.from_record(state["state"])
        if state["costs"] is not None:
            self._plan_by(costs_from_record(state["costs"]))
        for rank, chooser in self._choosers.items():
            chooser.load_state_dict(state["choosers"][str(rank)])
        for product, of_product in zip(self._products, state["products"], strict=True):
            product.load_state_dict(of_product)
        if self._state.is_chosen:
            self._divisions = self._divided()  # nothing is drawn for it

    def _made_for(self) -> dict[str, object]:
        """Return what must be as it was where a state is loaded."""
        facts = {"policy": str(self.policy), "layers": str(self._layer_facts())}
        return facts | {"num_ranks": self.group.size, "ranks": list(self.group.local_ranks)}

    def _check_fits(self, state: Mapping[str, Any]) -> None:
        own, given = self._made_for(), state["made_for"]
        errors = [
            f"{name}: {value} here, {given.get(name)} there" for name, value in own.items() if value != given.get(name)
        ]
        iteration = torch.tensor([-1 if errors else state["state"]["iteration"]], device=self._device)
        with self.group.traffic.at("flextp.state"):
            iterations = self._moves.gather([iteration for _ in self.group.local_ranks]).wait().flatten().tolist()
        if errors:
            raise ValueError(f"state is of another balancer: {'; '.join(errors)}")
        if min(iterations) < 0:
            raise ValueError(f"state of rank {iterations.index(-1)} is of another balancer, which that rank says")
        if len(set(iterations)) > 1:
            raise ValueError(f"state is of iterations {iterations} by rank; all must be saved after the same iteration")

    def _plan_by(self, costs: Costs | None) -> None:
        """Plan by costs; without those that the policy needs, not before a pre-test has measured them."""
        waits = self.group.size > 1 and costs is None and needs_costs(self.policy)  # one rank has nobody to help it
        self.costs = costs
        self._planner: Planner | None = None if waits else planner_of(self.policy, self.group.size, costs)

    def _check_ready(self) -> None:
        if self._is_inside:
            raise RuntimeError("iteration: the one before has not ended; each wraps one training step")
        layers = list(self._layers.values())
        if any(layer.matrix_product is not product for layer, product in zip(layers, self._products, strict=True)):
            raise RuntimeError("iteration: the model is not balanced any more; call `balance` anew after `remove`")
        _check_whole(self._layers)
        device = layers[0].weights[0].device
        if device != self._device:
            moved = f"the model has moved from {self._device} to {device} since it was balanced"
            raise RuntimeError(f"iteration: {moved}; balance it after moving it")

    def _prepare(self) -> None:
        """Plan anew if a time has moved, and choose columns anew if the plan or the epoch has changed."""
        state = self._state
        pending, state.pending = state.pending, None  # considered once, even if the next iteration is broken off
        if pending is not None and self.policy.solution not in (Solution.BASELINE, Solution.GIVEN):
            self._consider(pending.wait().transpose(0, 1).tolist())
        if not state.is_chosen:
            self._divisions, state.is_chosen = self._divided(), True

    def _consider(self, iterations: Sequence[Sequence[Sequence[float]]]) -> None:
        """Plan anew if the times of some iterations, by iteration and rank, say that a rank's have moved."""
        state = self._state
        measured = [tuple(RankTimes(own_s=o, product_s=p, work=w) for o, p, w in ranks) for ranks in iterations]
        measured = [times for times in measured if all(rank.product_s and rank.work for rank in times)]
        if not measured:
            return  # batches were skipped
        if self._planner is None:
            if state.iteration < PRE_TEST_AFTER:
                return
            self._run_pre_test([self._middle(rank, measured) for rank in range(self.group.size)])
        if self.costs is not None and self._is_corrected:
            measured = [tuple(map(self.costs.proportional, times)) for times in measured]
        state.recent = [*state.recent, *measured][-self.policy.patience :]
        if len(state.recent) < self.policy.patience:
            return
        times = tuple(self._middle(rank, state.recent) for rank in range(self.group.size))
        # Only against the current mean does the plan itself move what matters.
        reference = self.policy.reference if self.policy.solution is Solution.ZERO else Reference.MIN
        before = state.planned_from
        if before is not None and not have_moved(times, before, self.policy.threshold, reference=reference):
            return
        plan, state.planned_from = self._agreed(times), times
        if state.steps and plan.is_near(state.plan):
            return
        state.steps.append(Step(iteration=state.iteration, times=times, plan=plan))
        state.plan, state.is_chosen, state.recent = plan, plan.is_plain and state.plan.is_plain, []

    def _run_pre_test(self, times: Sequence[RankTimes]) -> None:
        """Measure costs, and plan by them from now on; messages of the test are entered under a name of their own."""
        messages = self.group.traffic.messages
        num_before = len(messages)
        self._plan_by(measure_costs(list(self._layers.values()), self._products, self.group, times))
        messages[num_before:] = [replace(message, site="flextp.pre_test") for message in messages[num_before:]]

    def _layer_facts(self) -> list[tuple]:
        shards = [(name, _cut(layer), layer.weights[0]) for name, layer in self._layers.items()]
        return [(name, str(cut), tuple(w.shape), str(w.dtype), w.requires_grad) for name, cut, w in shards]

    def _check_equal_on_all_ranks(self) -> None:
        """Refuse ranks that would plan differently, or divide different layers: they would wait for ever."""
        settings = f"{self.policy} {self.costs} {self._layer_facts()}".encode()
        digest = torch.frombuffer(bytearray(hashlib.sha256(settings).digest()), dtype=torch.uint8).to(self._device)
        with self.group.traffic.at("flextp.policy"):
            digests = self._moves.gather([digest for _ in self.group.local_ranks]).wait()
        others = [rank for rank in range(self.group.size) if not torch.equal(digests[rank], digests[0])]
        if others:
            raise ValueError(f"policy of rank {others[0]} differs; policy, costs and layers must be those of rank 0")

    def _middle(self, rank: int, iterations: Sequence[Sequence[RankTimes]]) -> RankTimes:
        """Return a rank's median time of some iterations; of two middle ones that most like the one planned from."""
        state = self._state
        recent = sorted((times[rank] for times in iterations), key=lambda times: times.unresized().own_s)
        before_s = 0.0 if state.planned_from is None else state.planned_from[rank].unresized().own_s
        middle = recent[(len(recent) - 1) // 2 : len(recent) // 2 + 1]
        return min(middle, key=lambda times: abs(times.unresized().own_s - before_s))

    def _agreed(self, times: Sequence[RankTimes]) -> Plan:
        """Let rank 0 plan for all: planners search with floats, which two kinds of hosts may round differently."""
        shares = None
        if 0 in self.group.local_ranks:
            ranks = self._planner(times).ranks
            shares = torch.tensor([(rank.dropped, rank.migrated) for rank in ranks], dtype=torch.float64)
        shape = Shape(sizes=(self.group.size, 2), dtype=torch.float64, device=self._device)
        agreed = self._broadcast("flextp.plan", 0, shares, shape)
        return Plan.of_shares(*agreed.t().tolist())

    def _broadcast(self, site: str, source: int, tensor: Tensor | None, shape: Shape) -> Tensor:
        """Hand a rank's tensor to all ranks."""
        held = [tensor.to(self._device) if rank == source else None for rank in self.group.local_ranks]
        with self.group.traffic.at(site):
            return self._moves.broadcast(held, source, shape).wait()

    def _finish(self) -> None:
        """Note the local ranks' times, hand them out if it is time to, and close the epoch if it is over."""
        state = self._state
        measured = [self._times.end(rank, self._work(rank)) for rank in self.group.local_ranks]
        state.unsent.append([(times.own_s, times.product_s, times.work) for times in measured])
        state.iteration += 1
        if len(state.unsent) == self.policy.patience:
            values, state.unsent = torch.tensor(state.unsent, dtype=torch.float64, device=self._device), []
            with self.group.traffic.at("flextp.times"):
                state.pending = self._moves.gather(values.unbind(1))
        if state.iteration % self.policy.iterations_per_epoch == 0:
            for rank, weights in self._weights_by_rank().items():
                self._choosers[rank].close_epoch(weights)
            state.is_chosen = state.plan.is_plain

    def _weights_by_rank(self) -> dict[int, list[Tensor]]:
        """Return the shards of every local rank, layer by layer, as they are now."""
        shards = zip(*(layer.weights for layer in self._layers.values()), strict=True)
        return {rank: list(weights) for rank, weights in zip(self.group.local_ranks, shards, strict=True)}

    def _work(self, rank: int) -> float:
        """Return the columns of its own that a local rank multiplied, as a share of them."""
        if self._state.plan.is_plain:
            return 1.0
        return self._weighted(partial(Division.kept, rank=rank), otherwise=1.0)

    def _weighted(self, share: Callable[[Division], float], otherwise: float) -> float:
        """Average a share of columns over the layers that have multiplied, each by its weight's size."""
        layers = zip(self._layers.values(), self._products, self._divisions, strict=True)
        sizes = [
            (layer.weights[0].numel(), share(division)) for layer, product, division in layers if product.has_multiplied
        ]
        if not sizes:
            return otherwise
        return sum(size * part for size, part in sizes) / sum(size for size, _ in sizes)

    def _divided(self) -> list[Division]:
        """Divide the columns of every layer as the plan says; every rank of the group calls it."""
        plan, divisions = self._state.plan, []
        chosen = {rank: chooser.choose(plan.ranks[rank]) for rank, chooser in self._choosers.items()}
        announced = {sender: self._announced(sender, chosen.get(sender)) for sender in plan.senders}
        for place, (name, layer) in enumerate(self._layers.items()):
            dropped = {rank: columns[place].dropped for rank, columns in chosen.items()}
            for rank, columns in dropped.items():
                for matrix in ("input", "weight"):
                    self.lineage.record_(f"{name}, rank {rank}", matrix, columns)
            migrated = {sender: columns[place] for sender, columns in announced.items() if len(columns[place])}
            num_columns = layer.weights[0].shape[1]
            divisions.append(divide(num_columns, num_ranks=self.group.size, dropped=dropped, migrated=migrated))
        return divisions

    def _announced(self, sender: int, columns: list[Columns] | None) -> Sequence[Tensor]:
        """Broadcast which columns a sender migrates, layer by layer."""
        share = self._state.plan.ranks[sender].migrated
        counts = [num_dropped_columns(share, layer.weights[0].shape[1]) for layer in self._layers.values()]
        migrated = None if columns is None else torch.cat([layer.migrated for layer in columns])
        shape = Shape(sizes=(sum(counts),), dtype=torch.int64, device=self._device)
        return self._broadcast("flextp.columns", sender, migrated, shape).split(counts)


def _cut(layer: ShardedLinear | TorchLinear) -> Cut:
    if not isinstance(layer, ShardedLinear):
        return layer.cut
    return Cut.COLUMN if isinstance(layer, ColumnParallelLinear) else Cut.ROW


def _cut_parameters(layers: Iterable[ShardedLinear | TorchLinear]) -> Iterator[nn.Parameter]:
    """Yield the parameters of which ranks hold different parts as plain tensors; torch knows its own DTensors."""
    for layer in layers:
        if isinstance(layer, ShardedLinear):
            yield from layer.weights
            yield from layer.biases if layer.output_group.size > 1 else ()


def _tensor_group(model: nn.Module, group: TensorGroup | dist.ProcessGroup | DeviceMesh) -> TensorGroup:
    """Return a group of torch as the one that the model's parallel linears have, or as a new one."""
    if isinstance(group, DeviceMesh):
        group = group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        if not isinstance(group, TensorGroup):
            raise ValueError(f"group is {group!r}; it must be a tensor group, or a process group that has this rank")
        return group
    ranks = dist.get_process_group_ranks(group)
    for layer in (module for module in model.modules() if isinstance(module, ShardedLinear)):
        own = getattr(layer, "group", None)
        if isinstance(own, ProcessTensorGroup) and dist.get_process_group_ranks(own.process_group) == ranks:
            return own
    return ProcessTensorGroup(group)


def _check_whole(layers: Mapping[str, ShardedLinear | TorchLinear]) -> None:
    """Refuse shards that fully_shard has cut once more: a rank then holds no whole columns."""
    for name, layer in layers.items():
        if any(hasattr(weight, "placements") for weight in layer.weights):
            rule = "FlexTP takes a model that is tensor-parallel alone, without fully_shard"
            raise ValueError(f"weight of {name} is sharded twice; {rule}")


def _parallel_linears(model: nn.Module, group: TensorGroup) -> dict[str, ShardedLinear | TorchLinear]:
    """Return the parallel linears of a model by their names; ValueError if `balance` cannot take them."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, ShardedLinear)}
    _check_whole(layers)
    cut_by_torch = {}
    if any(hasattr(weight, "placements") for weight in model.parameters()):  # DTensors, slow to import
        from .torch_linears import torch_linears

        cut_by_torch = torch_linears(model, group)
    if not layers and not cut_by_torch:
        rule = "it must have linears that are cut over ranks, of `workbench.parallel` or by `parallelize_module`"
        raise ValueError(f"model is a {type(model).__name__} without parallel linears; {rule}")
    for layer in layers.values():
        if layer.group is not group:
            raise ValueError(f"group of {layer.site} is another one; it must be the given group")
        if layer.matrix_product is not functional.linear:
            raise ValueError(f"matrix_product of {layer.site} is replaced already; `Balancer.remove` gives it back")
    return layers | cut_by_torch
