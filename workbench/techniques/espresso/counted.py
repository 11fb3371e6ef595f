"""The rows of what is counted: paths of the tree, figures 4.2, 4.5 and 4.9 in slots, tensors, routines.

The figures print no lengths; those in whole slots are ours. Decompression is left out, as in the figures.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

from workbench.datasets import gradient_traces
from workbench.models.architectures import ARCHITECTURES, architecture
from workbench.rows import value_row
from workbench.timeline import Action, Kind, Timeline
from workbench.timeline.queues import queues_by_definition

from .method import Option, compression_options, subtree_counts
from .method.job import steps_of

__all__ = ["MODELS", "OFFLOADED", "ROUTINES", "example_rows", "examples", "inventory_rows", "option_rows"]
__all__ += ["Example", "all_of_figure_4_2", "num_bubbles", "overheads", "routine_rows", "same_size_rows", "saved_slots"]
__all__ += ["worked_examples"]

Task = tuple[str, int]  # resource and slots
GPU, CPU, LINK, INSIDE, BETWEEN = "GPU", "CPU", "link", "inside", "between"
PROCESSORS = (GPU, CPU)
LETTER = MappingProxyType({Kind.COMPUTE: "T", Kind.ENCODE: "C", Kind.COMMUNICATE: "S"})
SENT = 5  # slots of a tensor of figure 4.2 that is not compressed
SHOWN = 400  # every so many-th option is an example
MIB, MB = 2**20, 1e6
FP32_BYTES = 4
MODELS = ("vgg16", "resnet101", "ugatit", "bert_base", "gpt2", "lstm")
OFFLOADED = MappingProxyType(dict(zip(MODELS, (11, 42, 32, 54, 34, 5), strict=True)))  # tensors of table 4.6


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
        words = [", ".join(f"{name} {slots}" for name, slots in chain) for chain in tasks]
        return {f"T{number}": text for number, text in enumerate(words)}

    @property
    def timeline(self) -> Timeline:
        """When each task runs: T0 is the computation of the first tensor, C0 its compression, S0 that it is sent."""
        chains = [[(self.resources.index(name), slots) for name, slots in chain] for chain in self.chains]
        actions = []
        for tensor, spans in enumerate(queues_by_definition(self.compute, chains)):
            tasks = [(GPU, Kind.COMPUTE)]
            for name, _ in self.chains[tensor]:
                tasks.append((name, Kind.ENCODE if name in PROCESSORS else Kind.COMMUNICATE))
            for (name, kind), (start_s, end_s) in zip(tasks, spans, strict=True):
                actions.append(
                    Action(resource=name, start_s=start_s, end_s=end_s, kind=kind, label=f"{LETTER[kind]}{tensor}")
                )
        return Timeline(actions=tuple(actions), resources=self.resources)


def option_rows() -> list[dict[str, Any]]:
    """Return the number of paths through the tree and through its sub-trees."""
    rows = [value_row("options", len(compression_options()), part="tree")]
    return rows + [value_row("options", count, part=part) for part, count in subtree_counts().items()]


def examples() -> list[str]:
    """Return some options from all parts of the tree."""
    return [str(option) for option in compression_options()[::SHOWN]]


def example_rows(figure: str) -> tuple[list[dict[str, Any]], dict[str, Timeline]]:
    """Return slots of an iteration, overheads by tensor and bubbles of a figure's strategies, and their timelines."""
    worked = worked_examples(figure)
    timelines = {name: example.timeline for name, example in worked.items()}
    rows = []
    for name, timeline in timelines.items():
        rows.append(value_row("iteration_slots", timeline.end_s, strategy=name))
        rows.append(value_row("bubbles", num_bubbles(timeline), strategy=name))
        for tensor in range(len(worked[name].compute)):
            for of, slots in overheads(timeline, tensor).items():
                rows.append(value_row("overhead_slots", slots, of=of, tensor=f"T{tensor}", strategy=name))
    return rows + (_best_rows(worked) if figure == "4.2" else []), timelines


def _best_rows(worked: Mapping[str, Example]) -> list[dict[str, Any]]:
    """Compare figure 4.2's strategies with all 27: by an iteration's time, and by what they save without overlap."""
    every = all_of_figure_4_2()
    least = min(example.timeline.end_s for example in every)
    most_saved = max(map(saved_slots, every))
    rows = [value_row("strategies", len(every))]
    for name, example in worked.items():
        rows.append(value_row("above_least_slots", example.timeline.end_s - least, strategy=name))
        rows.append(value_row("below_most_saved_slots", most_saved - saved_slots(example), strategy=name))
    return rows


def inventory_rows(models: Sequence[str]) -> list[dict[str, Any]]:
    """Return number and size of each model's tensors, as the authors released them and of its architecture."""
    rows = []
    for model in models:
        rows += _sizes("release", model, gradient_traces.load(model).num_elements)
        if model in ARCHITECTURES:
            parameters = architecture(model).parameters()
            rows += _sizes("architecture", model, [parameter.numel() for parameter in parameters])
        if model == "bert_base":
            rows += _sizes("architecture for pre-training", model, _pretrained_sizes())
    return rows


def _sizes(source: str, model: str, num_elements: Sequence[int]) -> list[dict[str, Any]]:
    keys, total_bytes = {"model": model, "inventory": source}, FP32_BYTES * sum(num_elements)
    sizes = [value_row(f"size_{unit}", total_bytes / size, unit, **keys) for unit, size in (("MiB", MIB), ("MB", MB))]
    return [value_row("tensors", len(num_elements), **keys), *sizes]


def _pretrained_sizes() -> list[int]:
    """Return the elements of BERT-base's parameters with both heads of pre-training; shared ones count once."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    with torch.device("meta"):
        return [parameter.numel() for parameter in BertForPreTraining(BertConfig()).parameters()]


def same_size_rows(models: Sequence[str]) -> list[dict[str, Any]]:
    """Return how many tensors of a model have each size, and what algorithm 4.2 looks at.

    "combinations" are those of all tensors, grouped by size as if all had one option; "offloaded_combinations" those of
    the largest tensors, as many as table 4.6 says are to be offloaded; brute force has 2 for each tensor.
    """
    rows = []
    for model in models:
        sizes = sorted(gradient_traces.load(model).num_elements, reverse=True)
        counts = Counter(sizes)
        rows += [value_row("same_size", counts[size], model=model, bytes=FP32_BYTES * size) for size in counts]
        rows.append(value_row("sizes", len(counts), model=model))
        for name, part in (("combinations", sizes), ("offloaded_combinations", sizes[: OFFLOADED[model]])):
            looked_at = math.prod(count + 1 for count in Counter(part).values())
            rows.append(value_row(name, float(looked_at), model=model, way="algorithm 4.2"))
            rows.append(value_row(name, 2.0 ** len(part), model=model, way="brute force"))
    return rows


ROUTINES: Mapping[str, str] = MappingProxyType(
    {
        "Allreduce": "flat.allreduce",
        "Reduce-scatter/Allgather": "flat.reduce-scatter flat.allgather",
        "Reduce/Broadcast": "flat.reduce flat.broadcast",
        "Allgather": "comp.gpu flat.allgather* decomp.gpu",
        "Alltoall/Allgather": "comp.gpu flat.alltoall* decomp.gpu comp.gpu flat.allgather* decomp.gpu",
        "Gather/Broadcast": "comp.gpu flat.gather* decomp.gpu comp.gpu flat.broadcast* decomp.gpu",
    }
)
"""The schemes of table 4.2, for machines of one GPU: three without compression, three with it."""


def routine_rows(*, num_gpus: Sequence[int], tensor_bytes: float, ratio: float) -> list[dict[str, Any]]:
    """Return what each scheme moves over the busiest link, and how often a GPU compresses and decompresses.

    Args:
        num_gpus: of one GPU a machine.
        tensor_bytes: of the tensor, M.
        ratio: of a compressed tensor's bytes to M.
    """
    rows = []
    for scheme, text in ROUTINES.items():
        option = Option.parse(text)
        kind = "compressed" if option.is_compressed else "uncompressed"
        keys = {"scheme": scheme, "tensor": kind}
        for gpus in num_gpus:
            steps = steps_of(option, gpus, 1)
            sent = {name: sum(s.times * s.part for s in steps if s.kind == name) for name in {s.kind for s in steps}}
            moved = sent.get("send", 0.0) + ratio * sent.get("send compressed", 0.0)
            rows.append(value_row("busiest_link_bytes", moved * tensor_bytes, "B", gpus=gpus, **keys))
            rows.append(value_row("codec_calls", sum(not s.kind.startswith("send") for s in steps), gpus=gpus, **keys))
            rows.append(value_row("decoded_tensors", sent.get("decode", 0.0), gpus=gpus, **keys))
    return rows


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
    by_panel = {}
    for panel, slots_of_t1 in (("a", 1), ("b", 7), ("c", 1), ("d", 5)):
        is_flat = panel in "ab"
        resources, other = (
            ((GPU, LINK), ((LINK, 2),)) if is_flat else ((GPU, INSIDE, BETWEEN), ((INSIDE, 1), (BETWEEN, 1)))
        )
        for name, chain in (schemes if is_flat else places).items():
            example = Example(resources=resources, compute=(2, slots_of_t1), chains=(chain, other))
            by_panel[f"{panel}: {name}"] = example
    return by_panel


def _figure_4_9() -> dict[str, Example]:
    plain, compressed = [((LINK, slots),) for slots in (2, 5, 5)], ((GPU, 1), (LINK, 1))
    by_panel = {}
    for name, chosen in (("a: none", None), ("a: T0", 0), ("b: T1", 1), ("c: T2", 2)):
        chains = tuple(compressed if tensor == chosen else chain for tensor, chain in enumerate(plain))
        by_panel[name] = Example(resources=(GPU, LINK), compute=(1, 4, 2), chains=chains)
    return by_panel


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
    slots = {kind: _slots(timeline, kind, tensor) for kind in (Kind.COMMUNICATE, Kind.ENCODE)}
    return {
        "communication": len(slots[Kind.COMMUNICATE] - computed),
        "compression": len(slots[Kind.ENCODE] - computed - sent),
    }


def num_bubbles(timeline: Timeline) -> int:
    """Count the gaps between communications."""
    sent = _slots(timeline, Kind.COMMUNICATE)
    return sum(slot + 1 not in sent for slot in sent) - 1


def saved_slots(example: Example) -> int:
    """Return by how much figure 4.2's communication is shorter, less the time of compression, without any overlap."""
    return SENT * len(example.chains) - sum(slots for chain in example.chains for _, slots in chain)
