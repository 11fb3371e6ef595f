"""A variant of a study: a solution with its options and its stragglers, and its names in rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from workbench.techniques.flextp.measured.scores import name_of
from workbench.timeline.stragglers import StragglerTrace

from ..method import SPEED_SHARE, Plan, RankPlan, Reference, Scheme, Selection, Solution
from ..runtime.policy import Policy

__all__ = ["Variant", "keys_of", "traces_of", "variants_of"]

SYMBOLS = {"pruning_ratio": "γ", "skewness": "χ", "migrated": "share", "num_senders": "x"}  # in names of variants
COLUMNS = {"migrated": "migrated_share"}  # key columns that differ from the field's name, as in the published tables
LARGEST_SHARE = 1 - 1e-9  # of its columns that a rank gives away; rounded down to all but one
Options = Mapping[str, Any]  # an entry of a catalogue: solution, fields of `Variant`, and perhaps further keys


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A solution and its stragglers, in plain values."""

    solution: str = "Baseline"  # Baseline, ZERO, MIG or SEMI
    selection: str = "Pri"  # Rd, Pri, PriDiffE, PriDiffR or PriDiffM
    pruning_ratio: float | None = None  # a constant γ for ZERO; None follows Eq. 1
    reference: str = Reference.CURRENT_MEAN.value  # of Eq. 1 in ZERO; "mean" for the one-shot form
    everywhere: bool = False  # every rank drops the constant share, straggler or not (figures 5 and 6)
    dropped: tuple[float, ...] = ()  # constant shares that the first ranks drop, whatever the times, for ZERO
    migrated: float | None = None  # a constant share that `num_senders` first ranks migrate (table I)
    imputation: str = "Zero"  # Zero, Average or Same
    is_incremental: bool = True  # dropped columns keep their statistics; otherwise the same ones are dropped for ever
    num_senders: int | None = None  # with SEMI, stragglers that migrate; None follows Eqs. 2 and 3
    refine: bool = False  # MIG and SEMI level all ranks (ours)
    speed_share: float = SPEED_SHARE  # with a refined SEMI, of the ideal's speed; below it columns are dropped
    patience: int = 1  # iterations whose times are judged together (see `Policy`)
    scheme: str = Scheme.BROADCAST_REDUCE  # for migrated columns
    skewness: tuple[float, ...] = ()  # of each straggler, at least 1; the first ranks are the stragglers
    moves: bool = False  # the one straggler moves to the next rank every epoch (figures 7 to 9)

    @classmethod
    def of(cls, options: Options) -> Variant:
        """Take a variant's fields out of more options."""
        return cls(**{field.name: options[field.name] for field in fields(cls) if field.name in options})

    def __post_init__(self) -> None:
        for name in ("skewness", "dropped"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        is_constant, is_given = self.everywhere or bool(self.dropped), self.migrated is not None
        is_differentiated = is_constant and Selection(self.selection).is_differentiated
        zero = self.solution == Solution.ZERO
        for name, is_wrong, rule in (
            ("pruning_ratio", self.everywhere and self.pruning_ratio is None, "in [0, 1) where every rank drops"),
            ("everywhere", self.everywhere and (not zero or is_given), "False except for a ZERO that migrates nothing"),
            ("dropped", self.dropped and (not zero or self.pruning_ratio is not None), "() but for a ZERO without γ"),
            ("selection", is_differentiated, "Rd or Pri where constant shares are dropped"),
            ("refine", is_given and self.refine, "False where migrated is given, which is the whole plan"),
            ("pruning_ratio", is_given and self.pruning_ratio is not None, "None where migrated is given"),
            ("migrated", is_given and self.solution != Solution.MIG, f"None where solution is {self.solution}"),
            ("migrated", is_given and not 0 <= self.migrated <= 1, "in [0, 1]"),
            ("skewness", self.moves and len(self.skewness) != 1, "one value for a straggler that moves"),
        ):
            if is_wrong:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {rule}")

    def trace(self, num_ranks: int, iterations_per_epoch: int) -> StragglerTrace:
        """Return the stragglers of a group of ranks, iteration by iteration."""
        _check_length("skewness", self.skewness, num_ranks)
        if self.moves:
            (skewness,) = self.skewness
            return StragglerTrace.round_robin(num_ranks, skewness, iterations_per_epoch=iterations_per_epoch)
        return StragglerTrace.fixed(num_ranks, dict(enumerate(self.skewness)))

    def policy(self, num_ranks: int, **more: Any) -> Policy:
        """Return the policy for a group of ranks; `more` are further fields of it."""
        named = ("selection", "reference", "imputation", "is_incremental", "speed_share", "patience", "scheme")
        common = {**{name: getattr(self, name) for name in named}, **more}
        plan = self._plan(num_ranks)
        if plan is not None:
            return Policy(solution=Solution.GIVEN, plan=plan, **common)
        own = {"num_senders": self.num_senders, "refine": self.refine, "pruning_ratio": self.pruning_ratio}
        return Policy(solution=self.solution, **own, **common)

    def _plan(self, num_ranks: int) -> Plan | None:
        """Return the constant plan, if this is one."""
        if self.everywhere:
            return Plan(ranks=(RankPlan(dropped=self.pruning_ratio),) * num_ranks)
        if self.dropped:
            _check_length("dropped", self.dropped, num_ranks)
            shares = [*self.dropped, *[0.0] * (num_ranks - len(self.dropped))]
            return Plan(ranks=tuple(RankPlan(dropped=share) for share in shares))
        if self.migrated is None:
            return None
        num_senders = 1 if self.num_senders is None else self.num_senders
        if not 1 <= num_senders <= num_ranks - 1:
            raise ValueError(f"num_senders is {num_senders}; it must be in 1..{num_ranks - 1} of {num_ranks} ranks")
        # A rank keeps one column at least, so that a share of 1 is all but that one.
        sender = RankPlan(migrated=min(self.migrated, LARGEST_SHARE))
        return Plan(ranks=tuple(sender if rank < num_senders else RankPlan() for rank in range(num_ranks)))


def _check_length(name: str, values: Sequence[float], num_ranks: int) -> None:
    if len(values) > num_ranks:
        raise ValueError(f"{name} is {values}; it must be at most {num_ranks} values, one a rank")


def variants_of(compared: Sequence[Options], keys: Sequence[str]) -> dict[str, Variant]:
    """Return the variants of a figure, by name; `keys` are the fields that tell entries of one solution apart."""
    names = [_name(options, keys) for options in compared]
    if len(set(names)) < len(names):
        raise ValueError(f"keys is {list(keys)}; it must tell {names} apart")
    return {name: Variant.of(options) for name, options in zip(names, compared, strict=True)}


def keys_of(compared: Sequence[Options], keys: Sequence[str], **same: Any) -> dict[str, dict[str, Any]]:
    """Return the key columns of each variant's rows, by its name; `same` are further columns of all."""
    return {_name(entry, keys): {"solution": name_of(entry), **_columns(entry, keys), **same} for entry in compared}


def traces_of(variants: Mapping[str, Variant], num_ranks: int) -> dict[str, str]:
    """Return the stragglers of each variant as a grid, a row a rank and a column an epoch."""
    return {name: variant.trace(num_ranks, 1).as_grid() for name, variant in variants.items()}


def _name(options: Options, keys: Sequence[str]) -> str:
    columns = _columns(options, keys)
    values = {name: columns[COLUMNS.get(name, name)] for name in keys if COLUMNS.get(name, name) in columns}
    shown = [f"{SYMBOLS[name]} {value:g}" if name in SYMBOLS else str(value) for name, value in values.items()]
    return " ".join([name_of(options), *shown])


def _columns(options: Options, keys: Sequence[str]) -> dict[str, Any]:
    given = {**options, "skewness": max(options.get("skewness") or [1.0])}  # of the slowest straggler
    return {COLUMNS.get(name, name): given[name] for name in keys if given.get(name) is not None}
