"""The lesson on sparse gradients: slots that fill and collide, five schemes on real ranks, and a bitmap to write."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from workbench import plots
from workbench.explore.code_exercises import check_on_cases, check_on_ranks
from workbench.explore.exercises import Exercise, Feedback, Mistake
from workbench.explore.explorer import Explorer, steps
from workbench.launch import Ranks
from workbench.parallel.wire import Wire
from workbench.plots.style import PALETTE
from workbench.rows.progress import say_progress
from workbench.techniques.zen.method import HashBitmap, partition
from workbench.techniques.zen.method.hashing import EMPTY, Slots, partition_of, slots_by_definition
from workbench.techniques.zen.runtime.schemes import SCHEMES
from workbench.techniques.zen.runtime.sparse import Sparse

__all__ = ["EIGHT", "MISTAKES", "SlotExplorer", "busiest_range", "check_bitmap", "check_push", "compare_on_ranks"]
__all__ += ["draw_filled", "fill", "homes_of_eight", "pulled_bytes"]

EIGHT = (0, 1, 2, 3, 4, 9, 17, 22)  # indices of a gradient of 24 values, in the order of the words' frequency
DOMAIN, SERVERS, SEED = 24, 3, 3
NUM_CASES = 40  # on which a reader's function is checked
BLUE, ORANGE, RED = PALETTE[0], PALETTE[1], PALETTE[3]


def homes_of_eight() -> pd.DataFrame:
    """Return the server of each of the eight indices by equal ranges, and by hashing."""
    hashed = partition_of(torch.tensor(EIGHT), SERVERS, SEED).tolist()
    rows = {"by range": [index * SERVERS // DOMAIN for index in EIGHT], "by hashing": hashed}
    return pd.DataFrame(rows, pd.Index(EIGHT, name="index")).T


def fill(*, indices: int, slots: int, hashes: int, serial: int, seed: int) -> Slots:
    """Hash so many indices of a skewed gradient into three servers by algorithm 3.2."""
    order = np.random.default_rng(7).permutation(96)[:indices]
    sizes = {"num_hashes": hashes, "parallel_slots": slots, "serial_slots": serial}
    return slots_by_definition(order.tolist(), SERVERS, seed, **sizes)


def draw_filled(filled: Slots) -> Figure:
    """Draw each server's slots, its serial area and what overflows; an index is darker the more hashes it took."""
    figure, ax = plots.figure(figsize=(10, 2.6))
    width = max(map(len, filled.parallel))
    for server, (slots, serial, overflow) in enumerate(_servers(filled)):
        cells: list[tuple[float, int, str]] = [(at, index, BLUE) for at, index in enumerate(slots)]
        cells += [(width + 0.5 + at, index, ORANGE) for at, index in enumerate(serial)]
        cells += [(width + 0.5 + len(serial) + at, index, RED) for at, index in enumerate(overflow)]
        for x, index, color in cells:
            fill = to_rgba(color, 0.0 if index == EMPTY else 0.15 + 0.2 * min(3, filled.tries[index]))
            ax.add_patch(Rectangle((x, server), 0.9, 0.9, facecolor=fill, edgecolor=color, linewidth=0.6))
            ax.text(x + 0.45, server + 0.45, "" if index == EMPTY else str(index), ha="center", va="center", fontsize=8)
    longest = max(len(serial) + len(over) for _, serial, over in _servers(filled))
    ax.set(xlim=(-0.2, width + 1 + longest), ylim=(SERVERS, -0.2), xticks=[])
    ax.set_yticks([server + 0.45 for server in range(SERVERS)], [f"server {server}" for server in range(SERVERS)])
    ax.grid(visible=False)
    ax.set_title("blue: slots, darker after more tries; orange: serial area; red: overflow")
    return figure


def _describe(filled: Slots) -> str:
    counts = [sum(index != EMPTY for index in slots) + len(more) + len(over) for slots, more, over in _servers(filled)]
    late, over = (sum(map(len, part)) for part in (filled.serial, filled.overflow))
    first = sum(tries == 1 for tries in filled.tries.values()) - (late + over) * (max(filled.tries.values()) == 1)
    collided = len(filled.tries) - first
    text = f"The servers get {', '.join(map(str, counts))} indices: the fullest {max(counts) / np.mean(counts):.2f} of "
    text += f"the mean. {collided} indices collided at first, {late} are in the serial area"
    return text + (f", {over} overflow it." if over else ".")


def _servers(filled: Slots) -> list[tuple[list[int], list[int], list[int]]]:
    return list(zip(filled.parallel, filled.serial, filled.overflow, strict=True))


class SlotExplorer(Explorer[Slots]):
    """Indices that fill slots, collide, and overflow."""

    def __init__(self) -> None:
        super().__init__(
            fill,
            draw_filled,
            describe=_describe,
            indices=steps("indices", (8, 12, 16, 20, 24, 32), value=16, help="Non-zero gradients to place."),
            slots=steps("slots r1", (9, 12, 18, 24, 33, 48, 63), value=33, help="Slots of all servers together."),
            hashes=steps("hashes k", (1, 2, 3, 4), value=3, help="Hash functions tried before the serial area."),
            serial=steps("serial r2", (0, 3, 6, 12), value=3, help="Slots of the serial areas together."),
            seed=steps("seed", range(5), value=0, help="Which hash functions."),
        )


def _summed(scheme: str, num_rows: int, width: int, words: int) -> tuple[int, int, bool, float]:
    """Run on a rank: bytes sent and received, whether the sum is the dense all-reduce's, and seconds."""
    draw = np.random.default_rng(dist.get_rank())
    chances = 1 / np.arange(1, num_rows + 1)
    rows = torch.from_numpy(np.unique(draw.choice(num_rows, words, p=chances / chances.sum())))
    gradient, wire = Sparse(rows, torch.ones(len(rows), width), num_rows), Wire()
    SCHEMES[scheme](gradient, Wire())  # opens connections
    dist.barrier()
    began_s = time.perf_counter()
    total, whole = SCHEMES[scheme](gradient, wire).to_dense(), gradient.to_dense()
    taken_s = time.perf_counter() - began_s
    dist.all_reduce(whole)
    return wire.sent_bytes, wire.received_bytes, torch.allclose(total, whole), taken_s


def compare_on_ranks(*, num_ranks: int = 4, num_rows: int = 5000, width: int = 32, words: int = 400) -> pd.DataFrame:
    """Sum an embedding's gradients on real ranks by every scheme; return the busiest rank's kB and the slowest's ms."""
    rows = {}
    with Ranks(num_ranks, preload=("workbench.techniques.zen",)) as ranks:
        for number, scheme in enumerate(SCHEMES):
            say_progress(number, len(SCHEMES), "schemes")
            by_rank = ranks.run(_summed, scheme, num_rows, width, words)
            sent, received = (max(measured[at] for measured in by_rank) / 1e3 for at in (0, 1))
            equal, slowest_s = all(measured[2] for measured in by_rank), max(measured[3] for measured in by_rank)
            rows[scheme] = {"sent, kB": sent, "received, kB": received, "ms": 1e3 * slowest_s, "equal": equal}
    return pd.DataFrame(rows).T


def busiest_range() -> Exercise:
    """Return the exercise on equal ranges."""
    counts = np.bincount([index * SERVERS // DOMAIN for index in EIGHT], minlength=SERVERS)
    return Exercise(
        question="Three servers have equal ranges of a gradient of 24 values. Its non-zero indices are 0, 1, 2, 3, 4, "
        "9, 17 and 22. What is the imbalance ratio: the fullest server's indices over the mean?",
        answer=float(counts.max() / counts.mean()),
        hint="Which indices lie in 0 to 7? The mean is 8 / 3.",
        reason="Five of the eight lie in 0 to 7, one in 8 to 15, two in 16 to 23: 5 / (8 / 3).",
        mistakes=(Mistake(answer=5.0, hint="That is how many the fullest server has. Divide by the mean."),),
    )


def pulled_bytes() -> Exercise:
    """Return the exercise on the bitmap's size."""
    return Exercise(
        question="A gradient has 3,200 values, and 16 servers hold its sum, of which 800 values of 4 bytes are not "
        "zero. How many bytes of indices does a rank receive from all servers with hash bitmaps?",
        answer=3200 / 8,
        hint="How many bits do all servers' bitmaps have together?",
        reason="Each index belongs to one server, so there are 3,200 bits together: 400 bytes. COO has 3,200.",
        mistakes=(
            Mistake(answer=16 * 400.0, hint="A bitmap has bits for its own server's indices only."),
            Mistake(answer=3200.0, hint="That is what COO sends: 4 bytes for each of the 800."),
        ),
    )


MISTAKES = {
    "index": "Which bit is set: that of the index, or of its place among the server's own indices?",
    "order": "The first index of a byte is its lowest bit.",
}


def _bitmap(members: list[int], indices: list[int], *, mistake: str = "") -> bytes:
    """Write the bitmap of a server, with a usual mistake."""
    bits = bytearray(-(-len(members) // 8))
    for index in indices:
        place = index % max(1, len(members)) if mistake == "index" else members.index(index)
        bits[place // 8] |= 1 << (7 - place % 8 if mistake == "order" else place % 8)
    return bytes(bits)


def check_bitmap(bitmap: Callable[[list[int], list[int]], bytes] | None) -> Feedback:
    """Check a reader's `bitmap(members, indices)` against `HashBitmap` on random gradients."""
    draw, cases, expected = np.random.default_rng(0), [], []
    for domain in sorted(draw.integers(8, 200, NUM_CASES).tolist()):
        servers = int(draw.integers(1, 5))
        server = int(draw.integers(servers))
        members = partition(torch.arange(domain), servers, SEED)[server].tolist()
        indices = sorted(draw.choice(members, len(members) // 2, replace=False).tolist()) if members else []
        cases.append((members, indices))
        encoded = HashBitmap(domain, servers, SEED).encode(torch.tensor(indices, dtype=torch.int64), server)
        expected.append(bytes(encoded.tolist()))
    mistakes = {hint: partial(_bitmap, mistake=name) for name, hint in MISTAKES.items()}
    reason = f"The bitmaps are those of the library in {NUM_CASES} cases."
    return check_on_cases(bitmap, cases, expected, mistakes=mistakes, reason=reason)


PUSH_HINTS = {
    "range": "Equal ranges? `servers` names the server of each index.",
    "all": "A server gets its own indices only. To send everything to everybody is AGsparse.",
    "overwrite": "Two ranks can have one index: its gradients are added.",
    "own": "These are the rank's own gradients. What arrived is to be added.",
}
OF_RANKS = EIGHT, (), (0, 2, 9, 12, 17, 23)  # the indices of each rank; the second one has looked up nothing


def _dense_sum(indices: Tensor, values: Tensor, servers: Tensor, size: int, exchange: Callable) -> Tensor:
    """Return this server's part of a dense all-reduce."""
    whole = torch.zeros(size).index_add_(0, indices, values)
    dist.all_reduce(whole)
    return whole * (partition_of(torch.arange(size), SERVERS, SEED) == dist.get_rank())


def _push(indices: Tensor, values: Tensor, servers: Tensor, size: int, exchange: Callable, *, mistake: str) -> Tensor:
    """Return a server's sums, with a usual mistake."""
    home = indices * SERVERS // size if mistake == "range" else servers
    chosen = [home == home if mistake == "all" else home == server for server in range(SERVERS)]
    arrived = exchange([(indices[mask], values[mask]) for mask in chosen])
    sums = torch.zeros(size)
    for where, what in [(indices, values)] if mistake == "own" else arrived:
        sums[where] = what if mistake == "overwrite" else sums[where] + what
    return sums


def _push_on_rank(push: Callable) -> Tensor:
    indices, wire = torch.tensor(OF_RANKS[dist.get_rank()], dtype=torch.int64), Wire()

    def exchange(messages: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, ...]]:
        if len(messages) != SERVERS:
            raise ValueError(f"messages are {len(messages)}; there must be one for each of the {SERVERS} servers")
        return list(wire.exchange(dict(enumerate(messages))).values())

    values = (1.0 + indices) * 10 ** dist.get_rank()
    return push(indices, values, partition_of(indices, SERVERS, SEED), DOMAIN, exchange)


def check_push(push: Callable | None) -> Feedback:
    """Check a reader's `push(indices, values, servers, size, exchange)` on three ranks against a dense all-reduce."""
    mistakes = {hint: partial(_push, mistake=name) for name, hint in PUSH_HINTS.items()}
    reason = "The servers' sums together are the dense all-reduce, and none has an index of another."
    return check_on_ranks(push, _dense_sum, _push_on_rank, num_ranks=SERVERS, mistakes=mistakes, reason=reason)
