"""The hierarchical communication matrix (section 3.4), the bandwidths of a mesh (equation 3), and six interconnects.

A layer joins the groups of the layer above it: in a cluster of four nodes of four GPUs layer 1 joins the nodes, layer 2
the GPUs of each. Devices are numbered so that those of one group are neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from workbench.checks import require_counts, require_not_negative, require_positive
from workbench.cluster import GIGABIT_BYTES_PER_S, Link

__all__ = ["FIGURE_7A", "PRESETS", "AxisTimes", "Bandwidths", "HierarchicalCommMatrix", "Layer", "flat", "torus"]

GB = 1e9  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One layer: links between members; a member is a device or a group of devices."""

    p2p_bytes_per_s: tuple[tuple[float, ...], ...]  # [R, R], symmetric; 0 where two members have no link
    group_bytes_per_s: float  # rate from one member to all others together
    startup_s: float = 0.0  # start-up of a message between two members; the paper leaves it out

    def __post_init__(self) -> None:
        require_positive(group_bytes_per_s=self.group_bytes_per_s)
        require_not_negative(startup_s=self.startup_s)
        size = len(self.p2p_bytes_per_s)
        require_counts(1, members=size)
        for i, row in enumerate(self.p2p_bytes_per_s):
            if len(row) != size:
                raise ValueError(f"p2p_bytes_per_s has {len(row)} numbers in row {i}; it must have {size}")
            for j, value in enumerate(row):
                require_not_negative(**{f"p2p_bytes_per_s[{i}][{j}]": value})
                if value != self.p2p_bytes_per_s[j][i]:
                    other = self.p2p_bytes_per_s[j][i]
                    raise ValueError(
                        f"p2p_bytes_per_s[{i}][{j}] is {value!r} and [{j}][{i}] {other!r}; they must be equal"
                    )
            if size > 1 and not any(value for j, value in enumerate(row) if j != i):
                raise ValueError(f"p2p_bytes_per_s[{i}] is 0 to all others; every member must have a link")

    @classmethod
    def switched(cls, members: int, p2p: float, group: float, startup_s: float = 0.0) -> Layer:
        """Return a layer with a link of the same rate between each two members."""
        rows = tuple(tuple(0.0 if i == j else p2p for j in range(members)) for i in range(members))
        return cls(p2p_bytes_per_s=rows, group_bytes_per_s=group, startup_s=startup_s)

    @property
    def size(self) -> int:
        """R, the number of members."""
        return len(self.p2p_bytes_per_s)

    def reached_bytes_per_s(self, num_members: int) -> float:
        """Return the least total rate of a member's links inside blocks of neighbours, at most the group's rate.

        ValueError if a member has no link inside its block of `num_members`.
        """
        if num_members < 2 or self.size < 2:
            return self.group_bytes_per_s
        least = self.group_bytes_per_s
        for i, row in enumerate(self.p2p_bytes_per_s):
            start = i // num_members * num_members
            inside = sum(row[start : start + num_members]) - row[i]
            alone = min(start + num_members, self.size) - start == 1
            if inside == 0 and not alone:
                raise ValueError(f"p2p_bytes_per_s[{i}] is 0 to all of members {start} to {start + num_members - 1}")
            least = least if alone else min(least, inside)
        return least


@dataclass(frozen=True, slots=True)
class AxisTimes:
    """Start-up and rate of collectives along an axis, while all its groups work; bytes are those of whole tensors."""

    all_reduce: Link
    all_gather: Link  # bytes of the gathered tensor
    reduce_scatter: Link  # bytes of the summed tensor


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Bandwidths of the all-reduces along the two axes of a mesh; infinite for an axis of one device."""

    b1_bytes_per_s: float
    b2_bytes_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HierarchicalCommMatrix:
    """The layers of an interconnect, the outermost first."""

    name: str
    layers: tuple[Layer, ...]
    source: str = "stated by the caller"
    calibrated: Mapping[tuple[int, int], Bandwidths] = field(default_factory=dict)  # by mesh: B1, B2 of equation 2
    measured: Mapping[tuple[int, int], Mapping[int, AxisTimes]] = field(default_factory=dict)  # by mesh and axis

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("layers is (); it must have at least one")

    @property
    def num_devices(self) -> int:
        """Number of devices of all groups."""
        return math.prod(layer.size for layer in self.layers)

    def require_mesh(self, d1: int, d2: int) -> None:
        """Refuse a mesh that does not have all devices."""
        require_counts(1, d1=d1, d2=d2)
        if d1 * d2 != self.num_devices:
            raise ValueError(f"d1, d2: {d1} x {d2} is not the number of devices, {self.num_devices}")

    def crossed(self, d1: int, d2: int) -> tuple[range, range]:
        """Return the layers (from 0) that the groups of axis 1 and of axis 2 cross, as equation 3 has them."""
        self.require_mesh(d1, d2)
        covered = 1
        num = 0
        while covered < d1:
            covered *= self.layers[num].size
            num += 1
        first_of_axis2 = num if covered == d1 else num - 1
        return range(num), range(first_of_axis2, len(self.layers))

    def shared(self, d1: int, d2: int) -> Bandwidths:
        """Return B1' and B2' of equation 3: each axis-1 group has its share, 1 / d2, of the group bandwidth.

        A group bandwidth is reduced if the links of d1 or d2 devices cannot reach it.
        """
        outer, inner = self.crossed(d1, d2)
        b1 = b2 = math.inf
        if d1 > 1:
            b1 = min((self.layers[layer].reached_bytes_per_s(d1) / d2 for layer in outer), default=math.inf)
        if d2 > 1:
            b2 = min((self.layers[layer].reached_bytes_per_s(d2) for layer in inner), default=math.inf)
        return Bandwidths(b1, b2)

    def algorithm(self, d1: int, d2: int) -> Bandwidths:
        """Return B1 and B2: the calibrated rates if there are any, else those of equation 4, d / (2 (d - 1)) of B'."""
        if (d1, d2) in self.calibrated:
            return self.calibrated[d1, d2]
        shared = self.shared(d1, d2)
        factor1, factor2 = (d / (2 * (d - 1)) if d > 1 else 1.0 for d in (d1, d2))
        return Bandwidths(factor1 * shared.b1_bytes_per_s, factor2 * shared.b2_bytes_per_s)

    def rings(self, d1: int, d2: int) -> tuple[dict[int, int], dict[int, int]]:
        """Return, for each axis and layer, the number of rings that leave one member, counted device by device.

        Equation 3 takes d2 for axis 1 and 1 for axis 2. That is too many if a member has fewer devices than d2.
        """
        self.require_mesh(d1, d2)
        groups1 = [range(start, d1 * d2, d2) for start in range(d2)]
        groups2 = [range(start, start + d2) for start in range(0, d1 * d2, d2)]
        return self.leaving(groups1), self.leaving(groups2)

    def leaving(self, groups: Sequence[Sequence[int]]) -> dict[int, int]:
        """Return, for each layer, the largest number of rings through these groups of devices that leave one member."""
        most = {}
        for number, layer in enumerate(self.layers):
            member_size = math.prod(inner.size for inner in self.layers[number + 1 :])  # devices
            layer_size = layer.size * member_size
            leaving: dict[int, int] = {}  # by member
            for group in groups:
                for device, following in zip(group, [*group[1:], group[0]], strict=True):
                    member = device // member_size
                    if member != following // member_size and device // layer_size == following // layer_size:
                        leaving[member] = leaving.get(member, 0) + 1
            if leaving:
                most[number] = max(leaving.values())
        return most


def flat(name: str, num_devices: int, group: float, source: str) -> HierarchicalCommMatrix:
    """Return one layer of devices with a link between each two."""
    return HierarchicalCommMatrix(name=name, layers=(Layer.switched(num_devices, group, group),), source=source)


def torus(name: str, side: int, link: float, source: str) -> HierarchicalCommMatrix:
    """Return side x side devices on a two-dimensional torus (figure 7b): rings of rings."""

    def ring(bandwidth: float) -> Layer:
        joined = {1, side - 1}
        rows = tuple(tuple(bandwidth if (j - i) % side in joined else 0.0 for j in range(side)) for i in range(side))
        return Layer(p2p_bytes_per_s=rows, group_bytes_per_s=2 * bandwidth)

    return HierarchicalCommMatrix(name=name, layers=(ring(side * link), ring(link)), source=source)


NVLINK3, PCIE4, INFINIBAND = 600 * GB, 64 * GB, 200 * GIGABIT_BYTES_PER_S  # sections 2.2 and 5
TORUS_LINK = 25 * GB  # section 3.4
# Section 5.3 calibrates B1 and B2 of two meshes. The group bandwidths give those of mesh (2, 4) by equations 3 and 4.
IC1_BETWEEN, IC1_INSIDE = 4 * 1.20 * GB, 4.95 * GB * 6 / 4

PRESETS: Mapping[str, HierarchicalCommMatrix] = {
    "IC1": HierarchicalCommMatrix(
        name="IC1",
        layers=(Layer.switched(2, IC1_BETWEEN, IC1_BETWEEN), Layer.switched(4, IC1_INSIDE, IC1_INSIDE)),
        source="section 5.3: 8 GPUs over PCIe, calibrated",
        calibrated={(2, 4): Bandwidths(1.20 * GB, 4.95 * GB), (8, 1): Bandwidths(0.97 * GB, math.inf)},
    ),
    "IC2": HierarchicalCommMatrix(
        name="IC2",
        layers=(Layer.switched(4, PCIE4, PCIE4), Layer.switched(2, NVLINK3, NVLINK3)),
        source="sections 2.2 and 5: 4 pairs of GPUs on NVLink, joined by PCIe 4.0, nominal rates",
    ),
    "IC3": flat("IC3", 8, NVLINK3, "sections 2.2 and 5: 8 GPUs on NVSwitch, nominal rate"),
    "IC4": flat("IC4", 16, INFINIBAND, "section 5: 16 GPUs, 200 Gbit/s, one layer as section 5.3 says, nominal rate"),
    "IC5": flat("IC5", 16, NVLINK3, "section 5.4: GPUs on an NVLink-Network switch, nominal rate"),
    "IC6": torus("IC6", 4, TORUS_LINK, "figure 7b: 16 devices on a torus of 25 GB/s links"),
}

FIGURE_7A = HierarchicalCommMatrix(
    name="figure 7a",
    layers=(Layer.switched(4, INFINIBAND, INFINIBAND), Layer.switched(4, 200 * GB, NVLINK3)),
    source="figure 7a, section 3.4: four nodes on 200 Gbit/s, four GPUs each, 200 GB/s between two of them",
)
