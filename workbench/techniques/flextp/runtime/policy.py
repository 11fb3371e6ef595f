"""What a user decides about balancing: which solution, which columns, and its constants.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V-A names the solutions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..method.levelling import SPEED_SHARE
from ..method.migration import Scheme
from ..method.plan import Plan
from ..method.priority import DECAY, Selection
from ..method.ratio import SIGNIFICANT_CHANGE, Reference
from ..method.resizing import Imputation
from ..method.solution import Solution

__all__ = ["Policy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """How to balance.

    Attributes:
        solution: how stragglers are helped.
        selection: which columns are dropped, and whether layers have ratios of their own.
        pruning_ratio: a constant γ in [0, 1) for ZERO; None follows Eq. 1.
        plan: what every rank does with GIVEN, None otherwise (the paper's figures 5 and 6, and its table I).
        refine: SEMI and MIG level all ranks instead of bringing senders down to the fastest one's time (ours).
        speed_share: with `refine`, SEMI drops no more than it must to reach this share of a free, lossless balance's
            speed; what is planned must then be dropped, so that ratios by layer are refused.
        num_senders: with SEMI, how many of the slowest migrate while the others resize (the paper's figure 11); None
            lets Eqs. 2 and 3 say.
        reference: what ZERO compares a rank with; SEMI and MIG compare with the least time.
        imputation: what stands in dropped columns of gradients.
        scheme: how migrated columns travel.
        threshold: share by which a rank's own time must move before all plan anew, and by which it must exceed the
            reference before the rank counts as a straggler, with a constant γ twice that share (the second use is ours:
            times are never quite equal, and a rank that drops looks slower than it is).
        patience: iterations whose times are handed out together, and of which a rank's median counts, so that a
            straggler is helped after half to one and a half times as many. 1 in the paper, where a single iteration that
            something else disturbed makes a straggler.
        decay: a, share of γ that every layer drops at least, where layers have ratios of their own.
        micro_threshold: θ_micro, weight change an iteration below which a column may be dropped beyond that; has
            to be given to balance with ratios by layer (`method.priority.micro_threshold` gives one for a learning rate).
        iterations_per_epoch: after as many, statistics are renewed and columns chosen anew.
        is_incremental: dropped columns keep their statistics; False shows the endless loop.
        seed: of random choices.
    """

    solution: Solution = Solution.SEMI
    selection: Selection = Selection.PRIORITY
    pruning_ratio: float | None = None
    plan: Plan | None = None
    refine: bool = False
    speed_share: float = SPEED_SHARE
    num_senders: int | None = None
    reference: Reference = Reference.CURRENT_MEAN
    imputation: Imputation = Imputation.ZERO
    scheme: Scheme = Scheme.BROADCAST_REDUCE
    threshold: float = SIGNIFICANT_CHANGE
    patience: int = 1
    decay: float = DECAY
    micro_threshold: float = 0.0
    iterations_per_epoch: int = 100
    is_incremental: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for field, kind in (("solution", Solution), ("scheme", Scheme)):
            object.__setattr__(self, field, kind(getattr(self, field)))
        for field, kind in (("selection", Selection), ("reference", Reference), ("imputation", Imputation)):
            object.__setattr__(self, field, kind(getattr(self, field)))
        self._check_kinds()
        if self.pruning_ratio is not None and not 0 <= self.pruning_ratio < 1:
            raise ValueError(f"pruning_ratio is {self.pruning_ratio}, must be in [0, 1)")
        if self.pruning_ratio is not None and self.solution is not Solution.ZERO:
            raise ValueError(f"pruning_ratio is {self.pruning_ratio}, must be None where solution is {self.solution}")
        if (self.plan is not None) != (self.solution is Solution.GIVEN):
            raise ValueError(f"plan is {self.plan}, must be given where solution is {Solution.GIVEN}, and only there")
        if self.selection is Selection.DIFFERENTIATED_EMPIRICAL and self.pruning_ratio is None:
            raise ValueError("selection PriDiffE takes a constant γ: pruning_ratio is None, must be in [0, 1)")
        if self.num_senders is not None and (self.solution is not Solution.SEMI or self.num_senders < 0):
            raise ValueError(f"num_senders is {self.num_senders}, must be None, or 0 or more where solution is SEMI")
        if self.refine and self.solution not in (Solution.MIG, Solution.SEMI):
            raise ValueError(f"refine is True, must be False where solution is {self.solution}")
        if self.refine and self.selection.is_differentiated:
            raise ValueError(
                f"selection is {self.selection.value}, must be Rd or Pri where refine is True: ratios by layer drop "
                f"another share than is planned"
            )
        if self.refine and self.num_senders is not None:
            raise ValueError(f"num_senders is {self.num_senders}, must be None where refine is True, which finds them")
        if not 0 < self.threshold < math.inf:
            raise ValueError(f"threshold is {self.threshold}, must be finite and above 0")
        if self.patience < 1:
            raise ValueError(f"patience is {self.patience}, must be at least 1")
        if not 0 <= self.micro_threshold < math.inf:
            raise ValueError(f"micro_threshold is {self.micro_threshold}, must be finite and 0 or more")
        if not 0 <= self.speed_share < 1:
            raise ValueError(f"speed_share is {self.speed_share}, must be in [0, 1)")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay is {self.decay}, must be in [0, 1]")
        if self.iterations_per_epoch < 1:
            raise ValueError(f"iterations_per_epoch is {self.iterations_per_epoch}, must be at least 1")

    def _check_kinds(self) -> None:
        for field in ("num_senders", "patience", "iterations_per_epoch", "seed"):
            value = getattr(self, field)
            if not isinstance(value, int) and (field, value) != ("num_senders", None):
                raise ValueError(f"{field} is {value!r}, must be a whole number")
        for field in ("pruning_ratio", "speed_share", "threshold", "decay", "micro_threshold"):
            value = getattr(self, field)
            if not isinstance(value, int | float) and (field, value) != ("pruning_ratio", None):
                raise ValueError(f"{field} is {value!r}, must be a number")
        if not isinstance(self.plan, Plan | None):
            raise ValueError(f"plan is {self.plan!r}, must be a Plan or None")
