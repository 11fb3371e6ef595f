"""The decision tree of section 4.5: every way to compress and synchronise one tensor, built from the pruning rules.

An option is the series of its tasks. It prints as `intra.reduce-scatter comp.gpu inter.alltoall* decomp.gpu ...`: what
is sent compressed has a star.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType

from workbench.compression.costs import Processor

__all__ = ["Comm", "Comp", "Decomp", "Option", "Phase", "Routine", "compression_options", "subtree_counts"]


class Phase(StrEnum):
    """Who communicates."""

    FLAT = "flat"  # all GPUs in one operation
    INTRA = "intra"  # the GPUs of a machine
    INTER = "inter"  # GPUs of different machines


class Routine(StrEnum):
    """The collective routines of table 4.2."""

    ALL_REDUCE = "allreduce"
    REDUCE_SCATTER = "reduce-scatter"
    REDUCE = "reduce"
    ALL_GATHER = "allgather"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "alltoall"
    GATHER = "gather"


# The routines that can begin a divisible scheme, and the one that each must end with (third pruning rule).
SECOND = MappingProxyType(
    {
        Routine.REDUCE_SCATTER: Routine.ALL_GATHER,
        Routine.REDUCE: Routine.BROADCAST,
        Routine.ALL_TO_ALL: Routine.ALL_GATHER,
        Routine.GATHER: Routine.BROADCAST,
    }
)
# By whether the tensor is compressed: what an indivisible scheme is, and what begins a divisible one (table 4.2).
INDIVISIBLE = MappingProxyType({False: Routine.ALL_REDUCE, True: Routine.ALL_GATHER})
FIRST = MappingProxyType({False: (Routine.REDUCE_SCATTER, Routine.REDUCE), True: (Routine.ALL_TO_ALL, Routine.GATHER)})


@dataclass(frozen=True, slots=True)
class Comp:
    """Compress what each GPU holds."""

    processor: Processor

    def __str__(self) -> str:
        return f"comp.{self.processor}"


@dataclass(frozen=True, slots=True)
class Decomp:
    """Decompress all messages that were received, and add them up."""

    processor: Processor

    def __str__(self) -> str:
        return f"decomp.{self.processor}"


@dataclass(frozen=True, slots=True)
class Comm:
    """Communicate what each GPU holds."""

    phase: Phase
    routine: Routine
    is_compressed: bool

    def __str__(self) -> str:
        return f"{self.phase}.{self.routine}{'*' if self.is_compressed else ''}"


Task = Comp | Decomp | Comm


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """A path through the tree, from Start to End; there is one object of each."""

    tasks: tuple[Task, ...]

    def __reduce__(self):
        return Option.parse, (str(self),)

    def __str__(self) -> str:
        return " ".join(map(str, self.tasks))

    @classmethod
    def parse(cls, text: str) -> "Option":
        """Return the option that prints so; ValueError if the tree has none."""
        option = _by_name().get(text)
        if option is None:
            raise ValueError(f"option is {text!r}; it must be a path of the decision tree, see compression_options()")
        return option

    @property
    def is_compressed(self) -> bool:
        """Whether the tensor is ever compressed (dimension 1)."""
        return any(isinstance(task, Comp) for task in self.tasks)

    @property
    def is_flat(self) -> bool:
        """Whether all GPUs communicate in one phase."""
        return any(isinstance(task, Comm) and task.phase is Phase.FLAT for task in self.tasks)

    @property
    def processors(self) -> frozenset[Processor]:
        """Where it compresses and decompresses."""
        return frozenset(task.processor for task in self.tasks if not isinstance(task, Comm))


@cache
def compression_options() -> tuple[Option, ...]:
    """Return all paths of the tree, flat ones first; the first is a plain all-reduce. Source: figure 4.8."""
    return tuple(Option(tail) for tail in _synchronised(Phase.FLAT, False, _end) + _hierarchical())


def subtree_counts() -> dict[str, int]:
    """Return the number of paths through the sub-trees of figure 4.8, and through the parts of the tree.

    T4' is the second step between machines with a compressed input, which the figure does not name.
    """
    after_inter, pair = _after_inter(Routine.ALL_GATHER), Routine.ALL_GATHER
    return {
        "T1": len(after_inter(False)),
        "T2": len(after_inter(True)),
        "T3": len(_synchronised(Phase.INTER, False, after_inter)),
        "T4": len(_synchronised(Phase.INTER, True, after_inter)),
        "T5": len(_stepped(Phase.INTER, pair, False, after_inter)),
        "T4'": len(_stepped(Phase.INTER, pair, True, after_inter)),
        "flat": len(_synchronised(Phase.FLAT, False, _end)),
        "hierarchical": len(_hierarchical()),
    }


@cache
def _by_name() -> dict[str, Option]:
    return {str(option): option for option in compression_options()}


# A tail is what is left of a path. The functions return all tails of a tensor that is compressed or is not; `rest`
# gives those that follow what they describe.
Tails = list[tuple[Task, ...]]
Rest = Callable[[bool], Tails]


def _end(is_compressed: bool) -> Tails:
    return [(Decomp(processor),) for processor in Processor] if is_compressed else [()]


def _stepped(phase: Phase, routine: Routine, is_compressed: bool, rest: Rest) -> Tails:
    """Communicate once: a tensor may be compressed before, or decompressed, and compressed again (dimension 4)."""
    if is_compressed:
        kept = [(Comm(phase, routine, True), *tail) for tail in rest(True)]
        return kept + _decompressed(_stepped(phase, routine, False, rest))
    compressed = [(Comm(phase, routine, True), *tail) for tail in rest(True)]
    return [(Comm(phase, routine, False), *tail) for tail in rest(False)] + _compressed(compressed)


def _synchronised(phase: Phase, is_compressed: bool, rest: Rest) -> Tails:
    """Aggregate among all of a phase, by an indivisible or a divisible scheme (dimension 3)."""

    def sent(compressed: bool) -> Tails:
        tails = [(Comm(phase, INDIVISIBLE[compressed], compressed), *tail) for tail in rest(compressed)]
        for first in FIRST[compressed]:
            seconds = _stepped(phase, SECOND[first], compressed, rest)
            tails += [(Comm(phase, first, compressed), *tail) for tail in seconds]
        return tails

    if is_compressed:
        return sent(True) + _decompressed(_synchronised(phase, False, rest))
    return sent(False) + _compressed(sent(True))


def _hierarchical() -> Tails:
    """Aggregate in a machine by the first step of a divisible scheme, between machines, and in a machine again."""
    paths: Tails = []
    for is_compressed in (False, True):
        for first in FIRST[is_compressed]:
            inter = _synchronised(Phase.INTER, is_compressed, _after_inter(SECOND[first]))
            tails = [(Comm(Phase.INTRA, first, is_compressed), *tail) for tail in inter]
            paths += _compressed(tails) if is_compressed else tails
    return paths


def _after_inter(routine: Routine) -> Rest:
    return lambda is_compressed: _stepped(Phase.INTRA, routine, is_compressed, _end)


def _compressed(tails: Tails) -> Tails:
    return [(Comp(processor), *tail) for processor in Processor for tail in tails]


def _decompressed(tails: Tails) -> Tails:
    return [(Decomp(processor), *tail) for processor in Processor for tail in tails]
