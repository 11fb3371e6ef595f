"""Balancing a model's ranks while it is trained: algorithms 1 and 2.

Ranks hand their times to all others while they fetch the next batch; rank 0 makes the plan for all, and only a sender
says which of its columns migrate. Reentrant checkpointing is refused: its forward pass records no gradients.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from workbench.parallel import ProcessTensorGroup, TensorGroup, VirtualTensorGroup
from workbench.parallel.gradients import mark_shard_
from workbench.parallel.groups import both
from workbench.parallel.linear import ShardedLinear
from workbench.parallel.moves import Arrival, Arrived, Shape, moves_of
from workbench.timeline.stragglers import StragglerTrace

from ..method.plan import Costs, Plan, RankPlan, RankTimes, Solution
from ..method.planners import Reference, have_moved
from ..method.resizing import Buffers, num_dropped_columns
from .division import Division, divide
from .meter import Meter, ModelledTimes
from .policy import ColumnChooser, Planner, Policy, check_policy, needs_costs, planner_of
from .pre_test import measure_costs
from .products import FlexibleProduct, check_whole, cut_of, parallel_linears

PATIENCE = 8  # iterations; on shared cores times stray by a tenth for two in a row every few dozen
PRE_TEST_AFTER = 2  # iterations: the first one opens connections and fills caches
STEPS_KEPT = 10_000  # of a long training with restless ranks


def balance(
    model: nn.Module,
    group: TensorGroup | dist.ProcessGroup | DeviceMesh,
    *,
    policy: Policy | None = None,
    costs: Costs | None = None,
    trace: StragglerTrace | None = None,
    slowness: float = 1.0,
    modelled: ModelledTimes | None = None,
) -> "Balancer":
    """Let the ranks of a tensor-parallel model help their stragglers.

    Wrap each training step in `with balancer.iteration():`; evaluation needs nothing. Balance a model once it is on its
    device and loaded; a training that resumes then loads what `balancer.state_dict()` gave on the same rank.

    Args:
        model: has the workbench's parallel linears, or linears that torch's `parallelize_module` has cut; their
            matrix products are replaced.
        group: its ranks: a tensor group, real or virtual, torch's own process group, or a mesh of one axis.
        policy: by default SEMI-migration that levels all ranks, with a patience of eight iterations; `Policy()` is the
            paper's.
        costs: of migration; by default a pre-test measures them after the first iterations, for as long as some 35
            iterations of one layer of every kind.
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
    meters = {}
    if isinstance(group, ProcessTensorGroup):
        (rank,) = group.local_ranks
        meters[rank] = Meter(rank, trace, slowness=slowness, device=next(model.parameters()).device)
    elif modelled is None:
        raise ValueError("modelled is None; it must be given for virtual ranks, which have no times of their own")
    elif costs is None and needs_costs(policy):
        raise ValueError("costs is None; it must be given for virtual ranks, which have no messages to test")
    elif slowness != 1:
        raise ValueError(f"slowness is {slowness}; it must be 1 for virtual ranks, which cannot sleep for one another")
    return Balancer(model, group, policy, modelled=modelled, costs=costs, meters=meters)


def check_model(build: Callable[[TensorGroup], nn.Module], num_ranks: int) -> None:
    """Refuse, before any rank starts, a model that `balance` would refuse; `build` makes it for a group."""
    group = VirtualTensorGroup(num_ranks)
    parallel_linears(build(group), group)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One plan, and the times that it was made from."""

    iteration: int  # the first one under the plan
    times: tuple[RankTimes, ...]  # of all ranks, of the iterations before; corrected by `Costs.proportional`
    plan: Plan


@dataclass(slots=True)
class _State:
    """What changes from iteration to iteration, the same on every rank, and its record, which `torch.save` keeps."""

    plan: Plan
    iteration: int = 0
    planned_from: tuple[RankTimes, ...] | None = None
    pending: Arrival[Tensor] | None = None
    unsent: list[list[tuple[float, float, float]]] = field(default_factory=list)  # iteration -> local rank -> its times
    recent: list[tuple[RankTimes, ...]] = field(default_factory=list)  # of the last iterations under the plan
    is_chosen: bool = False  # whether the divisions follow the plan and the statistics as they are now
    steps: list[Step] = field(default_factory=list)

    def as_record(self) -> dict[str, Any]:
        """Return plain values and at most one tensor; times that are on their way are waited for."""
        return asdict(replace(self, pending=None)) | {"pending": self.pending and self.pending.wait()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:

        def plan(saved: Mapping[str, Any]) -> Plan:
            return Plan(ranks=tuple(RankPlan(**rank) for rank in saved["ranks"]))

        def times(saved: Iterable[Mapping[str, float]]) -> tuple[RankTimes, ...]:
            return tuple(RankTimes(**rank) for rank in saved)

        state = cls(**record)
        state.plan, state.recent = plan(record["plan"]), [times(ranks) for ranks in record["recent"]]
        state.unsent = list(record["unsent"])  # grows here, and not in the record
        state.planned_from = record["planned_from"] and times(record["planned_from"])
        state.pending = None if record["pending"] is None else Arrived(record["pending"])
        steps = ({**step, "times": times(step["times"]), "plan": plan(step["plan"])} for step in record["steps"])
        state.steps = [Step(**step) for step in steps]
        return state


class Balancer:
    """Keeps the ranks of a model in balance; made by `balance`. ValueError on all ranks if their arguments differ."""

    def __init__(
        self,
        model: nn.Module,
        group: TensorGroup,
        policy: Policy,
        *,
        modelled: ModelledTimes | None = None,
        costs: Costs | None = None,
        meters: Mapping[int, Meter] | None = None,
    ):
        self.group, self.policy = group, policy
        self._layers = parallel_linears(model, group)
        self._device = next(iter(self._layers.values())).weights[0].device
        self._modelled, self._meters = modelled, dict(meters or {})
        self._moves = moves_of(group)
        # Ranks that would plan differently, or divide different layers, would wait for each other for ever.
        settings = f"{policy} {costs} {self._layer_facts()}".encode()
        digest = torch.frombuffer(bytearray(hashlib.sha256(settings).digest()), dtype=torch.uint8).to(self._device)
        digests = self._gathered("flextp.policy", [digest for _ in group.local_ranks]).wait()
        if different := [rank for rank in range(group.size) if not torch.equal(digests[rank], digests[0])]:
            raise ValueError(f"policy of rank {different[0]} differs; policy, costs and layers must be those of rank 0")
        self._is_corrected = needs_costs(policy) and not (modelled and modelled.is_proportional)
        self._plan_by(costs)
        by_rank = self._weights_by_rank().items()
        self._choosers = {rank: ColumnChooser(weights, policy, rank) for rank, weights in by_rank}
        flexible = partial(
            FlexibleProduct, group, scheme=policy.scheme, imputation=policy.imputation, meters=meters, buffers=Buffers()
        )
        self._products = []
        for layer in self._layers.values():
            layer.matrix_product = product = flexible(cut_of(layer), layer.site)
            self._products.append(product)
            if len(group.local_ranks) == 1 and isinstance(layer, ShardedLinear):  # torch knows its own DTensors
                for parameter in [*layer.weights, *(layer.biases if layer.output_group.size > 1 else ())]:
                    mark_shard_(parameter, group, counts=True)
        self._undo: list[Callable[[], None]] = []
        for meter in self._meters.values():
            if meter.is_wall_clock and isinstance(group, ProcessTensorGroup):
                self._undo.append(partial(setattr, group, "watch", group.watch))
                group.watch = both(group.watch, meter.waiting)
        self._state = _State(plan=policy.plan or Plan.plain(group.size))
        self._divisions = self._divided()

    def _plan_by(self, costs: Costs | None) -> None:
        """Plan by costs; where the policy needs some and there are none, a pre-test comes first."""
        waits = self.group.size > 1 and costs is None and needs_costs(self.policy)  # one rank has nobody to help it
        self.costs = costs
        self._planner: Planner | None = None if waits else planner_of(self.policy, self.group.size, costs)

    def _layer_facts(self) -> list[tuple]:
        shards = [(name, cut_of(layer).name.lower(), layer.weights[0]) for name, layer in self._layers.items()]
        return [(name, f"{cut}-parallel", tuple(w.shape), str(w.dtype), w.requires_grad) for name, cut, w in shards]

    def _gathered(self, site: str, messages: Sequence[Tensor]) -> Arrival[Tensor]:
        with self.group.traffic.at(site):
            return self._moves.gather(messages)

    def _broadcast(self, site: str, source: int, tensor: Tensor | None, shape: Shape) -> Tensor:
        moved = None if tensor is None else tensor.to(self._device)
        held = [moved if rank == source else None for rank in self.group.local_ranks]
        with self.group.traffic.at(site):
            return self._moves.broadcast(held, source, shape).wait()

    def _weights_by_rank(self) -> dict[int, list[Tensor]]:
        """Return the shards of every local rank, layer by layer, as they are now."""
        shards = zip(*(layer.weights for layer in self._layers.values()), strict=True)
        return {rank: list(weights) for rank, weights in zip(self.group.local_ranks, shards, strict=True)}

    @property
    def plan(self) -> Plan:
        return self._state.plan

    @property
    def steps(self) -> tuple[Step, ...]:
        """The last `STEPS_KEPT` plans that were made, in their order."""
        return tuple(self._state.steps)

    @property
    def dropped_share(self) -> float:
        """Share of the local ranks' products that nobody computed in the last iteration; layers differ in theirs."""
        shares = [self._weighted(partial(Division.dropped_share, rank=rank), 0.0) for rank in self.group.local_ranks]
        return sum(shares) / len(shares)

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
        """Balance the forward and backward passes inside; every rank of the group enters it, an evaluation does not.

        RuntimeError inside of another iteration, after `remove`, or if the model has moved to another device.
        """
        self._check_ready()
        state = self._state
        pending, state.pending = state.pending, None  # considered once, even if the next iteration is broken off
        if pending is not None and self.policy.solution not in (Solution.BASELINE, Solution.GIVEN):
            self._consider(pending.wait().transpose(0, 1).tolist())
        if not state.is_chosen:
            self._divisions, state.is_chosen = self._divided(), True
        for meter in self._meters.values() if self._modelled is None else ():
            meter.begin(state.iteration)
        for product, division in zip(self._products, self._divisions, strict=True):
            product.division, product.has_multiplied = division, False
        try:
            yield
        finally:
            for product in self._products:
                product.division = None
        self._finish()

    def _check_ready(self) -> None:
        if any(product.division is not None for product in self._products):
            raise RuntimeError("iteration: the one before has not ended; each wraps one training step")
        layers = list(self._layers.values())
        if any(layer.matrix_product is not product for layer, product in zip(layers, self._products, strict=True)):
            raise RuntimeError("iteration: the model is not balanced any more; call `balance` anew after `remove`")
        check_whole(self._layers)
        if (device := layers[0].weights[0].device) != self._device:
            moved = f"the model has moved from {self._device} to {device} since it was balanced"
            raise RuntimeError(f"iteration: {moved}; balance it after moving it")

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
            messages, middle = self.group.traffic.messages, self._middle(measured)
            num_before = len(messages)
            self._plan_by(measure_costs(list(self._layers.values()), self._products, self.group, middle))
            messages[num_before:] = [replace(message, site="flextp.pre_test") for message in messages[num_before:]]
        if self.costs is not None and self._is_corrected:
            measured = [tuple(map(self.costs.proportional, times)) for times in measured]
        state.recent = [*state.recent, *measured][-self.policy.patience :]
        if len(state.recent) < self.policy.patience:
            return
        times, before = self._middle(state.recent), state.planned_from
        # Only against the current mean does the plan itself move what matters.
        reference = self.policy.reference if self.policy.solution is Solution.ZERO else Reference.MIN
        if before is not None and not have_moved(times, before, reference=reference):
            return
        # Rank 0 plans for all: planners search with floats, which two kinds of hosts may round differently.
        shares = None
        if 0 in self.group.local_ranks:
            assert self._planner is not None  # at the latest since the pre-test
            ranks = self._planner(times).ranks
            shares = torch.tensor([(rank.dropped, rank.migrated) for rank in ranks], dtype=torch.float64)
        shape = Shape(sizes=(self.group.size, 2), dtype=torch.float64, device=self._device)
        plan = Plan.of_shares(*self._broadcast("flextp.plan", 0, shares, shape).t().tolist())
        state.planned_from = times
        if state.steps and plan.is_near(state.plan):
            return
        state.steps = [*state.steps, Step(iteration=state.iteration, times=times, plan=plan)][-STEPS_KEPT:]
        state.plan, state.is_chosen, state.recent = plan, plan.is_plain and state.plan.is_plain, []

    def _middle(self, iterations: Sequence[tuple[RankTimes, ...]]) -> tuple[RankTimes, ...]:
        """Return each rank's median time of some iterations; of two middle ones that most like the one planned from."""
        middle = []
        for rank, measured in enumerate(zip(*iterations, strict=True)):
            before = self._state.planned_from
            before_s = 0.0 if before is None else before[rank].unresized().own_s
            ordered = sorted(measured, key=lambda times: times.unresized().own_s)
            candidates = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
            middle.append(min(candidates, key=lambda times: abs(times.unresized().own_s - before_s)))
        return tuple(middle)

    def _finish(self) -> None:
        """Note the local ranks' times, hand them out if it is time to, and close the epoch if it is over."""
        state = self._state
        measured = []
        for rank in self.group.local_ranks:
            work = self._weighted(partial(Division.kept_share, rank=rank), otherwise=1.0)
            modelled = self._modelled and self._modelled.of(rank, state.iteration, work)
            measured.append(astuple(modelled or self._meters[rank].end(work)))
        state.unsent.append(measured)
        state.iteration += 1
        if len(state.unsent) == self.policy.patience:
            values, state.unsent = torch.tensor(state.unsent, dtype=torch.float64, device=self._device), []
            state.pending = self._gathered("flextp.times", values.unbind(1))
        if state.iteration % self.policy.iterations_per_epoch == 0:
            for rank, weights in self._weights_by_rank().items():
                self._choosers[rank].close_epoch(weights)
            state.is_chosen = state.plan.is_plain

    def _weighted(self, share: Callable[[Division], float], otherwise: float) -> float:
        """Average a share of columns over the layers that have multiplied, each by its weight's size."""
        layers = zip(self._layers.values(), self._products, self._divisions, strict=True)
        used = [(layer.weights[0].numel(), division) for layer, product, division in layers if product.has_multiplied]
        size = sum(numel for numel, _ in used)
        return sum(numel * share(division) for numel, division in used) / size if used else otherwise

    def _divided(self) -> list[Division]:
        """Divide the columns of every layer as the plan says; every rank of the group calls it."""
        plan, layers = self._state.plan, self._layers.values()
        chosen = {rank: chooser.choose(plan.ranks[rank]) for rank, chooser in self._choosers.items()}
        announced = {}  # the columns that each sender migrates, layer by layer
        for sender in plan.senders:
            share = plan.ranks[sender].migrated
            counts = [num_dropped_columns(share, layer.weights[0].shape[1]) for layer in layers]
            columns = torch.cat([layer.migrated for layer in chosen[sender]]) if sender in chosen else None
            shape = Shape(sizes=(sum(counts),), dtype=torch.int64, device=self._device)
            announced[sender] = self._broadcast("flextp.columns", sender, columns, shape).split(counts)
        divisions = []
        for place, layer in enumerate(layers):
            dropped = {rank: columns[place].dropped for rank, columns in chosen.items()}
            migrated = {sender: columns[place] for sender, columns in announced.items()}
            num_columns = layer.weights[0].shape[1]
            divisions.append(divide(num_columns, num_ranks=self.group.size, dropped=dropped, migrated=migrated))
        return divisions

    def rescale_(self, factor: float) -> None:
        """Multiply the gradients that `Imputation.SAME` keeps, as when the loss's scale changes by a factor."""
        for product in self._products:
            for gradient in product.previous.values():
                gradient.mul_(factor)

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank has measured, planned and drawn; every rank saves its own between two iterations."""
        self._check_ready()
        return {
            "made_for": self._made_for(),
            "state": self._state.as_record(),
            "costs": self.costs and self.costs.as_record(),
            "choosers": {str(rank): chooser.state_dict() for rank, chooser in self._choosers.items()},
            "products": [product.state_dict() for product in self._products],
        }

    def _made_for(self) -> dict[str, object]:
        """Return the facts that must be the same where a state is loaded."""
        facts = {"policy": str(self.policy), "layers": str(self._layer_facts())}
        return facts | {"num_ranks": self.group.size, "ranks": list(self.group.local_ranks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from this rank's own state; ValueError on all ranks, before any change, if one does not fit."""
        self._check_ready()
        saved = state["made_for"]
        facts = {name: (value, saved.get(name)) for name, value in self._made_for().items()}
        errors = [f"{name}: {here} here, {there} there" for name, (here, there) in facts.items() if here != there]
        iteration = torch.tensor([-1 if errors else state["state"]["iteration"]], device=self._device)
        gathered = self._gathered("flextp.state", [iteration for _ in self.group.local_ranks])
        iterations = gathered.wait().flatten().tolist()
        if errors:
            raise ValueError(f"state is of another balancer: {'; '.join(errors)}")
        if min(iterations) < 0:
            raise ValueError(f"state of rank {iterations.index(-1)} is of another balancer, which that rank says")
        if len(set(iterations)) > 1:
            raise ValueError(f"state is of iterations {iterations} by rank; all must be saved after the same iteration")
        self._state = _State.from_record(state["state"])
        if state["costs"] is not None:
            self._plan_by(Costs.from_record(state["costs"]))
        for rank, chooser in self._choosers.items():
            chooser.load_state_dict(state["choosers"][str(rank)])
        for product, product_state in zip(self._products, state["products"], strict=True):
            product.load_state_dict(product_state)
        if self._state.is_chosen:
            self._divisions = self._divided()  # nothing is drawn for it


def _tensor_group(model: nn.Module, group: TensorGroup | dist.ProcessGroup | DeviceMesh) -> TensorGroup:
    """Return a group of torch as the one that the model's parallel linears have, or as a new one."""
    if isinstance(group, DeviceMesh):
        group = group.get_group()
    if isinstance(group, TensorGroup):
        return group
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"group is {group!r}; it must be a tensor group, or a process group that has this rank")
    ranks = dist.get_process_group_ranks(group)
    for layer in (module for module in model.modules() if isinstance(module, ShardedLinear)):
        existing = getattr(layer, "group", None)
        if isinstance(existing, ProcessTensorGroup) and dist.get_process_group_ranks(existing.process_group) == ranks:
            return existing
    return ProcessTensorGroup(group)
