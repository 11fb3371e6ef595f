"""The rows of what is simulated on the paper's two testbeds, with gradients and constants that its authors released.

On the server the text says how long ResNet50's iteration is on one GPU and what communication adds on eight: its
computation and the links are calibrated on these. The other models have their released times; as in the authors'
planner, a group counts one decoding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from types import MappingProxyType
from typing import Any

from workbench.rows import value_row
from workbench.study.thesis import paper_codec, scaled
from workbench.timeline.gradients import Gradients

from .cost import (
    ALONE_S,
    CUPCAKE,
    DDP_BUCKETS,
    FP16,
    FP32_BUCKETS,
    FP32_FUSED,
    GRACE,
    HIPRESS,
    OVERHEAD_S,
    Costs,
    Strategy,
    alone_s,
    costs_of,
    costs_on,
    gradients_of,
    machines_of,
    strategies,
)
from .method import iteration_time, optimal_fusion, timeline
from .method.problem import FREE

__all__ = ["CALIBRATION", "CAUSES", "CODECS", "breakdown_rows", "cause_rows", "rival_rows", "scaling_rows"]

CODECS = ("randomk", "dgc", "efsignsgd", "onebit")
CALIBRATION = MappingProxyType({"ResNet50 on one GPU": ALONE_S, "FP32 adds": OVERHEAD_S, "source": "section 5.2.3"})
SINGLE_SPLIT, BUCKETS, EVEN, LINE = "Single split", "Bucket fusion", "Evenly split", "Cupcake, α + β·x"


def breakdown_rows(codecs: Sequence[str]) -> list[dict[str, Any]]:
    """Return what ResNet50's iteration on the server consists of, without compression and tensor by tensor.

    Communication is what neither computation nor compression hides.
    """
    gradients, rows = gradients_of("resnet50"), []
    for codec in codecs:
        costs = costs_of(codec, "server")
        by_rule = strategies(gradients, costs)
        for name in (FP32_BUCKETS, GRACE, CUPCAKE):
            if name != FP32_BUCKETS or codec == codecs[0]:
                rows += _breakdown(gradients, costs, by_rule[name], "" if name == FP32_BUCKETS else codec)
    return rows


def _breakdown(gradients: Gradients, costs: Costs, strategy: Strategy, codec: str) -> list[dict[str, Any]]:
    spans = timeline(costs.problem(gradients), strategy.fusion, strategy.compressed)
    compressing_s = sum(span.end_s - span.start_s for span in spans if span.what in ("encode", "decode"))
    computing_s = alone_s(gradients)
    parts = {
        "computation": computing_s,
        "compression": compressing_s,
        "communication": strategy.iteration_s - computing_s - compressing_s,
    }
    keys = {"scheme": strategy.name} | ({"codec": codec} if codec else {})
    rows = [value_row("part_s", seconds, "s", part=part, **keys) for part, seconds in parts.items()]
    return [*rows, value_row("iteration_s", strategy.iteration_s, "s", **keys)]


def scaling_rows(*, models: Sequence[str], codecs: Sequence[str], testbed: str) -> list[dict[str, Any]]:
    """Return scaling factors of every scheme, and what Cupcake gains; `largest_gain` is that of the best codec.

    `slower_cells` counts the models and codecs with which Cupcake is slower than without compression.
    """
    rows = []
    for model in models:
        gradients = gradients_of(model)
        gains: dict[str, list[float]] = {}
        for codec in codecs:
            by_rule, keys = strategies(gradients, costs_of(codec, testbed)), {"model": model, "codec": codec}
            for name in (FP32_BUCKETS, FP32_FUSED, FP16, GRACE, HIPRESS, DDP_BUCKETS, CUPCAKE):
                factor = alone_s(gradients) / by_rule[name].iteration_s
                rows.append(value_row("scaling_factor", factor, scheme=name, **keys))
                gain = by_rule[name].iteration_s / by_rule[CUPCAKE].iteration_s
                gains.setdefault(name, []).append(gain)
                rows.append(value_row("gain", gain, over=name, **keys))
        slower = [grace > plain for grace, plain in zip(gains[GRACE], gains[FP32_BUCKETS], strict=True)]
        rows.append(value_row("grace_slower_codecs", sum(slower) / len(slower), model=model))
        gains["layer-wise compression"] = list(map(min, gains[GRACE], gains[HIPRESS]))
        rows += [value_row("largest_gain", max(by_codec), model=model, over=name) for name, by_codec in gains.items()]
    for name in (FP32_BUCKETS, "layer-wise compression"):
        rows.append(value_row("largest_of_all", max(_gains(rows, "largest_gain", name)), over=name))
    for name in (FP32_BUCKETS, FP32_FUSED, FP16):
        rows.append(value_row("slower_cells", sum(gain < 1 for gain in _gains(rows, "gain", name)), over=name))
    return [*rows, value_row("cells", len(models) * len(codecs))]


def _gains(rows: Sequence[Mapping[str, Any]], quantity: str, over: str) -> list[float]:
    return [row["value"] for row in rows if row["quantity"] == quantity and row["over"] == over]


EACH, FORGETS = "each message decoded", "HiPress forgets decoding"
UNKNOWN = "each message decoded, HiPress counts one"
TOKENS = MappingProxyType({f"BERT-base computes {tokens:,} tokens": tokens / 1024 for tokens in (1536, 3072)})
"""4 or 8 sequences of 384 (table 3.1, the authors' script), over the tokens that fit their times (table 4.4)."""
PAIRS = tuple(product(("server", "cluster"), ("resnet50", "resnet101", "bert_base")))
CAUSES: Mapping[str, Sequence[tuple[str, str]]] = MappingProxyType(
    dict.fromkeys((EACH, FORGETS, UNKNOWN), PAIRS)
    | dict.fromkeys(TOKENS, [pair for pair in PAIRS if pair[1] == "bert_base"])
)
"""One thing changed at a time, by testbed and model."""


def cause_rows(*, causes: Sequence[str], codecs: Sequence[str]) -> list[dict[str, Any]]:
    """Return Cupcake's largest gains with one thing changed at a time; `cause` names it."""
    rows = []
    for cause in causes:
        for testbed, model in CAUSES[cause]:
            gradients, machines = scaled(gradients_of(model), TOKENS.get(cause, 1.0)), machines_of(testbed)
            gains: dict[str, list[float]] = {}
            for codec in codecs:
                once = costs_on(paper_codec(codec), machines)
                costs = costs_on(replace(paper_codec(codec), decodes_at_once=False), machines)
                costs = costs if cause in (EACH, UNKNOWN) else once
                weighed = {FORGETS: replace(once, decode=FREE), UNKNOWN: once}.get(cause, costs)
                by_rule = strategies(gradients, costs, weighed=weighed)
                keys = {"cause": cause, "testbed": testbed, "model": model, "codec": codec}
                for name in (FP32_BUCKETS, GRACE, HIPRESS):
                    gains.setdefault(name, []).append(by_rule[name].iteration_s / by_rule[CUPCAKE].iteration_s)
                    factor = alone_s(gradients) / by_rule[name].iteration_s
                    rows.append(value_row("scaling_factor", factor, scheme=name, **keys))
            keys = {"cause": cause, "testbed": testbed, "model": model}
            rows += [value_row("largest_gain", max(values), over=name, **keys) for name, values in gains.items()]
    return rows


def rival_rows(*, models: Sequence[str], codec: str, testbed: str) -> list[dict[str, Any]]:
    """Return Cupcake's optimum beside simpler rules of fusion, and beside the optimum of the model α + β·x."""
    rows = []
    gains: dict[str, list[float]] = {}
    for model in models:
        gradients, costs = gradients_of(model), costs_of(codec, testbed)
        by_rule, whole = strategies(gradients, costs), costs.problem(gradients)
        line = optimal_fusion(costs.as_in_the_paper.problem(gradients))
        seconds = {name: by_rule[name].iteration_s for name in (CUPCAKE, DDP_BUCKETS, BUCKETS, EVEN, SINGLE_SPLIT)}
        fusions = {name: by_rule[name].fusion for name in seconds} | {LINE: line}
        seconds[LINE] = iteration_time(whole, line)
        for name, iteration_s in seconds.items():
            rows.append(value_row("scaling_factor", alone_s(gradients) / iteration_s, model=model, scheme=name))
            rows.append(value_row("groups", len(fusions[name]), model=model, scheme=name))
            gain = iteration_s / seconds[CUPCAKE]
            gains.setdefault(name, []).append(gain)
            rows.append(value_row("gain", gain, model=model, over=name))
        factor = alone_s(gradients) / by_rule[FP32_BUCKETS].iteration_s
        rows.append(value_row("scaling_factor", factor, model=model, scheme=FP32_BUCKETS))
        rows += _unlike(gradients, fusions[CUPCAKE], model)
    return [*rows, *(value_row("largest_gain", max(values), over=name) for name, values in gains.items())]


def _unlike(gradients: Gradients, fusion: Sequence[int], model: str) -> list[dict[str, Any]]:
    """Return how unlike the optimum's groups are: the most over the fewest tensors, and bytes."""
    sizes = [(end - start, sum(gradients.size_bytes[start:end])) for start, end in pairwise((0, *fusion))]
    names = ("tensors_largest_over_smallest", "bytes_largest_over_smallest")
    pairs = zip(names, zip(*sizes, strict=True), strict=True)
    return [value_row(name, max(values) / min(values), model=model) for name, values in pairs]
