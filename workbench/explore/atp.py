"""The lesson on meshes: eight devices whose links are edited, two linears and a block on real ranks, and exercises."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations

import numpy as np
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from torch import Tensor

from workbench import plots
from workbench.explore.code_exercises import check_on_cases, check_on_ranks
from workbench.explore.exercises import Exercise, Feedback, Mistake
from workbench.explore.explorer import Explorer, choice, steps
from workbench.parallel.linear import MeshLinear
from workbench.techniques.atp.method.equations import Workload, communication_time_s, messages
from workbench.techniques.atp.method.matrix import GB, HierarchicalCommMatrix, Layer
from workbench.techniques.atp.method.search import Strategy, search, search_exactly
from workbench.techniques.atp.runtime.block import BlockConfig, MeshBlock, Steps, open_mesh
from workbench.timeline import Kind, Recorder, Timeline

__all__ = ["EightDevices", "MeshExplorer", "TwoLinears", "bytes_of_two_linears", "check_crossing"]
__all__ += ["check_feed_forward", "check_terms", "rings_of_a_host", "two_linears", "watched_forward"]

NUM_DEVICES = 8
HEAD_SIZE = 128  # as in the paper's models M1 to M4
FORWARD_PASSES = 5  # of a block; the first ones open connections
NEAR = 1e-3  # how far a crossing may be off, as a share of it: enough for a search


@dataclass(frozen=True, kw_only=True)
class EightDevices:
    """Eight devices in hosts, a layer that they train, and how its communication is counted."""

    hosts: int  # as many devices in each
    between: float  # GB/s of a host to all others together
    inside: float  # GB/s of a device to those of its host
    startup: float  # microseconds of a message
    batch: int  # sequences
    sequence: int  # tokens of each
    hidden: int  # values of a token
    exactly: bool  # by exact bytes, counted rings and start-ups; else by equations 2 to 4

    @property
    def matrix(self) -> HierarchicalCommMatrix:
        """The hosts, and the devices of each; one layer where either is 1."""
        sizes = ((self.hosts, self.between), (NUM_DEVICES // self.hosts, self.inside))
        layers = (Layer.switched(size, r * GB, r * GB, self.startup / 1e6) for size, r in sizes if size > 1)
        return HierarchicalCommMatrix(name="eight devices", layers=tuple(layers))

    @cached_property
    def strategies(self) -> list[Strategy]:
        """All meshes, the fastest first."""
        sizes = {"batch": self.batch, "sequence": self.sequence, "hidden": self.hidden}
        find = partial(search_exactly, sequence_parallel=(False,)) if self.exactly else search
        return find(self.matrix, NUM_DEVICES, Workload(**sizes, heads=self.hidden // HEAD_SIZE))

    @property
    def times(self) -> dict[str, tuple[float, float, float]]:
        """Seconds of axis 1, axis 2 and start-ups, by mesh."""
        return {strategy.name: (strategy.axis1_s, strategy.axis2_s, strategy.startup_s) for strategy in self.strategies}

    @property
    def links(self) -> np.ndarray:
        """GB/s between each two devices; 0 on the diagonal."""
        host = np.arange(NUM_DEVICES) * self.hosts // NUM_DEVICES
        rates = np.where(host[:, None] == host, self.inside, self.between).astype(float)
        np.fill_diagonal(rates, 0)
        return rates


COUNTED = {"equations 2 to 4": False, "with start-ups": True}
CONTROLS = {
    "hosts": steps("hosts", (1, 2, 4, 8), value=2, help="Groups of devices, each of as many neighbours."),
    "between": steps("between", (1, 2, 4, 8, 16), value=2, help="GB/s of a host to the others; its devices share it."),
    "inside": steps("inside", (2, 4, 8, 16, 64, 256), value=16, help="GB/s of a device to the others of its host."),
    "startup": steps("start-up", (0, 5, 20, 100, 500), value=0, help="Microseconds of each message; 0 in the paper."),
    "batch": steps("batch", (1, 2, 4, 8), value=4, help="Sequences; a message grows with them."),
    "sequence": steps("sequence", (128, 512, 2048), value=2048, help="Tokens of a sequence."),
    "hidden": steps("hidden", (1024, 4096, 12288), value=4096, help="Values of a token, 2 bytes each."),
    "exactly": choice("counted by", COUNTED, value=False, help="Or by exact bytes, rings device by device, start-ups."),
}


def _draw(devices: EightDevices) -> Figure:
    figure, axes = plots.figure(1, 2, figsize=(10.5, 3.9), width_ratios=(1.25, 1))
    rows = []
    for place, strategy in enumerate(sorted(devices.strategies, key=lambda strategy: strategy.d2)):
        mesh = {"mesh": f"{strategy.name}\n({strategy.d1}, {strategy.d2})"}
        parts = zip(("axis 1", "axis 2", "start-ups"), devices.times[strategy.name], strict=True)
        rows += [{**mesh, "term": term, "value": 1e3 * seconds} for term, seconds in parts]
        axes[0].annotate(f"{1e3 * strategy.total_s:,.0f}", (place, 1e3 * strategy.total_s), ha="center", va="bottom")
    plots.bars(rows, ax=axes[0], x="mesh", by="term", y_label="ms of a layer's messages", stacked=True)
    axes[0].set_ylim(0, 1.1e3 * devices.strategies[-1].total_s)
    axes[0].set_title(f"{devices.strategies[0].name} is the fastest")
    texts = [[f"{rate:g}" if rate else "" for rate in row] for row in devices.links]
    look = {"limit": 2 * devices.links.max(), "x_label": "device", "y_label": "device"}
    plots.heatmap(devices.links, ax=axes[1], texts=texts, **look)
    axes[1].set_title("links in GB/s")
    return figure


def _describe(devices: EightDevices) -> str:
    best, following = devices.strategies[:2]
    ms, less = 1e3 * best.total_s, 1 - best.total_s / following.total_s
    text = f"{best.name}, the mesh ({best.d1}, {best.d2}), is the fastest: {ms:.3g} ms a layer, {less:.1%} less than "
    return text + f"{following.name}."


class MeshExplorer(Explorer[EightDevices]):
    """The eight devices: hosts, rates, sizes of messages, and how they are counted."""

    def __init__(self) -> None:
        super().__init__(
            lambda **values: EightDevices(**values),
            _draw,
            describe=_describe,
            effect=lambda devices: tuple(sorted(devices.times.items())),
            **CONTROLS,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoLinears:
    """What a rank has after both passes of two linears."""

    output: Tensor  # [rows, out], joined
    input_grad: Tensor  # [rows, in], joined; of the sum of the output
    sent_bytes: dict[str, int]  # that the rank contributed, by axis and pass


def two_linears(d1: int, d2: int, x: Tensor, first: Tensor, second: Tensor) -> TwoLinears:
    """Multiply x with a column-first and a row-first matrix, and go back; call it on every rank."""
    mesh = open_mesh(d1, d2)
    column = MeshLinear(*first.shape, mesh.axis1, mesh.axis2, bias=False)
    row = MeshLinear(*second.shape, mesh.axis2, mesh.axis1, bias=False)
    column.load_full_(first.T)
    row.load_full_(second.T)
    x_part = x.chunk(d2, 1)[mesh.axis2.local_ranks[0]].clone().requires_grad_()
    y = row(column(x_part))
    y.sum().backward()
    assert x_part.grad is not None
    axes, passes = {"axis 1": mesh.axis1, "axis 2": mesh.axis2}, ("forward", "backward")
    sent = {f"{name}, {way}": axis.traffic.num_bytes(phase=way) for name, axis in axes.items() for way in passes}
    output, input_grad = (torch.cat(mesh.axis2.gather([part]), 1) for part in (y, x_part.grad))
    return TwoLinears(output=output, input_grad=input_grad, sent_bytes=sent)


class _WatchedBlock(MeshBlock):
    """A block that records when each chunk computes, and when its messages travel over axis 1."""

    def watched(self, x: Tensor) -> Timeline:
        """Record one forward pass; every rank calls it."""
        self.computes, sends = (Recorder(resource=f"rank {dist.get_rank()} {does}") for does in ("computes", "sends"))
        self.mesh.axis1.watch_begun = lambda collective: sends.begun(self.label, Kind.COMMUNICATE)
        self.num_begun = 0
        dist.barrier()
        self(x)
        dist.barrier()  # all messages have ended
        return Timeline.merged([self.computes.actions, sends.actions])

    def steps(self, x: Tensor, mask: Tensor | None) -> Steps:
        block_steps, label = super().steps(x, mask), f"chunk {self.num_begun}"
        arrived: Tensor | None = None
        self.num_begun += 1
        try:
            while True:
                self.label = label
                with self.computes.during(label):
                    pending = next(block_steps) if arrived is None else block_steps.send(arrived)
                    while pending.work is None:  # nothing was sent
                        pending = block_steps.send(pending.wait())
                arrived = yield pending
        except StopIteration as end:
            return end.value


def watched_forward(chunks: int, *, batch: int, sequence: int, hidden: int) -> Timeline:
    """Return this rank's fastest forward pass of a block on a mesh (N, 1); call it on every rank."""
    config = BlockConfig(hidden_size=hidden, num_heads=8, mlp_size=4 * hidden, chunks=chunks)
    block, x = _WatchedBlock(config, open_mesh(dist.get_world_size(), 1)), torch.randn(batch, sequence, hidden)
    return min((block.watched(x) for _ in range(FORWARD_PASSES)), key=lambda timeline: timeline.duration_s)


def bytes_of_two_linears() -> Exercise:
    """Return the exercise on the messages of a feed-forward block on a mesh (2, 2)."""
    work = Workload(batch=1, sequence=4, hidden=8, heads=4)
    sent = {message.what: message.num_bytes for message in messages(work, 2, 2)}
    return Exercise(
        question="A feed-forward block on the mesh (2, 2): X has 4 rows of 8 values of 2 bytes, A is 8 × 32 and "
        "column-first, B is 32 × 8 and row-first. How many bytes does a rank hand to the all-reduce along axis 1, and "
        "how many to that along axis 2, in the forward pass?",
        answer=(sent["f4, forward"], sent["f3, forward"]),
        hint="Which columns does a rank's product have? Its rows are all 4.",
        reason="X A is summed over axis 2, where A's rows are cut: 4 × 16 values. The product with B is summed over "
        "axis 1, where B's rows are cut: 4 × 4 values.",
        mistakes=(
            Mistake(answer=(128, 32), hint="Sums are over the axis that cuts the rows. Which one is it for A?"),
            Mistake(answer=(64, 256), hint="A rank has only a part of the columns of each product."),
        ),
    )


def rings_of_a_host() -> Exercise:
    """Return the exercise on the rings that share a host's link."""
    devices = HierarchicalCommMatrix(name="pairs", layers=(Layer.switched(4, GB, GB), Layer.switched(2, GB, GB)))
    return Exercise(
        question="Four hosts of two devices, mesh (2, 4). How many rings of axis 1 leave a host?",
        answer=devices.rings(2, 4)[0][0],
        hint="Devices 0 to 3 are the first row of the mesh, 4 to 7 the second. Axis 1 joins 0 and 4.",
        reason="The rings join 0 and 4, 1 and 5, 2 and 6, 3 and 7. Devices 0 and 1 are a host, each in a ring.",
        mistakes=(Mistake(answer=4, hint="This is d2, which equation 3 takes. How many devices has a host?"),),
    )


TERM_HINTS = {
    "swapped": "The term of axis 2 comes first.",
    "crossed": "A message that travels along one axis is cut over the other one.",
    "always": "An axis of size 1 communicates nothing.",
    "six": "An exchange inside attention counts too, not only the all-reduces.",
}


def _terms(h: float, d1: int, d2: int, b1: float, b2: float, mistakes: Sequence[str]) -> tuple[float, float]:
    cut2, cut1 = (d2, d1) if "crossed" in mistakes else (d1, d2)
    axis2 = (6 if "six" in mistakes else 7) * h / (cut2 * b2) * (d2 > 1 or "always" in mistakes)
    axis1 = 2 * h / (cut1 * b1) * (d1 > 1 or "always" in mistakes)
    return (axis1, axis2) if "swapped" in mistakes else (axis2, axis1)


def _equation_2(h: int, d1: int, d2: int, b1: float, b2: float) -> float:
    """Return the terms in the brackets of equation 2, added."""
    sizes = {"num_layers": 1, "batch": 1, "sequence": 1, "hidden": h, "value_bytes": 1}
    return communication_time_s(**sizes, d1=d1, d2=d2, b1_bytes_per_s=b1, b2_bytes_per_s=b2) / 2


def check_terms(terms: Callable[..., tuple[float, float]] | None) -> Feedback:
    """Check a reader's `terms(h, d1, d2, b1, b2)`, those of axis 2 and axis 1 in equation 2, on random cases."""
    numbers = (np.random.default_rng(0).integers(0, 4, (40, 5)) + (1, 0, 0, 1, 1)).tolist()
    cases = [(64 * h, 2**i, 2**j, b1, b2) for h, i, j, b1, b2 in numbers]
    infinite = [((h, d1, d2, math.inf, b2), (h, d1, d2, b1, math.inf)) for h, d1, d2, b1, b2 in cases]
    sets = [names for size in range(1, 5) for names in combinations(TERM_HINTS, size)]
    return check_on_cases(
        terms,
        cases,
        [tuple(_equation_2(*case) for case in pair) for pair in infinite],
        mistakes={" ".join(TERM_HINTS[name] for name in names): partial(_terms, mistakes=names) for names in sets},
        reason=f"Both terms are those of equation 2 in {len(cases)} cases.",
    )


CROSSING_MISTAKES = {
    "Asked is B2 over B1, not B1 over B2.": lambda h, d1, d2: 2 * d1 * (d2 - 1) / (7 * d2),
    "Mesh (N, 1) has no term of axis 2, and (d1, d2) still has one of axis 1.": lambda h, d1, d2: 7 / (2 * d1),
    "h stands in all terms. Does it stay?": lambda h, d1, d2: h * 7 * d2 / (2 * d1 * (d2 - 1)),
}


def check_crossing(crossing: Callable[[int, int, int], float] | None) -> Feedback:
    """Check a reader's `crossing(h, d1, d2)`: the B2 / B1 above which (d1, d2) is faster than (d1 d2, 1)."""
    cases = [(h, *mesh) for h in (4096, 12288) for mesh in ((2, 4), (4, 2), (4, 4), (8, 2))]
    # With B1 = 1 both meshes take equally long if plain = first / B2 + second.
    plain = [_equation_2(h, d1 * d2, 1, 1.0, math.inf) for h, d1, d2 in cases]
    first, second = ([_equation_2(*case, *rates) for case in cases] for rates in ((math.inf, 1.0), (1.0, math.inf)))
    ratios = [axis2_s / (plain_s - axis1_s) for axis2_s, plain_s, axis1_s in zip(first, plain, second, strict=True)]
    reason = f"Both meshes take equally long in {len(cases)} cases, whatever h. It is 7/3 for mesh (2, 4)."
    return check_on_cases(crossing, cases, ratios, mistakes=CROSSING_MISTAKES, reason=reason, rel=NEAR)


SUM_HINTS = {
    "axes": "Rows of A are cut over axis 2, those of B over axis 1. Which ranks hold the parts of one sum?",
    "early": "ReLU of a part is not a part of the ReLU: add first.",
    "first": "x @ a has a part of A's rows only. Its sum is needed before it goes on.",
    "second": "Is the result the sum over all rows of B?",
    "all": "A sum over all ranks mixes columns: add along one axis, with group=.",
    "none": "Nothing was sent. Each product is only a part of a sum.",
}


def _matrices() -> tuple[Tensor, Tensor, Tensor]:
    """Return X, A and B of section 3."""
    a, b = torch.arange(32.0).reshape(4, 8) % 5 - 2, torch.arange(32.0).reshape(8, 4) % 3 - 1
    return torch.arange(12.0).reshape(3, 4), a, b


def _feed_forward(x: Tensor, a: Tensor, b: Tensor, axis1: object, axis2: object, *, mistake: str) -> Tensor:
    """Return this rank's columns of ReLU(X A) B, with a usual mistake."""
    first, second = {"axes": (axis1, axis2), "all": (None, None)}.get(mistake, (axis2, axis1))
    inner = torch.relu(x @ a) if mistake == "early" else x @ a
    if mistake not in ("first", "none"):
        dist.all_reduce(inner, group=first)
    y = torch.relu(inner) @ b
    if mistake not in ("second", "none"):
        dist.all_reduce(y, group=second)
    return y


def _whole(x: Tensor, a: Tensor, b: Tensor, axis1: object, axis2: dist.ProcessGroup) -> Tensor:
    """Return the same by one multiplication of whole matrices."""
    x, a, b = _matrices()
    return (torch.relu(x @ a) @ b).chunk(2, 1)[dist.get_rank(axis2)]


def _multiplied_on_rank(feed_forward: Callable) -> Tensor:
    """Give a rank of the mesh (2, 2) its parts."""
    mesh, (x, a, b) = open_mesh(2, 2), _matrices()
    groups = mesh.axis1.process_group, mesh.axis2.process_group
    i, j = map(dist.get_rank, groups)
    parts = x.chunk(2, 1)[j], a.chunk(2, 0)[j].chunk(2, 1)[i], b.chunk(2, 0)[i].chunk(2, 1)[j]
    y = feed_forward(*parts, *groups)
    dist.barrier()  # a rank may still connect to a group that `feed_forward` did not use
    for group in groups:  # an open one wakes up a hundred times a second
        dist.destroy_process_group(group)
    return y


def check_feed_forward(feed_forward: Callable | None) -> Feedback:
    """Check a reader's `feed_forward(x, a, b, axis1, axis2)` on four ranks, a mesh (2, 2), against whole matrices."""
    mistakes = {hint: partial(_feed_forward, mistake=name) for name, hint in SUM_HINTS.items()}
    reason = "Four ranks have the columns of one process."
    return check_on_ranks(feed_forward, _whole, _multiplied_on_rank, num_ranks=4, mistakes=mistakes, reason=reason)
