"""A transformer block on a mesh (d1, d2): column-first and row-first linears, its batch cut into chunks that overlap.

Between blocks x is [Replicate, Shard(hidden)], and the attention core has its own heads on each rank (section 3.2.1).
With sequence parallelism x is cut along the sequence over axis 1 too (beyond the paper; Korthikanti et al. 2022).

Shapes: B = batch, S = sequence, H = hidden, A = heads of one rank, D = H / heads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from workbench.parallel.exchanges import Exchange, Pending, start_gather, start_scatter_sum, take_share
from workbench.parallel.groups import ProcessTensorGroup
from workbench.parallel.linear import MeshLinear
from workbench.parallel.shards import check_divides, cut
from workbench.parallel.timeouts import init_mesh, timeout_of
from workbench.parallel.transformer import Dropout

__all__ = ["BlockConfig", "Mesh", "MeshBlock", "MeshNorm", "open_mesh"]

PARTS = ("attention_norm", "query_key_value", "output", "mlp_norm", "input", "projection")  # of a block
SEQUENCE, HIDDEN = 1, 2  # dimensions of x [B, S, H]
Steps = Generator[Pending, Tensor, Tensor]  # yields what is on its way, is sent it once it is there, returns a result


@dataclass(frozen=True, slots=True)
class Mesh:
    """This rank's place on a device mesh of two axes; ranks that differ only in axis 2 are neighbours."""

    device_mesh: DeviceMesh
    axis1: ProcessTensorGroup  # of d1 ranks: DeviceMesh(N, 1) is Megatron's tensor parallelism
    axis2: ProcessTensorGroup  # of d2 ranks
    whole: ProcessTensorGroup  # of the d1 x d2 ranks of this mesh
    replicas: dist.ProcessGroup | None = None  # ranks at this place of all meshes, for DistributedDataParallel

    @property
    def shape(self) -> tuple[int, int]:
        """d1 and d2."""
        return self.axis1.size, self.axis2.size

    @property
    def replica(self) -> int:
        """Number of this mesh among its replicas."""
        return 0 if self.replicas is None else dist.get_rank(self.replicas)

    def __deepcopy__(self, memo) -> Mesh:
        # Groups are handles on running processes: copies of a model share them.
        return self


def open_mesh(
    d1: int,
    d2: int,
    device: str = "cpu",
    group: Callable[[dist.ProcessGroup | None], ProcessTensorGroup] = ProcessTensorGroup,
    *,
    replicas: int = 1,
) -> Mesh:
    """Arrange all ranks as DeviceMesh(d1, d2), or as several of them beside each other; every rank calls it.

    Args:
        d1, d2: Sizes of the axes.
        device: Of the ranks: "cpu" or "cuda".
        group: Makes the group of an axis, such as one that records.
        replicas: Meshes of d1 x d2 neighbouring ranks, each of which has a whole model and batches of its own. Wrap the
            model in `DistributedDataParallel(model, process_group=mesh.replicas)`, which averages the gradients.

    Raises:
        ValueError: if replicas x d1 x d2 is not the number of ranks.
    """
    size = dist.get_world_size()
    if replicas * d1 * d2 != size:
        times, more = ("", "") if replicas == 1 else (f"{replicas} x ", "replicas, ")
        raise ValueError(f"{more}d1, d2: {times}{d1} x {d2} is not the number of ranks, {size}")
    if replicas == 1:
        mesh, beside, whole = init_mesh(device, (d1, d2), ("axis1", "axis2")), None, None
    else:
        cube = init_mesh(device, (replicas, d1, d2), ("replicas", "axis1", "axis2"))
        mesh, beside = cube["axis1", "axis2"], cube.get_group("replicas")
        members = torch.arange(size).view(replicas, -1).tolist()
        whole, _ = dist.new_subgroups_by_enumeration(members, timeout=timeout_of())
    axis1, axis2 = group(mesh.get_group("axis1")), group(mesh.get_group("axis2"))
    return Mesh(mesh, axis1, axis2, ProcessTensorGroup(whole), beside)


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockConfig:
    """Sizes of a block, and what tells GPT-2's from BERT's."""

    hidden_size: int  # H
    num_heads: int  # attention heads
    mlp_size: int  # inner units of the perceptron
    norm_first: bool = True  # x + f(norm(x)), as in GPT-2; False: norm(x + f(x)), as in BERT
    is_causal: bool = True  # no position looks at a later one
    gelu: str = "tanh"  # how GELU is computed: "tanh", or "none" for exactly, as in BERT
    dropout: float = 0.0  # of each sub-layer's result
    attention_dropout: float = 0.0  # of attention weights
    norm_eps: float = 1e-5  # added to the variance
    chunks: int = 1  # of the batch
    overlap: bool = True  # whether a weight's gradient is computed while the input's is summed
    sequence_parallel: bool = False  # whether x is cut along the sequence over axis 1 between the linears
    seed: int = 0  # of weights and dropout

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_heads", "mlp_size", "chunks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")
        if self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads: {self.num_heads} does not divide hidden_size {self.hidden_size}")
        if self.sequence_parallel and self.chunks > 1:
            raise ValueError(f"chunks: {self.chunks}; sequence parallelism waits for each message, use 1")

    def check_mesh(self, d1: int, d2: int) -> None:
        """Refuse a mesh that does not divide heads, hidden size and inner units."""
        check_divides("num_heads", self.num_heads, d1 * d2)
        check_divides("hidden_size", self.hidden_size, d1 * d2)
        check_divides("mlp_size", self.mlp_size, d1 * d2)


class MeshNorm(nn.Module):
    """Layer normalisation of [B, S, H / d2]: the ranks of axis 2 exchange each position's mean and deviation."""

    def __init__(self, config: BlockConfig, mesh: Mesh, **place):
        super().__init__()
        self.config, self.group, self.rows = config, mesh.axis2, mesh.axis1
        share = config.hidden_size // mesh.axis2.size
        self.weight, self.bias = nn.Parameter(torch.ones(share, **place)), nn.Parameter(torch.zeros(share, **place))

    @torch.no_grad()
    def load_full_(self, weight: Tensor, bias: Tensor) -> None:
        """Copy this rank's share of a full weight and bias [H]."""
        for parameter, full in ((self.weight, weight), (self.bias, bias)):
            parameter.copy_(cut(full, dim=0, rank=self.group.local_ranks[0], size=self.group.size))

    def full_weight(self, gradient: bool = False) -> Tensor:
        """Join the weight of all ranks, or its gradient, [H]; every rank calls it."""
        return self._whole(self.weight, gradient)

    def full_bias(self, gradient: bool = False) -> Tensor:
        """Join the bias as `full_weight` does."""
        return self._whole(self.bias, gradient)

    def _whole(self, parameter: nn.Parameter, gradient: bool) -> Tensor:
        part = parameter.grad if gradient else parameter
        assert part is not None  # of a gradient: after a backward pass
        return torch.cat(self.group.gather([part]))

    def steps(self, x: Tensor) -> Steps:
        """Normalise; one all-gather of two numbers a position over axis 2."""
        weight, bias = (shared(parameter, self.rows, self.config) for parameter in (self.weight, self.bias))
        if self.group.size == 1:
            return functional.layer_norm(x, (x.shape[-1],), weight, bias, self.config.norm_eps)
        wide = torch.promote_types(x.dtype, torch.float32)
        variance, mean = torch.var_mean(x.to(wide), -1, correction=0)
        with self.group.traffic.at("norm"):
            pending = start_gather(torch.stack([mean, variance])[None], self.group, 0, backward=Exchange.SCATTER_SUM)
        means, variances = (yield pending).unbind(1)
        mean = means.mean(0)
        variance = (variances + (means - mean).square()).mean(0)
        scaled = (x - mean[..., None]) * torch.rsqrt(variance + self.config.norm_eps)[..., None]
        return (scaled * weight + bias).to(x.dtype)


def shared(parameter: Tensor, rows: ProcessTensorGroup, config: BlockConfig) -> Tensor:
    """Return a parameter that all ranks of axis 1 hold; where each has a part of the sequence, gradients are added."""
    return rows.copy(parameter) if config.sequence_parallel and rows.size > 1 else parameter


class MeshBlock(nn.Module):
    """One transformer block on a mesh.

    Args:
        config: Sizes.
        mesh: Where.
        site: Name of the block; seeds its weights and labels its traffic.
        device, dtype: Of the parameters.
    """

    def __init__(self, config: BlockConfig, mesh: Mesh, *, site: str = "block", **place):
        super().__init__()
        config.check_mesh(*mesh.shape)
        self.config, self.mesh, (d1, d2) = config, mesh, mesh.shape
        self.local_heads = config.num_heads // (d1 * d2)
        hidden, inner = config.hidden_size, config.mlp_size
        axis1, axis2, cuts = mesh.axis1, mesh.axis2, config.sequence_parallel
        same = {"seed": config.seed, "overlap": config.overlap, **place}
        column, row = {"sums_gradient": not cuts, **same}, same
        self.query_key_value = MeshLinear(hidden, 3 * hidden, axis1, axis2, num_blocks=3, site=f"{site}.qkv", **column)
        self.output = MeshLinear(hidden, hidden, axis2, axis1, site=f"{site}.output", **row)
        self.input = MeshLinear(hidden, inner, axis1, axis2, site=f"{site}.input", **column)
        self.projection = MeshLinear(inner, hidden, axis2, axis1, site=f"{site}.projection", **row)
        self.attention_norm, self.mlp_norm = MeshNorm(config, mesh, **place), MeshNorm(config, mesh, **place)
        self.site = site
        (i,), (j,) = axis1.local_ranks, axis2.local_ranks
        stream = f"{site}.replica{mesh.replica}" if mesh.replica else site
        part = f"{stream}.{j}.{i if cuts else 0}"  # ranks that hold the same units of the same positions drop the same
        self.dropouts = nn.ModuleList(
            Dropout(config.dropout, seed=config.seed, site=f"{part}.dropout{number}") for number in (0, 1)
        )
        self.attention_dropout = Dropout(config.attention_dropout, seed=config.seed, site=f"{stream}.{j}.{i}.attention")

    def load_full_(self, full: Mapping[str, Tensor]) -> None:
        """Copy this rank's shards of full tensors named as `PARTS` name them, such as "input.weight" [out, in]."""
        for part in PARTS:
            getattr(self, part).load_full_(full[f"{part}.weight"], full[f"{part}.bias"])

    def full(self, gradient: bool = False) -> dict[str, Tensor]:
        """Join the shards of all ranks, or their gradients, under the names of `load_full_`; every rank calls it."""
        parts = {part: getattr(self, part) for part in PARTS}
        weights = {f"{name}.weight": part.full_weight(gradient) for name, part in parts.items()}
        return weights | {f"{name}.bias": part.full_bias(gradient) for name, part in parts.items()}

    def sharers(self) -> Iterator[tuple[nn.Parameter, ProcessTensorGroup | None]]:
        """Yield each parameter and the group whose ranks all hold the same; None if no other rank does."""
        for part in (getattr(self, name) for name in PARTS):
            if isinstance(part, MeshNorm):
                yield from ((parameter, part.rows) for parameter in part.parameters())
            else:
                yield from ((weight, None) for weight in part.weights)
                yield from ((bias, part.input_group) for bias in part.biases)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Transform [B, S, H / d2] (sequence cut over axis 1 where parallel); see `functional` for the mask."""
        xs = x.chunk(self.config.chunks) if self.config.chunks > 1 else [x]
        masks = [mask] * len(xs) if mask is None or len(mask) == 1 else mask.chunk(self.config.chunks)
        return torch.cat(in_turns(self.steps(*pair) for pair in zip(xs, masks, strict=True)))

    def steps(self, x: Tensor, mask: Tensor | None) -> Steps:
        """Transform one chunk, yielding each message when it is on its way."""
        for attends, norm, dropout in zip(
            (True, False), (self.attention_norm, self.mlp_norm), self.dropouts, strict=True
        ):
            h = (yield from norm.steps(x)) if self.config.norm_first else x
            if self.config.sequence_parallel:
                h = yield start_gather(h, self.mesh.axis1, SEQUENCE, backward=Exchange.SCATTER_SUM)
            x = x + dropout((yield from self._attention(h, mask) if attends else self._mlp(h)))
            if not self.config.norm_first:
                x = yield from norm.steps(x)
        return x

    def _attention(self, h: Tensor, mask: Tensor | None) -> Steps:
        qkv = yield self.query_key_value.start(h)
        axis2 = self.mesh.axis2
        with axis2.traffic.at(f"{self.site}.core"):
            parts = take_share(qkv.unflatten(-1, (3, -1)), axis2, -1).unbind(-2)
            context = yield start_gather(self._attend(parts, mask), axis2, HIDDEN)
        return (yield self._leave(self.output, context))

    def _mlp(self, h: Tensor) -> Steps:
        inner = yield self.input.start(h)
        return (yield self._leave(self.projection, functional.gelu(inner, approximate=self.config.gelu)))

    def _leave(self, linear: MeshLinear, x: Tensor) -> Pending:
        """Begin a row-first linear: its sum over axis 1, or each rank's part of the sequence of the sum."""
        if not self.config.sequence_parallel or self.mesh.axis1.size == 1:
            return linear.start(x)
        with self.mesh.axis1.traffic.at(linear.site):
            pending = start_scatter_sum(linear.partial(x), self.mesh.axis1, SEQUENCE)
        bias = shared(linear.biases[0], self.mesh.axis1, self.config)
        return pending.then(lambda total: total + bias)

    def _attend(self, parts: Iterable[Tensor], mask: Tensor | None) -> Tensor:
        """Attend with this rank's heads: three of [B, S, H / (d1 d2)] -> one."""
        q, k, v = (part.unflatten(-1, (self.local_heads, -1)).transpose(1, 2) for part in parts)
        causal = self.config.is_causal and mask is None
        if not self.attention_dropout.is_active:
            context = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
        else:  # torch's own draws from the global generator, which all ranks have in the same state
            if causal:
                mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
            if mask is not None and mask.dtype == torch.bool:
                mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, float("-inf"))
            scores = q @ k.mT * q.shape[-1] ** -0.5
            context = self.attention_dropout(torch.softmax(scores if mask is None else scores + mask, -1)) @ v
        return context.transpose(1, 2).flatten(2)


def in_turns(chunks: Iterable[Steps]) -> list[Tensor]:
    """Run chunks side by side: one computes while the messages of the others are on their way."""
    running: list[tuple[int, Steps, Pending | None]] = [(number, steps, None) for number, steps in enumerate(chunks)]
    results: dict[int, Tensor] = {}
    while running:
        number, steps, before = running.pop(0)
        try:
            pending = next(steps) if before is None else steps.send(before.wait())
            while pending.work is None:  # nothing was sent
                pending = steps.send(pending.wait())
            running.append((number, steps, pending))
        except StopIteration as end:
            results[number] = end.value
    return [results[number] for number in sorted(results)]
