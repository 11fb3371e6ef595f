"""A plan: which gradients of a user's model are one group, and what an iteration should take."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from torch import nn

from workbench.parallel.hooks import require_parameters
from workbench.timeline.gradients import Gradients

from .cost import CUPCAKE, Strategy

__all__ = ["Plan", "plan_of"]


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
