"""The plan of a training: the groups of gradients, and the groups that are compressed."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, pairwise

from torch import nn

from workbench.parallel.hooks import require_parameters
from workbench.timeline.gradients import Gradients

from .cost import CUPCAKE, Strategy

__all__ = ["Plan", "plan_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The groups of a model's gradients; prints, and is saved as JSON."""

    codec: str  # a name in GRADIENT_CODECS
    num_ranks: int
    num_elements: Mapping[str, int]  # by parameter
    groups: Sequence[Sequence[str]]  # names of parameters, in the order of sending
    compressed: Sequence[bool]  # for each group
    predicted_s: Mapping[str, float]  # iteration time by rule; `scheme` is this plan's rule
    scheme: str = CUPCAKE
    gap_s: Sequence[float] = ()  # backward time before each gradient, in the order of `num_elements`
    forward_s: float = 0.0  # time before the first gap
    source: str = ""  # source of these times, and the moment from which they count
    lines: Mapping[str, Sequence[float]] = field(default_factory=dict)  # measured `Costs.lines`
    misses: Mapping[str, float] = field(default_factory=dict)  # `Costs.misses`
    gpus_per_machine: int = 1  # above 1, only what passes between machines is compressed

    @property
    def num_compressed(self) -> int:
        """Number of compressed groups."""
        return sum(self.compressed)

    def __str__(self) -> str:
        sizes = [4 * sum(self.num_elements[name] for name in names) / 2**20 for names in self.groups]
        lines = [f"{len(self.num_elements)} gradients in {len(self.groups)} groups, {self.num_compressed} compressed"]
        lines[0] += f" by {self.codec}"
        times = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in self.predicted_s.items())
        lines += [f"predicted iteration: {times}"]
        lines += [f"times are {self.source}"] if self.source else []
        lines += [
            f"{number:4d}: {len(names)} gradients, {size:.2f} MiB, {names[0]} to {names[-1]}"
            for number, (names, size) in enumerate(zip(self.groups, sizes, strict=True))
        ]
        return "\n".join(lines)

    def check(self, module: nn.Module, num_ranks: int) -> None:
        """Raise ValueError unless groups hold each parameter once, and ranks and FP32 parameters match the plan."""
        held = Counter(chain.from_iterable(self.groups))
        if len(self.compressed) != len(self.groups) or not all(self.groups):
            sizes = [len(names) for names in self.groups]
            raise ValueError(f"compressed is {self.compressed} for groups of {sizes} gradients; none may be empty")
        for name in (*held, *self.num_elements):
            if held[name] != 1 or name not in self.num_elements:
                times = f"{held[name]} times, num_elements {int(name in self.num_elements)}"
                raise ValueError(f"groups hold {name} {times}; both must hold it once")
        if num_ranks != self.num_ranks:
            raise ValueError(f"the plan is for {self.num_ranks} ranks; there are {num_ranks}")
        require_parameters(module, self.num_elements)

    def to_json(self) -> str:
        """Write the plan; `from_json` reads it. Its times, sizes and `lines` are the inputs of the prediction."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read a plan."""
        values = json.loads(text)
        groups = tuple(map(tuple, values["groups"]))
        flat = {name: tuple(values.get(name, ())) for name in ("compressed", "gap_s")}
        return cls(**values | flat | {"groups": groups})


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
        gap_s=gradients.gap_s,
        forward_s=gradients.forward_s,
        source=gradients.source,
    )
