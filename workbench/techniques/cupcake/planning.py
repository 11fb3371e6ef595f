"""A plan: which gradients of a user's model are one group; and the one line that measures, plans, and goes on.

model = DistributedDataParallel(module, bucket_cap_mb=cupcake.BUCKET_MB)
cupcake.fuse(model, "dgc")                          # on every rank
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.compression import Identity
from workbench.compression.gradients import gradient_codec
from workbench.parallel.hooks import require_fp32, require_one_plan, require_parameters, warn_if_late
from workbench.timeline.gradients import Gradients

from .cost import CUPCAKE, FP32_BYTES, Costs, Strategy, fitted, strategies
from .runtime import FusedExchange, Group

__all__ = ["Plan", "fuse", "measure_costs", "plan_of", "plans_on_ranks"]

SETTLING, MEASURED = 2, 3  # backward passes before the plan: DDP rebuilds its buckets after the first
SMALLEST, FACTOR = 256, 8  # elements of the first measured group, and from one to the next
LONG_S = 0.3  # a larger group is not sent: its seconds follow from the line
RUNS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The groups of a model's gradients; prints, and is saved as JSON."""

    codec: str  # of GRADIENT_CODECS
    num_ranks: int
    num_elements: Mapping[str, int]  # by parameter
    groups: Sequence[Sequence[str]]  # names of parameters, those that are sent first come first
    compressed: Sequence[bool]  # of each group
    predicted_s: Mapping[str, float]  # iteration by rule; with this plan under `scheme`
    scheme: str = CUPCAKE
    lines: Mapping[str, Sequence[float]] = field(default_factory=dict)  # `Costs.lines` that were measured

    @property
    def num_compressed(self) -> int:
        """Groups that are compressed."""
        return sum(self.compressed)

    def __str__(self) -> str:
        sizes = [4 * sum(self.num_elements[name] for name in names) / 2**20 for names in self.groups]
        lines = [f"{len(self.num_elements)} gradients in {len(self.groups)} groups, {self.num_compressed} compressed"]
        lines[0] += f" by {self.codec}"
        lines += ["predicted iteration: " + ", ".join(f"{n} {1e3 * s:.1f} ms" for n, s in self.predicted_s.items())]
        lines += [
            f"{number:4d}: {len(names)} gradients, {size:.2f} MiB, {names[0]} to {names[-1]}"
            for number, (names, size) in enumerate(zip(self.groups, sizes, strict=True))
        ]
        return "\n".join(lines)

    def check(self, module: nn.Module, num_ranks: int) -> None:
        """Raise ValueError if a model's parameters or ranks are not those of the plan, or not in FP32."""
        if num_ranks != self.num_ranks:
            raise ValueError(f"the plan is for {self.num_ranks} ranks; there are {num_ranks}")
        require_parameters(module, self.num_elements)

    def to_json(self) -> str:
        """Write the plan; `from_json` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read a plan."""
        values = json.loads(text)
        return cls(
            **values | {"groups": tuple(map(tuple, values["groups"])), "compressed": tuple(values["compressed"])}
        )


def plan_of(
    gradients: Gradients, strategy: Strategy, codec: str, num_ranks: int, predicted_s: Mapping[str, float]
) -> Plan:
    """Make a plan of any strategy."""
    ends = (0, *strategy.fusion)
    return Plan(
        codec=codec,
        num_ranks=num_ranks,
        num_elements=dict(zip(gradients.tensors, gradients.num_elements, strict=True)),
        groups=tuple(tuple(gradients.tensors[start:end]) for start, end in pairwise(ends)),
        compressed=strategy.compressed,
        predicted_s=dict(predicted_s),
        scheme=strategy.name,
    )


def fuse(
    model: DistributedDataParallel, codec: str = "dgc", *, momentum: float = 0.0, warmup: Sequence[float] = ()
) -> FusedExchange:
    """Compress a model's gradients in the groups with which its iterations take least; all ranks call it.

    In the first five backward passes gradients are sent uncompressed after the pass, while their times are measured;
    then the codec and the network are measured, and the plan is made: `plan` of what is returned. DGC's momentum begins
    anew with it.

    Args:
        model: whose backward pass has no other communication hook; made with `bucket_cap_mb=cupcake.BUCKET_MB`.
        codec: of `compression.gradients.GRADIENT_CODECS`.
        momentum: of DGC, which corrects it; the optimizer then has none.
        warmup: shares that DGC keeps in its first epochs; see `FusedExchange.at_epoch`.

    Raises:
        ValueError: before anything is sent, if the codec is not known or differs between ranks, if momentum or warm-up
            are for another codec than DGC, or if a parameter is not in FP32.
    """
    gradient_codec(codec, momentum=momentum, warmup=warmup)
    require_fp32(model.module)
    require_one_plan(f"{codec}, {momentum}, {warmup}")
    warn_if_late(model, "cupcake")
    sizes, passes = {name: p.numel() for name, p in model.module.named_parameters()}, []
    device = str(next(model.module.parameters()).device)

    def plan_by(ready_s: Mapping[str, float]) -> Plan | None:
        passes.append(ready_s)
        if len(passes) < SETTLING + MEASURED:
            return None
        middle_s = {name: median(times[name] for times in passes[SETTLING:]) for name in ready_s}
        order = sorted(middle_s, key=middle_s.__getitem__)
        gap_s = tuple(later - earlier for earlier, later in pairwise([0.0, *(middle_s[name] for name in order)]))
        gradients = Gradients(
            name=type(model.module).__name__,
            tensors=tuple(order),
            num_elements=tuple(sizes[name] for name in order),
            gap_s=gap_s,
            forward_s=0.0,
            source=f"measured in {MEASURED} backward passes, from the first gradient on",
        )
        return plans_on_ranks(gradients, codec, device=device)[CUPCAKE]

    return FusedExchange(model, None, momentum=momentum, warmup=warmup, plan_by=plan_by)


def plans_on_ranks(gradients: Gradients, codec: str, *, device: str = "cpu") -> dict[str, Plan]:
    """Measure the costs and plan with every rule on rank 0, for all ranks; they call it together."""
    costs = measure_costs(codec, sum(gradients.num_elements), device=device)
    written: list[object] = [None]
    if dist.get_rank() == 0:
        found, world = strategies(gradients, costs), dist.get_world_size()
        predicted_s = {name: strategy.iteration_s for name, strategy in found.items()}
        written[0] = {
            name: replace(plan_of(gradients, strategy, codec, world, predicted_s), lines=costs.lines).to_json()
            for name, strategy in found.items()
        }
    dist.broadcast_object_list(written)
    return {name: Plan.from_json(text) for name, text in written[0].items()}


def measure_costs(codec: str, largest: int, *, device: str = "cpu", runs: int = RUNS) -> Costs:
    """Measure encoding, sending and decoding of groups of up to so many elements; all ranks call it together.

    Of each size the median over runs is taken, of the slowest rank, and the costs are fitted.
    """
    sizes = [SMALLEST]
    while sizes[-1] < largest:
        sizes.append(min(largest, sizes[-1] * FACTOR))
    encode, send, decode = _measured(lambda: gradient_codec(codec), sizes, device, runs)
    send_plain = _measured(Identity, sizes, device, runs)[1]
    return Costs(
        codec=codec,
        compress=fitted(encode)[1],
        communicate=fitted(send)[0],
        decode=fitted(decode)[1],
        send_plain=fitted(send_plain)[0],
    )


Samples = list[tuple[float, float]]  # bytes in fp32, and seconds


def _measured(make: Callable, sizes: Sequence[int], device: str, runs: int) -> tuple[Samples, Samples, Samples]:
    """Return the seconds of encoding, sending and decoding."""
    encode, send, decode = [], [], []
    for size in sizes:
        group, size_bytes = Group(make(), [size], 0.0, device), FP32_BYTES * size
        is_sent = len(send) < 2 or send[-1][1] < LONG_S
        encode_s, send_s, decode_s = _medians_s(group, runs, is_sent)
        encode.append((size_bytes, encode_s))
        decode.append((size_bytes, decode_s))
        if is_sent:
            send.append((size_bytes, send_s))
    return encode, send, decode


def _medians_s(group: Group, runs: int, is_sent: bool) -> list[float]:
    draw, seconds = torch.Generator(group.flat.device).manual_seed(dist.get_rank()), []

    def timed_s(work: Callable[[], object]) -> float:
        dist.barrier()
        began_s = time.perf_counter()
        work()
        if group.flat.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began_s

    for _ in range(runs + 2):  # the first two open connections and make room
        group.flat.normal_(generator=draw)
        encode_s = timed_s(group.encode)
        send_s = timed_s(group.exchange) if is_sent else timed_s(group.keep)
        found = torch.tensor([encode_s, send_s, timed_s(group.decode)], device=group.flat.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        seconds.append(found.tolist())
    return [median(column) for column in zip(*seconds[2:], strict=True)]
