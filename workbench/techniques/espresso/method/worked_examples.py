"""Figures 4.2, 4.5 and 4.9: a few tensors in whole slots, so that their timelines can be read by eye.

The figures print no lengths; these are ours. Decompression is left out, as in the figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from workbench.timeline import Action, Kind, Timeline
from workbench.timeline.queues import queues_by_definition

__all__ = ["Example", "all_of_figure_4_2", "num_bubbles", "overheads", "saved_slots", "worked_examples"]

Task = tuple[str, int]  # resource and slots
GPU, CPU, LINK, INSIDE, BETWEEN = "GPU", "CPU", "link", "inside", "between"
PROCESSORS = (GPU, CPU)
LETTER = MappingProxyType({Kind.COMPUTE: "T", Kind.ENCODE: "C", Kind.COMMUNICATE: "S"})
SENT = 5  # slots of a tensor of figure 4.2 that is not compressed


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A strategy of a figure, in whole slots."""

    resources: tuple[str, ...]  # the first is the GPU
    compute: tuple[int, ...]  # slots of each tensor
    chains: tuple[tuple[Task, ...], ...]  # what follows its computation

    @property
    def lengths(self) -> dict[str, str]:
        """The tasks of each tensor with their slots, in words."""
        tasks = [(("compute", slots), *chain) for slots, chain in zip(self.compute, self.chains, strict=True)]
        return {f"T{number}": ", ".join(f"{name} {slots}" for name, slots in each) for number, each in enumerate(tasks)}

    @property
    def timeline(self) -> Timeline:
        """When each task runs: T0 is the computation of the first tensor, C0 its compression, S0 that it is sent."""
        chains = [[(self.resources.index(name), slots) for name, slots in chain] for chain in self.chains]
        actions = []
        for tensor, spans in enumerate(queues_by_definition(self.compute, chains)):
            tasks = [(GPU, Kind.COMPUTE), *((name, _kind(name)) for name, _ in self.chains[tensor])]
            for (name, kind), (start_s, end_s) in zip(tasks, spans, strict=True):
                actions.append(
                    Action(resource=name, start_s=start_s, end_s=end_s, kind=kind, label=f"{LETTER[kind]}{tensor}")
                )
        return Timeline(actions=tuple(actions), resources=self.resources)


def _kind(resource: str) -> Kind:
    return Kind.ENCODE if resource in PROCESSORS else Kind.COMMUNICATE


def worked_examples(figure: str) -> dict[str, Example]:
    """Return the strategies of a figure, "4.2", "4.5" or "4.9", by name."""
    return {"4.2": _figure_4_2, "4.5": _figure_4_5, "4.9": _figure_4_9}[figure]()


def _figure_4_2() -> dict[str, Example]:
    names = {"a: none": "---", "b: T2 on the GPU": "--G", "c: all on the GPU": "GGG", "d: all on the CPU": "CCC"}
    names |= {"e: T1 on the CPU, T2 on the GPU": "-CG"}
    return {name: _three_tensors(places) for name, places in names.items()}


def _three_tensors(places: Sequence[str]) -> Example:
    """Compress each of three equal tensors nowhere (-), on the GPU (G) or on the CPU (C)."""
    chains = {"-": ((LINK, SENT),), "G": ((GPU, 3), (LINK, 1)), "C": ((CPU, 5), (LINK, 1))}
    return Example(resources=(GPU, CPU, LINK), compute=(3, 3, 3), chains=tuple(chains[place] for place in places))


def _figure_4_5() -> dict[str, Example]:
    schemes = {"indivisible": ((GPU, 1), (LINK, 6)), "divisible": ((GPU, 1), (LINK, 2)) * 2}
    places = {
        "between machines only": ((INSIDE, 4), (GPU, 1), (BETWEEN, 1)),
        "inside and between": ((GPU, 2), (INSIDE, 1), (GPU, 1), (BETWEEN, 1)),
    }
    found = {}
    for panel, slots_of_t1 in (("a", 1), ("b", 7), ("c", 1), ("d", 5)):
        is_flat = panel in "ab"
        resources, other = (
            ((GPU, LINK), ((LINK, 2),)) if is_flat else ((GPU, INSIDE, BETWEEN), ((INSIDE, 1), (BETWEEN, 1)))
        )
        for name, chain in (schemes if is_flat else places).items():
            example = Example(resources=resources, compute=(2, slots_of_t1), chains=(chain, other))
            found[f"{panel}: {name}"] = example
    return found


def _figure_4_9() -> dict[str, Example]:
    plain, compressed = [((LINK, slots),) for slots in (2, 5, 5)], ((GPU, 1), (LINK, 1))
    found = {}
    for name, chosen in (("a: none", None), ("a: T0", 0), ("b: T1", 1), ("c: T2", 2)):
        chains = tuple(compressed if tensor == chosen else chain for tensor, chain in enumerate(plain))
        found[name] = Example(resources=(GPU, LINK), compute=(1, 4, 2), chains=chains)
    return found


def all_of_figure_4_2() -> list[Example]:
    """Return every strategy of its three tensors: each is compressed nowhere, on the GPU or on the CPU."""
    return [_three_tensors(places) for places in product("-GC", repeat=3)]


def _slots(timeline: Timeline, kind: Kind, tensor: int | None = None) -> set[int]:
    """Return the slots in which something of a kind is done, for any tensor or for one."""
    chosen = [action for action in timeline.actions if action.kind is kind]
    of_tensor = [action for action in chosen if tensor is None or action.label == f"{LETTER[kind]}{tensor}"]
    return {slot for action in of_tensor for slot in range(int(action.start_s), int(action.end_s))}


def overheads(timeline: Timeline, tensor: int) -> dict[str, int]:
    """Count the slots of a tensor's communication and compression that nothing hides (section 4.3)."""
    computed, sent = _slots(timeline, Kind.COMPUTE), _slots(timeline, Kind.COMMUNICATE)
    own = {kind: _slots(timeline, kind, tensor) for kind in (Kind.COMMUNICATE, Kind.ENCODE)}
    return {
        "communication": len(own[Kind.COMMUNICATE] - computed),
        "compression": len(own[Kind.ENCODE] - computed - sent),
    }


def num_bubbles(timeline: Timeline) -> int:
    """Count the gaps between communications."""
    sent = _slots(timeline, Kind.COMMUNICATE)
    return sum(slot + 1 not in sent for slot in sent) - 1


def saved_slots(example: Example) -> int:
    """Return by how much figure 4.2's communication is shorter, less the time of compression, without any overlap."""
    return SENT * len(example.chains) - sum(slots for chain in example.chains for _, slots in chain)
