"""The rows of what is counted: paths of the tree, figures 4.2, 4.5 and 4.9 in slots, tensors, routines."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from workbench.datasets import gradient_traces
from workbench.models.architectures import ARCHITECTURES, architecture
from workbench.study.rows import value_row
from workbench.timeline import Timeline

from .cost import steps_of
from .method import Option, compression_options, subtree_counts
from .method.worked_examples import Example, all_of_figure_4_2, num_bubbles, overheads, saved_slots, worked_examples

__all__ = ["MODELS", "OFFLOADED", "ROUTINES", "example_rows", "examples", "inventory_rows", "option_rows"]
__all__ += ["routine_rows", "same_size_rows"]

SHOWN = 400  # every so many-th option is an example
MIB, MB = 2**20, 1e6
FP32_BYTES = 4
MODELS = ("vgg16", "resnet101", "ugatit", "bert_base", "gpt2", "lstm")
OFFLOADED = MappingProxyType(dict(zip(MODELS, (11, 42, 32, 54, 34, 5), strict=True)))  # tensors of table 4.6


def option_rows() -> list[dict[str, Any]]:
    """Return the number of paths through the tree and through its sub-trees."""
    rows = [value_row("options", len(compression_options()), part="tree")]
    return rows + [value_row("options", count, part=part) for part, count in subtree_counts().items()]


def examples() -> list[str]:
    """Return some options from all parts of the tree."""
    return [str(option) for option in compression_options()[::SHOWN]]


def example_rows(figure: str) -> tuple[list[dict[str, Any]], dict[str, Timeline]]:
    """Return slots of an iteration, overheads by tensor and bubbles of a figure's strategies, and their timelines."""
    found = worked_examples(figure)
    timelines = {name: example.timeline for name, example in found.items()}
    rows = []
    for name, timeline in timelines.items():
        rows.append(value_row("iteration_slots", timeline.end_s, strategy=name))
        rows.append(value_row("bubbles", num_bubbles(timeline), strategy=name))
        for tensor in range(len(found[name].compute)):
            for of, slots in overheads(timeline, tensor).items():
                rows.append(value_row("overhead_slots", slots, of=of, tensor=f"T{tensor}", strategy=name))
    return rows + (_best_rows(found) if figure == "4.2" else []), timelines


def _best_rows(found: Mapping[str, Example]) -> list[dict[str, Any]]:
    """Compare figure 4.2's strategies with all 27: by an iteration's time, and by what they save without overlap."""
    every = all_of_figure_4_2()
    least = min(example.timeline.end_s for example in every)
    most_saved = max(map(saved_slots, every))
    rows = [value_row("strategies", len(every))]
    for name, example in found.items():
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
