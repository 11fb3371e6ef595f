"""The rows of what is counted: the worked examples, the optima of random problems, and the models' tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.datasets import gradient_traces
from workbench.models.architectures import ARCHITECTURES, architecture
from workbench.models.gradients import of_module
from workbench.rows import value_row

from .method import (
    FlatThenLinear,
    FusionProblem,
    Linear,
    Pruning,
    Span,
    brute_force_fusion,
    iteration_time,
    optimal_fusion,
    search_fusion,
    timeline,
)
from .method.problem import FREE, Cost

__all__ = ["EXAMPLE", "exactness_rows", "example_rows", "examples", "inventory_rows"]

# Slots; the numbers of the paper's figures are lost, and these show the same: compressing each tensor gains nothing.
EXAMPLE = FusionProblem((2,) * 5, (3,) * 5, 0, Linear(1, 0), Linear(1, 1 / 3), send_plain=Linear(0, 1))
ONE_GROUP, LAYER_WISE, FUSED = "one group", "layer-wise", "fused best"
LINE, FLAT, ALL = "α + β·x", "flat, then linear", "decoding, CPU, two links and limits"  # kinds of costs


def examples(figure: str) -> dict[str, list[Span]]:
    """Return the timelines of figure "5.1" or "5.3", by name."""
    num = EXAMPLE.num_tensors
    layer_wise, plain = tuple(range(1, num + 1)), (False,) * num
    if figure == "5.3":
        fusions = {ONE_GROUP: (num,), LAYER_WISE: layer_wise, FUSED: optimal_fusion(EXAMPLE)}
        return {name: timeline(EXAMPLE, fusion) for name, fusion in fusions.items()}
    waiting = FusionProblem((sum(EXAMPLE.backward_s), *(0,) * (num - 1)), EXAMPLE.size_bytes, 0, FREE, Linear(0, 1))
    return {
        "no overlap": timeline(waiting, layer_wise, plain),
        "WFBP": timeline(EXAMPLE, layer_wise, plain),
        LAYER_WISE: timeline(EXAMPLE, layer_wise),
    }


def example_rows(timelines: Mapping[str, Sequence[Span]]) -> list[dict[str, Any]]:
    """Return the iterations of timelines, in slots."""
    return [value_row("slots", max(span.end_s for span in spans), scheme=name) for name, spans in timelines.items()]


def exactness_rows(*, num_problems: int, most_tensors: int, seed: int) -> list[dict[str, Any]]:
    """Return how often each search misses the optimum of random problems, found by brute force, and by how much.

    Times and sizes are small whole numbers, some 0, so that there are ties. `fewest_tensors` is the size of the
    smallest problem with a miss; its other columns write the problem down.
    """
    draw, rows = np.random.default_rng(seed), []
    for costs in (LINE, FLAT, ALL):
        misses: dict[str, list[tuple[float, FusionProblem, tuple[int, ...]]]] = {}
        for _ in range(num_problems):
            problem = _random_problem(draw, costs, most_tensors)
            least_s = iteration_time(problem, brute_force_fusion(problem))
            for name, fusion in _searched(problem, costs).items():
                found_s = iteration_time(problem, fusion) if fusion else np.inf
                missed = misses.setdefault(name, [])
                if found_s > least_s * (1 + 1e-9):
                    missed.append((found_s / least_s - 1, problem, fusion))
        for name, missed in misses.items():
            keys = {"costs": costs, "search": name}
            rows.append(value_row("misses", len(missed), **keys))
            rows.append(value_row("problems", num_problems, **keys))
            finite = [excess for excess, *_ in missed if np.isfinite(excess)]
            rows.append(value_row("largest_excess", max(finite, default=0.0), **keys))
            if missed:
                _, problem, fusion = min(missed, key=lambda miss: (miss[1].num_tensors, sum(miss[1].size_bytes)))
                rows.append(value_row("fewest_tensors", problem.num_tensors, **keys, **_written(problem, fusion)))
    return rows


def _written(problem: FusionProblem, fusion: tuple[int, ...]) -> dict[str, str]:
    best = str(brute_force_fusion(problem))
    tensors = f"backward {problem.backward_s}, bytes {problem.size_bytes}, forward {problem.forward_s}"
    return {"found": str(fusion), "best": best, "tensors": tensors, "encode": str(problem.compress.numbers)} | {
        "send": str(problem.communicate.numbers)
    }


def _searched(problem: FusionProblem, costs: str) -> dict[str, tuple[int, ...]]:
    if costs == ALL:  # algorithm 5.1 knows no more than encoding and sending
        return {"optimal_fusion": optimal_fusion(problem)}
    return {
        "optimal_fusion": optimal_fusion(problem),
        "algorithm 5.1 as printed": search_fusion(problem, as_printed=True),
        "algorithm 5.1": search_fusion(problem),
        "pruning 1 alone": search_fusion(problem, Pruning.OUTCOME),
        "pruning 2 alone": search_fusion(problem, Pruning.OVERLAP),
    }


def _random_problem(draw: np.random.Generator, costs: str, most_tensors: int) -> FusionProblem:
    num = int(draw.integers(1, most_tensors + 1))
    backward_s, size_bytes = draw.integers(0, 4, num).tolist(), draw.integers(0, 5, num).tolist()

    def cost(least: int = 0) -> Cost:
        if costs == LINE or draw.random() < 0.25:
            return Linear(*draw.integers((0, least), (3, 3 + least)).tolist())
        return FlatThenLinear(*draw.integers((0, 0, least), (6, 9, 3 + least)).tolist())

    given: dict[str, Any] = {"compress": cost(), "communicate": cost(1)}
    if costs == ALL:
        given |= {name: cost() for name in ("decode", "onward") if draw.random() < 0.5}
        given |= {"on_cpu": bool(draw.random() < 0.5)}
        given |= {"largest_bytes": int(draw.integers(4, 13))} if draw.random() < 0.5 else {}
    return FusionProblem(backward_s, size_bytes, int(draw.integers(1, 3)), **given)


def inventory_rows(models: Sequence[str]) -> list[dict[str, Any]]:
    """Return the tensors of models by the authors' release, and by the architecture where we have it."""
    rows = []
    for model in models:
        traced = gradient_traces.load(model)
        rows.append(value_row("tensors", traced.num_tensors, model=model, source_of="release"))
        if model in ARCHITECTURES:
            built = of_module(architecture(model), backward_s=traced.backward_s)
            rows.append(value_row("tensors", built.num_tensors, model=model, source_of="architecture"))
    return rows
