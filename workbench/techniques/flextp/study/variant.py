"""One thing that is compared: a solution with its options, and who straggles.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V: a figure compares
solutions under equal stragglers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from workbench.timeline.stragglers import StragglerTrace

from ..method.levelling import SPEED_SHARE
from ..method.plan import Plan, RankPlan, Scheme, Solution
from ..method.planners import Reference
from ..method.priority import Selection
from ..runtime.policy import Policy

__all__ = ["Variant"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A solution and its stragglers, in plain values.

    Attributes:
        solution: Baseline, ZERO, MIG or SEMI.
        selection: Rd, Pri, PriDiffE or PriDiffR.
        pruning_ratio: a constant γ for ZERO; None follows Eq. 1.
        reference: what Eq. 1 compares with in ZERO: "current mean", or "mean" for the one-shot form.
        everywhere: every rank drops the constant share, straggler or not (figures 5 and 6).
        dropped: constant shares that the first ranks drop, whatever the times, for ZERO.
        migrated: a constant share that the first ranks migrate, whatever the times (table I), `num_senders` of them.
        imputation: Zero, Average or Same.
        is_incremental: dropped columns keep their statistics; without it the same ones are dropped for ever.
        num_senders: with SEMI, how many stragglers migrate; None lets Eqs. 2 and 3 say.
        refine: MIG and SEMI level all ranks (ours).
        speed_share: with a refined SEMI, the share of the ideal's speed below which columns are dropped.
        patience: iterations whose times are judged together (see `Policy`).
        scheme: how migrated columns travel.
        skewness: of each straggler, at least 1; the first ranks take them, from 0 on.
        moves: the one straggler moves to the next rank every epoch (figures 7 to 9).
    """

    solution: str = "Baseline"
    selection: str = "Pri"
    pruning_ratio: float | None = None
    reference: str = Reference.CURRENT_MEAN.value
    everywhere: bool = False
    dropped: tuple[float, ...] = ()
    migrated: float | None = None
    imputation: str = "Zero"
    is_incremental: bool = True
    num_senders: int | None = None
    refine: bool = False
    speed_share: float = SPEED_SHARE
    patience: int = 1
    scheme: str = Scheme.BROADCAST_REDUCE
    skewness: tuple[float, ...] = ()
    moves: bool = False

    @classmethod
    def of(cls, given: dict[str, Any]) -> Variant:
        """Take a variant's fields out of more arguments."""
        return cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})

    def __post_init__(self) -> None:
        for field in ("skewness", "dropped"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        if self.everywhere and self.pruning_ratio is None:
            raise ValueError("pruning_ratio is None, must be in [0, 1) where every rank drops")
        if self.everywhere and (self.solution, self.migrated) != (Solution.ZERO, None):
            raise ValueError("everywhere is True, must be False except for a ZERO that migrates nothing")
        if self.everywhere and Selection(self.selection).is_differentiated:
            raise ValueError(f"selection is {self.selection}, must be Rd or Pri where every rank drops the same share")
        if self.dropped and (self.solution, self.pruning_ratio) != (Solution.ZERO, None):
            raise ValueError(f"dropped is {self.dropped}, must be empty except for a ZERO that is given no other ratio")
        if self.dropped and Selection(self.selection).is_differentiated:
            raise ValueError(f"selection is {self.selection}, must be Rd or Pri where constant shares are dropped")
        if self.migrated is not None and (self.refine, self.pruning_ratio) != (False, None):
            raise ValueError(
                "refine and pruning_ratio must be left out where migrated is given, which is the whole plan"
            )
        if self.migrated is not None and self.solution != Solution.MIG:
            raise ValueError(f"migrated is {self.migrated}, must be None where solution is {self.solution}, not MIG")
        if self.migrated is not None and not 0 <= self.migrated <= 1:
            raise ValueError(f"migrated is {self.migrated}, must be in [0, 1]")
        if self.moves and len(self.skewness) != 1:
            raise ValueError(f"skewness has {len(self.skewness)} values, must have one for a straggler that moves")

    def trace(self, num_ranks: int, iterations_per_epoch: int) -> StragglerTrace:
        """Return who straggles when, for so many ranks.

        Raises:
            ValueError: for more stragglers than ranks, or a skewness below 1.
        """
        if len(self.skewness) > num_ranks:
            raise ValueError(f"skewness has {len(self.skewness)} values, must have at most {num_ranks}, one a rank")
        if self.moves:
            (skewness,) = self.skewness
            return StragglerTrace.round_robin(num_ranks, skewness, iterations_per_epoch=iterations_per_epoch)
        return StragglerTrace.fixed(num_ranks, dict(enumerate(self.skewness)))

    def policy(self, num_ranks: int, **more: Any) -> Policy:
        """Return the policy for so many ranks.

        Args:
            num_ranks: N.
            more: further fields of the policy.
        """
        named = ("selection", "reference", "imputation", "is_incremental", "speed_share", "patience", "scheme")
        common = {**{name: getattr(self, name) for name in named}, **more}
        plan = self._plan(num_ranks)
        if plan is not None:
            return Policy(solution=Solution.GIVEN, plan=plan, **common)
        only = {"num_senders": self.num_senders, "refine": self.refine, "pruning_ratio": self.pruning_ratio}
        return Policy(solution=self.solution, **only, **common)

    def _plan(self, num_ranks: int) -> Plan | None:
        """Return the constant plan, if this is one."""
        if self.everywhere:
            return Plan(ranks=(RankPlan(dropped=self.pruning_ratio),) * num_ranks)
        if self.dropped:
            if len(self.dropped) > num_ranks:
                raise ValueError(f"dropped has {len(self.dropped)} values, must have at most {num_ranks}, one a rank")
            shares = [*self.dropped, *[0.0] * (num_ranks - len(self.dropped))]
            return Plan(ranks=tuple(RankPlan(dropped=share) for share in shares))
        if self.migrated is None:
            return None
        num_senders = 1 if self.num_senders is None else self.num_senders
        if not 1 <= num_senders <= num_ranks - 1:
            raise ValueError(f"num_senders is {num_senders}, must be in 1..{num_ranks - 1} of {num_ranks} ranks")
        # A rank keeps one column at least, so that a share of 1 is all but that one.
        sender = RankPlan(migrated=min(self.migrated, LARGEST_SHARE))
        return Plan(ranks=tuple(sender if rank < num_senders else RankPlan() for rank in range(num_ranks)))


LARGEST_SHARE = 1 - 1e-9  # of its columns that a rank gives away; rounded down to all but one
