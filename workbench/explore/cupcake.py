"""The lesson on what to fuse: five tensors to cut by hand, and exercises. Its times are in ms, its sizes in MB."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, zip_longest
from math import isclose
from typing import Any

import ipywidgets
import numpy as np
from matplotlib.figure import Figure

from workbench.explore.code_exercises import check_on_cases, check_on_ranks, guarded
from workbench.explore.exercises import Exercise, Feedback, Mistake
from workbench.explore.explorer import Control, Explorer, steps
from workbench.techniques.cupcake import method
from workbench.techniques.cupcake.method import FusionProblem, Linear, iteration_time, timeline
from workbench.techniques.cupcake.plots import draw_examples

__all__ = ["FIVE_TENSORS", "Compared", "FusionExplorer", "best_of_three", "check_fused_mean", "check_link_free"]
__all__ += ["compare", "written"]

FIVE_TENSORS = FusionProblem((3, 2, 2, 3, 2), (8, 2, 1, 6, 1), 0, Linear(1, 0.1), Linear(0.5, 0.5))
NUM_CASES = 60  # on which a reader's function is checked


def written(fusion: tuple[int, ...]) -> str:
    """Write a fusion for people: T0–1 | T2."""
    groups = pairwise((0, *fusion))
    return " | ".join(f"T{start}" if end - start == 1 else f"T{start}–{end - 1}" for start, end in groups)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """A reader's fusion and the best one."""

    problem: FusionProblem
    chosen: tuple[int, ...]
    best: tuple[int, ...]

    @property
    def ms(self) -> float:
        """An iteration with the reader's fusion."""
        return iteration_time(self.problem, self.chosen)


def compare(*, encode: float, encode_mb: float, send: float, send_mb: float, **cuts: bool) -> Compared:
    """Cut the five tensors behind T0 to T3, cut_0 to cut_3, at costs in ms a group and a MB."""
    problem = replace(FIVE_TENSORS, compress=Linear(encode, encode_mb), communicate=Linear(send, send_mb))
    chosen = (*(end for end in range(1, 5) if cuts[f"cut_{end - 1}"]), 5)
    return Compared(problem=problem, chosen=chosen, best=method.optimal_fusion(problem))


def _draw(compared: Compared) -> Figure:
    timelines = {}
    for name, fusion in (("yours", compared.chosen), ("the best", compared.best)):
        ms = iteration_time(compared.problem, fusion)
        timelines[f"{name}, {ms:.2f} ms: {written(fusion)}"] = timeline(compared.problem, fusion)
    return draw_examples(timelines, unit="ms")


def _describe(compared: Compared) -> str:
    ms, best_ms = compared.ms, iteration_time(compared.problem, compared.best)
    left = f"{ms - best_ms:.2f} ms ({100 * (1 - best_ms / ms):.0f} %) are left"
    return f"Yours takes {ms:.2f} ms, the best {best_ms:.2f} ms: {'nothing is left' if isclose(ms, best_ms) else left}."


class _Cut(Control):
    def widget(self) -> ipywidgets.Widget:
        button = ipywidgets.ToggleButton(value=self.value, tooltip=self.help, layout=ipywidgets.Layout(width="5em"))
        ipywidgets.dlink((button, "value"), (button, "description"), lambda is_cut: "cut" if is_cut else "fused")
        return button


class FusionExplorer(Explorer[Compared]):
    """The five tensors in one row with a button between any two, and the costs."""

    def __init__(self) -> None:
        cut = partial(_Cut, options=(("fused", False), ("cut", True)), value=True, is_slider=False)
        cuts = {f"cut_{t}": cut(label=f"T{t}", help=f"Whether a group ends behind T{t}.") for t in range(4)}
        costs = {
            "encode": steps("encode", (0, 0.25, 0.5, 1, 2, 4), value=1, help="ms to encode a group of any size."),
            "encode_mb": steps("encode/MB", (0, 0.05, 0.1, 0.2, 0.4), value=0.1, help="ms more for each MB."),
            "send": steps("send", (0, 0.25, 0.5, 1, 2), value=0.5, help="ms to send a group of any size."),
            "send_mb": steps("send/MB", (0.1, 0.25, 0.5, 1, 2), value=0.5, help="ms more for each MB."),
        }
        super().__init__(
            compare, _draw, describe=_describe, effect=lambda compared: round(compared.ms, 9), **cuts, **costs
        )
        tensors = [ipywidgets.Label(f"T{t}: {size} MB") for t, size in enumerate(FIVE_TENSORS.size_bytes)]
        pairs = zip_longest(tensors, (self._widgets[name] for name in cuts))
        items = [item for pair in pairs for item in pair if item is not None]
        row = ipywidgets.Box(items, layout=ipywidgets.Layout(flex_flow="row wrap"))
        self.widget.children = [row, *self.widget.children[len(cuts) :]]


def best_of_three() -> Exercise:
    """Return the exercise on the best fusion of three tensors."""
    problem = FusionProblem((1, 1, 1), (1, 1, 1), 0, Linear(1, 0), Linear(0, 1))
    return Exercise(
        question="Three tensors are computed in 1 ms each. Encoding a group takes 1 ms, sending it 1 ms a tensor. "
        "How many ms does an iteration take with the best of the four fusions?",
        answer=iteration_time(problem, method.optimal_fusion(problem)),
        hint="Draw the device and the link. The device encodes a group before it computes the next one.",
        reason="T0–1 are encoded at 3 ms and sent at 5, T2 is encoded at 5 and sent at 6. The other fusions take 7.",
        mistakes=(Mistake(answer=7.0, hint="Three of the four fusions take as long. Try the fourth."),),
    )


MISTAKES = {
    "link": "Is the link free when the group is encoded?",
    "startup": "Each of the k groups is encoded by itself.",
    "bytes": "Only the last group is sent now: tensors i to j - 1.",
}


def _link_free(problem: FusionProblem, before: dict[int, float], j: int, k: int, *, mistake: str) -> float:
    encode, until = problem.compress, problem.until_bytes
    assert isinstance(encode, Linear)
    startups = 1 if mistake == "startup" else k
    encoded = problem.ready_s[j] + startups * encode.startup_s + encode.s_per_byte * until[j]
    free = {i: 0.0 if mistake == "link" else free for i, free in before.items()}
    sizes = {i: until[j] - (0.0 if mistake == "bytes" else until[i]) for i in before}
    return min(max(encoded, free[i]) + problem.communicate(sizes[i]) for i in before)


def _least(link_free: Callable[..., float], problem: FusionProblem) -> float:
    before, times_s = {0: 0.0}, []
    for k in range(1, problem.num_tensors + 1):
        ends = range(k, problem.num_tensors + 1)
        before = {j: link_free(problem, {i: free for i, free in before.items() if i < j}, j, k) for j in ends}
        times_s.append(before[problem.num_tensors])
    return min(times_s)


def _told(case: tuple[Any, ...], answer: object, least_s: Any) -> str:
    (p,) = case
    best = f"{written(method.brute_force_fusion(p))} is best and takes {least_s:g} s"
    return f"{p.backward_s} s, {p.size_bytes} bytes, {p.compress}, {p.communicate}: found {answer}, but {best}."


def check_link_free(link_free: Callable[..., float] | None) -> Feedback:
    """Check a reader's D(j, k), `link_free(problem, before, j, k)`, against brute force on random problems."""
    draw, problems = np.random.default_rng(0), []
    for num in sorted(draw.integers(2, 7, NUM_CASES)):
        encode, send = (Linear(*draw.integers(1, 4, 2).tolist()) for _ in range(2))
        backward_s, size_bytes = draw.integers(1, 5, (2, num)).tolist()
        problems.append(FusionProblem(backward_s, size_bytes, 0, encode, send))
    return check_on_cases(
        partial(_least, guarded(link_free)),
        [(p,) for p in problems],
        [iteration_time(p, method.brute_force_fusion(p)) for p in problems],
        mistakes={hint: partial(_least, partial(_link_free, mistake=name)) for name, hint in MISTAKES.items()},
        reason=f"The least D(N, k) is that of brute force in {NUM_CASES} cases.",
        says=_told,
    )


FUSED_HINTS = {
    "sum": "Asked is the mean over the ranks.",
    "own": "Nothing was sent: these are the rank's own gradients.",
    "layer-wise": "The number of all-reduces is that of the gradients: put each group into one tensor.",
    "one group": "One all-reduce is one group. Where do the groups end?",
    "flat": "A gradient comes back in its own shape.",
}
FUSIONS = (2, 4), (1, 3, 4)  # of the four gradients that are fused on ranks
SHAPES = (2, 2), (3,), (1, 2), (2,)


def _fused_mean(gradients: list, fusion: tuple[int, ...], *, mistake: str = "") -> list:
    """Return the means over all ranks, or make a usual mistake."""
    import torch  # on the ranks only: planning needs none
    import torch.distributed as dist

    ends = {"layer-wise": range(1, len(gradients) + 1), "one group": (len(gradients),)}.get(mistake, fusion)
    means: list[torch.Tensor] = []
    for start, end in pairwise((0, *ends)):
        group = gradients[start:end]
        flat = torch.cat([gradient.flatten() for gradient in group])
        if mistake != "own":
            dist.all_reduce(flat)
            flat /= 1 if mistake == "sum" else dist.get_world_size()
        pieces = flat.split([gradient.numel() for gradient in group])
        means += pieces if mistake == "flat" else map(torch.Tensor.view_as, pieces, group)
    return means


def _fused_on_rank(fused_mean: Callable) -> list:
    """Return how many collectives each fusion took, and the means."""
    import torch
    import torch.distributed as dist
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            collectives.append(operation.namespace == "c10d")
            return operation(*args, **(kwargs or {}))

    fused = []
    for fusion in FUSIONS:
        gradients = [torch.full(shape, float(10**at)) * (1 + dist.get_rank()) for at, shape in enumerate(SHAPES)]
        collectives: list[bool] = []
        with Counted():
            means = fused_mean(gradients, fusion)
        fused.append((sum(collectives), means))
    return fused


def check_fused_mean(fused_mean: Callable | None) -> Feedback:
    """Check a reader's `fused_mean(gradients, fusion)` on three ranks: the means, and one all-reduce a group."""
    return check_on_ranks(
        fused_mean,
        _fused_mean,
        _fused_on_rank,
        num_ranks=3,
        mistakes={hint: partial(_fused_mean, mistake=name) for name, hint in FUSED_HINTS.items()},
        reason="Three ranks have the means, after one all-reduce a group.",
        of="all-reduces and means of a fusion",
    )
