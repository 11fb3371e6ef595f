"""Balancing a model's ranks while it is trained.

    balancer = balance(model, group, policy=Policy(solution="SEMI"))
    for batch in batches:
        with balancer.iteration():
            loss = ...; loss.backward(); optimizer.step()

What: every rank hands its times to all others, and at the start of the next iteration all of them see from the same
numbers whether a plan is due, and rank 0 makes it for all. Ranks cannot disagree: a plan is made once,
epochs are counted in iterations, and which columns a sender migrates is said by the sender alone.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", algorithms 1 and 2.
Ours: times are gathered while ranks fetch their next batch; whether a plan is due then needs no further message, where
the paper's ranks each watch their own time. With a patience above one, the times of as many iterations travel as one
message, and a rank's median of them counts.
Left out: reentrant checkpointing, whose first pass looks like an evaluation; pipelines (one plan for all layers of a
tensor group); saving and loading: a resumed run measures and plans anew.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.parallel import TensorGroup
from workbench.parallel.groups import both
from workbench.parallel.linear import ShardedLinear
from workbench.parallel.moves import Arrival, Shape, moves_of

from ..method.costs import Costs
from ..method.lineage import Lineage
from ..method.plan import Plan, RankPlan, RankTimes
from ..method.ratio import Reference, ranks_that_moved
from ..method.resizing import Buffers, num_dropped_columns
from ..method.solution import Solution
from .choosing import ColumnChooser, Columns
from .delivery import delivery_of
from .division import Division, divide
from .layers import cut_of, described, parallel_linears
from .meter import Meter
from .planning import Planner, needs_costs, planner_of
from .policy import Policy
from .pre_test import measure_costs
from .products import FlexibleProduct
from .timing import Times

__all__ = ["Balancer", "Step"]

PRE_TEST_AFTER = 2  # iterations: the first one opens connections and fills caches
STEPS_KEPT = 10_000  # of a long training with restless ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One plan, and what it was made from.

    Attributes:
        iteration: the first one under the plan.
        times: of all ranks, of the iterations before; where SEMI or a refined plan knows what products take however narrow,
            product time is that in proportion to the columns alone.
        plan: what each rank does from then on.
    """

    iteration: int
    times: tuple[RankTimes, ...]
    plan: Plan


@dataclass(slots=True)
class _State:
    """What changes from iteration to iteration, and is the same on every rank."""

    iteration: int = 0
    plan: Plan | None = None
    planned_from: tuple[RankTimes, ...] | None = None
    pending: Arrival | None = None
    unsent: list[list[tuple[float, float, float]]] = field(default_factory=list)  # iteration -> local rank -> its times
    recent: list[Sequence[RankTimes]] = field(default_factory=list)  # of the last iterations under the plan
    is_chosen: bool = False  # whether the divisions follow the plan and the statistics as they are now
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))


class Balancer:
    """Keeps the ranks of a model in balance; `balance` makes one.

    Args:
        model: has parallel linears, all of one group; their matrix products are replaced.
        group: their ranks.
        policy: how to balance.
        costs: what migration costs; where the policy needs them and there are none, a pre-test measures them after
            the second iteration, or the last of the policy's patience, and nothing is planned before.
        times: where times come from.
        meters: local rank -> times (and slows) its products.

    Raises:
        ValueError: if the model has no parallel linear, one of another group, or one whose product is replaced already;
            on every rank if ranks were given different policies, costs or layers.
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
        self.group, self.policy = group, policy
        self._names, self._layers = parallel_linears(model, group)
        self._device = self._layers[0].weights[0].device
        self.costs, self._times, self._moves = costs, times, moves_of(group)
        self._undo: list[Callable[[], None]] = []
        self._check_equal_on_all_ranks()
        waits = group.size > 1 and costs is None and needs_costs(policy)  # one rank has nobody to hand columns to
        self._is_corrected = needs_costs(policy) and not times.is_proportional
        self._planner: Planner | None = None if waits else planner_of(policy, group.size, costs)
        self._choosers = {
            rank: ColumnChooser(weights, policy, rank) for rank, weights in self._weights_by_rank().items()
        }
        delivery = delivery_of(policy.scheme, group)
        options = {"delivery": delivery, "imputation": policy.imputation, "meters": meters, "buffers": Buffers()}
        self._products = [FlexibleProduct(group, cut_of(layer), layer.site, **options) for layer in self._layers]
        for layer, product in zip(self._layers, self._products, strict=True):
            layer.matrix_product = product
        for meter in (meters or {}).values():
            if meter.is_wall_clock:
                self._undo.append(partial(setattr, group, "watch", group.watch))
                group.watch = both(group.watch, meter.waiting)
        self._is_inside = False
        self._state = _State(plan=policy.plan or Plan.plain(group.size))
        self.lineage = Lineage()
        self._divisions = self._divided()

    @property
    def plan(self) -> Plan:
        """What each rank does at the moment."""
        return self._state.plan

    @property
    def steps(self) -> tuple[Step, ...]:
        """All plans that were made, in their order."""
        return tuple(self._state.steps)  # the last `STEPS_KEPT`

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
        for layer in self._layers:
            layer.matrix_product = functional.linear
        while self._undo:
            self._undo.pop()()

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Balance the forward and backward passes inside; every rank of the group enters it.

        Outside, products are plain, and nothing is timed. Inside they are balanced wherever gradients are recorded, so
        that an evaluation belongs outside, or under `torch.no_grad`.

        Raises:
            RuntimeError: inside of another iteration, after `remove`, or if the model has moved to another device since
                it was balanced.
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

    def _check_ready(self) -> None:
        if self._is_inside:
            raise RuntimeError("iteration: the one before has not ended; each wraps one training step")
        if any(
            layer.matrix_product is not product for layer, product in zip(self._layers, self._products, strict=True)
        ):
            raise RuntimeError("iteration: the model is not balanced any more; call `balance` anew after `remove`")
        if self._layers[0].weights[0].device != self._device:
            moved = f"from {self._device} to {self._layers[0].weights[0].device}"
            raise RuntimeError(
                f"iteration: the model has moved {moved} since it was balanced; balance it after moving it"
            )

    def _prepare(self) -> None:
        """Plan anew if a time has moved, and choose columns anew if the plan or the epoch has changed."""
        state = self._state
        pending, state.pending = state.pending, None  # considered once, even if the next iteration is broken off
        if pending is not None:
            self._consider(pending.wait().transpose(0, 1).tolist())
        if not state.is_chosen:
            self._divisions, state.is_chosen = self._divided(), True

    def _consider(self, iterations: Sequence[Sequence[Sequence[float]]]) -> None:
        """Plan anew if the times of some iterations, by iteration and rank, say that a rank's have moved."""
        state = self._state
        if self.policy.solution in (Solution.BASELINE, Solution.GIVEN):
            return  # nothing to plan
        found = [tuple(RankTimes(own_s=o, product_s=p, work=w) for o, p, w in ranks) for ranks in iterations]
        found = [times for times in found if all(each.product_s and each.work for each in times)]  # no skipped batch
        if not found:
            return
        if self._planner is None:
            if state.iteration < PRE_TEST_AFTER:
                return
            self._run_pre_test([self._middle(rank, found) for rank in range(self.group.size)])
        if self.costs is not None and self._is_corrected:
            found = [tuple(map(self.costs.proportional, times)) for times in found]
        state.recent = [*state.recent, *found][-self.policy.patience :]
        if len(state.recent) < self.policy.patience:
            return
        times = tuple(self._middle(rank, state.recent) for rank in range(self.group.size))
        if not self._have_moved(times):
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
        self.costs = measure_costs(self._layers, self._products, self.group, times)
        self._planner = planner_of(self.policy, self.group.size, self.costs)
        messages[num_before:] = [replace(message, site="flextp.pre_test") for message in messages[num_before:]]

    def _check_equal_on_all_ranks(self) -> None:
        """Refuse ranks that would plan differently, or divide different layers: they would wait for ever."""
        said = f"{self.policy} {self.costs} {described(self._names, self._layers)}".encode()
        digest = torch.frombuffer(bytearray(hashlib.sha256(said).digest()), dtype=torch.uint8).to(self._device)
        with self.group.traffic.at("flextp.policy"):
            everyone = self._moves.gather([digest for _ in self.group.local_ranks]).wait()
        others = [rank for rank in range(self.group.size) if not torch.equal(everyone[rank], everyone[0])]
        if others:
            raise ValueError(f"policy: rank {others[0]} was given another policy, costs or layers than rank 0")

    def _middle(self, rank: int, iterations: Sequence[Sequence[RankTimes]]) -> RankTimes:
        """Return a rank's median time of some iterations; of two middle ones that most like the one planned from."""
        state = self._state
        recent = sorted((times[rank] for times in iterations), key=lambda each: each.unresized().own_s)
        before_s = 0.0 if state.planned_from is None else state.planned_from[rank].unresized().own_s
        middle = recent[(len(recent) - 1) // 2 : len(recent) // 2 + 1]
        return min(middle, key=lambda each: abs(each.unresized().own_s - before_s))

    def _have_moved(self, times: Sequence[RankTimes]) -> bool:
        """Return whether any rank's time has moved since the current plan; before the first one it has."""
        state, policy = self._state, self.policy
        if state.planned_from is None:
            return True
        # Only against the current mean does the plan itself move what matters.
        reference = policy.reference if policy.solution is Solution.ZERO else Reference.MIN
        return bool(ranks_that_moved(times, state.planned_from, policy.threshold, reference=reference))

    def _agreed(self, times: Sequence[RankTimes]) -> Plan:
        """Let rank 0 plan for all: planners search with floats, which two kinds of hosts may round differently."""
        shape, mine = Shape(sizes=(self.group.size, 2), dtype=torch.float64, device=self._device), None
        if 0 in self.group.local_ranks:
            shares = [(each.dropped, each.migrated) for each in self._planner(times).ranks]
            mine = torch.tensor(shares, dtype=torch.float64, device=self._device)
        with self.group.traffic.at("flextp.plan"):
            held = [mine if rank == 0 else None for rank in self.group.local_ranks]
            told = self._moves.broadcast(held, 0, shape).wait()
        return Plan(ranks=tuple(RankPlan(dropped=dropped, migrated=migrated) for dropped, migrated in told.tolist()))

    def _finish(self) -> None:
        """Note this rank's times, hand them out if it is time to, and close the epoch if it is over."""
        state = self._state
        found = [self._times.end(rank, self._work(rank)) for rank in self.group.local_ranks]
        state.unsent.append([(each.own_s, each.product_s, each.work) for each in found])
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
        shards = zip(*(layer.weights for layer in self._layers), strict=True)
        return {rank: list(weights) for rank, weights in zip(self.group.local_ranks, shards, strict=True)}

    def _work(self, rank: int) -> float:
        """Return the columns of its own that a local rank multiplied, as a share of them."""
        if self._state.plan.is_plain:
            return 1.0
        return self._weighted(lambda division: division.kept(rank), otherwise=1.0)

    def _weighted(self, share: Callable[[Division], float], otherwise: float) -> float:
        """Average a share of columns over the layers that have multiplied, each by its weight's size."""
        places = [place for place, product in enumerate(self._products) if product.has_multiplied]
        if not places:
            return otherwise
        sizes = [self._layers[place].weights[0].numel() for place in places]
        shares = [share(self._divisions[place]) for place in places]
        return sum(size * each for size, each in zip(sizes, shares, strict=True)) / sum(sizes)

    def _divided(self) -> list:
        """Divide the columns of every layer as the plan says; every rank of the group calls it."""
        plan = self._state.plan
        chosen = {rank: chooser.choose(plan.ranks[rank]) for rank, chooser in self._choosers.items()}
        migrated = {sender: self._announced(sender, chosen.get(sender)) for sender in plan.senders}
        return [self._divide(place, layer, chosen, migrated) for place, layer in enumerate(self._layers)]

    def _divide(self, place: int, layer: ShardedLinear, chosen: Mapping[int, list[Columns]], migrated: Mapping):
        dropped = {rank: columns[place].dropped for rank, columns in chosen.items()}
        for rank, columns in dropped.items():
            for matrix in ("input", "weight"):
                self.lineage.record_(f"{self._names[place]}, rank {rank}", matrix, columns)
        moved = {sender: columns[place] for sender, columns in migrated.items() if len(columns[place])}
        return divide(layer.weights[0].shape[1], num_ranks=self.group.size, dropped=dropped, migrated=moved)

    def _announced(self, sender: int, columns: list[Columns] | None) -> Sequence[Tensor]:
        """Tell all ranks which columns a sender migrates, layer by layer."""
        share = self._state.plan.ranks[sender].migrated
        counts = [num_dropped_columns(share, layer.weights[0].shape[1]) for layer in self._layers]
        mine = None if columns is None else torch.cat([each.migrated for each in columns])
        held = [mine if rank == sender else None for rank in self.group.local_ranks]
        shape = Shape(sizes=(sum(counts),), dtype=torch.int64, device=self._device)
        with self.group.traffic.at("flextp.columns"):
            return self._moves.broadcast(held, sender, shape).wait().split(counts)
