"""ATP's rivals on real ranks: 2-D tensor parallelism by SUMMA, and 2.5-D, which also cuts the batch over mesh layers.

Source: Q. Xu et al., "An Efficient 2D Method for Training Super-Large Deep Learning Models"; B. Wang et al.,
"2.5-dimensional Distributed Model Training".

Shapes: B = batch, S = sequence, H = hidden, I = inputs, O = outputs; of one rank's block b = B / (q depth), h = H / q,
i = I / q, o = O / q; n = the block's leading dimensions, b S of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from workbench.models.gpt2 import GPT2Block, GPT2Config
from workbench.parallel.groups import ProcessTensorGroup
from workbench.parallel.moves import Arrival, Shape, moves_of
from workbench.parallel.shards import cut, join
from workbench.parallel.timeouts import timeout_of
from workbench.parallel.traffic import MessageKind, Phase

from ..method.summa import PassElements, share

__all__ = ["SummaBlock", "SummaLinear", "SummaMesh", "SummaNorm"]


@dataclass(frozen=True, slots=True, eq=False)
class SummaMesh:
    """All ranks as `depth` layers of q x q: rank (layer q + row) q + column. All ranks create it together.

    Activations: the last dimension is cut over mesh columns, the first over mesh rows and layers. Weights: inputs are
    cut over mesh rows, outputs over mesh columns, and all layers hold the same weights.
    """

    q: int  # number of rows and of columns
    depth: int = 1  # number of layers; 1 is 2-D, more is 2.5-D
    layer: int = field(init=False)  # place of this rank
    row: int = field(init=False)  # place of this rank
    column: int = field(init=False)  # place of this rank
    row_group: ProcessTensorGroup = field(init=False)  # ranks of this row and layer, by column
    column_group: ProcessTensorGroup = field(init=False)  # ranks of this column and layer, by row
    depth_group: ProcessTensorGroup = field(init=False)  # ranks of this row and column, by layer

    def __post_init__(self):
        q, depth, num_ranks = self.q, self.depth, dist.get_world_size()
        if min(q, depth) < 1 or depth * q * q != num_ranks:
            raise ValueError(f"q: depth * q * q is {depth} * {q} * {q}, which must be the number of ranks, {num_ranks}")
        ranks = torch.arange(num_ranks).view(depth, q, q)
        place = (ranks == dist.get_rank()).nonzero()[0].tolist()
        members = ranks.reshape(-1, q), ranks.mT.reshape(-1, q), ranks.flatten(1).mT
        made = [dist.new_subgroups_by_enumeration(axis.tolist(), timeout=timeout_of())[0] for axis in members]
        groups = [ProcessTensorGroup(group) for group in made]
        names = "layer", "row", "column", "row_group", "column_group", "depth_group"
        for name, value in zip(names, place + groups, strict=True):
            object.__setattr__(self, name, value)

    def cut(self, full: Tensor) -> Tensor:
        """Take this rank's block [b, ..., h] of activations [B, ..., H]."""
        num_parts = self.q * self.depth
        share("batch", full.shape[0], "q * depth", num_parts)
        share("hidden", full.shape[-1], "q", self.q)
        part = cut(full, dim=0, rank=self.layer * self.q + self.row, size=num_parts)
        return cut(part, dim=-1, rank=self.column, size=self.q)

    def join(self, block: Tensor) -> Tensor:
        """Gather the blocks [b, ..., h] of all ranks on every rank: [B, ..., H], detached."""
        strip = join(self.row_group.gather([block]), dim=-1)
        return join(self.depth_group.gather([join(self.column_group.gather([strip]), dim=0)]), dim=0)

    def replicate(self, parameter: Tensor) -> Tensor:
        """Return a parameter that a mesh column holds in all layers; its gradient is summed over their ranks."""
        return self.depth_group.copy(self.column_group.copy(parameter))

    def elements(self, phase: Phase, element_bytes: int) -> PassElements:
        """Count the elements of all messages so far; every element had `element_bytes` bytes."""

        def moved(group: ProcessTensorGroup, *kinds: MessageKind) -> int:
            return sum(group.traffic.num_bytes(what=kind, phase=phase) for kind in kinds) // element_bytes

        all_reduce = (MessageKind.SUM, MessageKind.COPY_BACKWARD)
        return PassElements(
            row_broadcast=moved(self.row_group, MessageKind.BROADCAST),
            column_broadcast=moved(self.column_group, MessageKind.BROADCAST),
            row_reduce=moved(self.row_group, MessageKind.REDUCE),
            column_reduce=moved(self.column_group, MessageKind.REDUCE),
            row_all_reduce=moved(self.row_group, *all_reduce),
            column_all_reduce=moved(self.column_group, *all_reduce),
            depth_all_reduce=moved(self.depth_group, *all_reduce),
        )


class _Product(torch.autograd.Function):
    """Y = X W by SUMMA, every matrix in q x q blocks.

    Forward: in step t, block t of X is broadcast along its mesh row and block t of W along its mesh column; Y adds
    their product.
    Backward: in step t, block t of W is broadcast and grad_Y W^T reduced to column t along the row, then block t of X
    is broadcast and X^T grad_Y reduced to row t along the column.
    """

    @staticmethod
    def forward(ctx, x_ni: Tensor, weight_io: Tensor, mesh: SummaMesh) -> Tensor:
        ctx.mesh, row, column = mesh, mesh.row_group, mesh.column_group
        ctx.save_for_backward(x_ni, weight_io)
        y_no = x_ni.new_zeros(len(x_ni), weight_io.shape[1])
        for step in range(mesh.q):
            x_arrival, weight_arrival = _broadcast(row, x_ni, step), _broadcast(column, weight_io, step)
            y_no.addmm_(x_arrival.wait(), weight_arrival.wait())
        return y_no

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_no: Tensor):
        (x_ni, weight_io), mesh = ctx.saved_tensors, ctx.mesh
        row, column = mesh.row_group, mesh.column_group
        x_sums, weight_sums = [], []
        with row.traffic.at("", Phase.BACKWARD), column.traffic.at("", Phase.BACKWARD):
            for step in range(mesh.q):
                x_arrival, weight_arrival = _broadcast(row, x_ni, step), _broadcast(column, weight_io, step)
                x_sums.append(moves_of(row).reduce([grad_no @ weight_arrival.wait().mT], step))
                weight_sums.append(moves_of(column).reduce([x_arrival.wait().mT @ grad_no], step))
        grad_x, grad_weight = [arrival.wait() for arrival in x_sums], [arrival.wait() for arrival in weight_sums]
        return grad_x[mesh.column], grad_weight[mesh.row], None


def _broadcast(group: ProcessTensorGroup, block: Tensor, source: int) -> Arrival[Tensor]:
    return moves_of(group).broadcast([block], source, Shape.of(block))


class _Shards(nn.Module):
    """This rank's parts of a weight and a bias; both are zero until they are loaded."""

    def __init__(self, mesh: SummaMesh, weight_shape: tuple[int, ...], *, num_blocks: int = 1):
        super().__init__()
        self.mesh, self.num_blocks = mesh, num_blocks
        self.weight = nn.Parameter(torch.zeros(weight_shape))
        self.bias = nn.Parameter(torch.zeros(weight_shape[-1:]))

    @torch.no_grad()
    def load_full_(self, weight: Tensor, bias: Tensor) -> None:
        """Copy this rank's part of a weight, [O, I] of a linear or [H] of a norm, and of a bias [O] or [H]."""
        for name, full, shard in (("weight", weight, self.weight), ("bias", bias, self.bias)):
            part = cut(full, dim=0, rank=self.mesh.column, size=self.mesh.q, num_blocks=self.num_blocks)
            if part.dim() > 1:
                part = cut(part, dim=1, rank=self.mesh.row, size=self.mesh.q).mT
            if part.shape != shard.shape:
                raise ValueError(f"{name}: a part of {tuple(part.shape)} does not fit; it must be {tuple(shard.shape)}")
            shard.copy_(part)

    def full(self, gradient: bool = False) -> dict[str, Tensor]:
        """Gather `weight` and `bias`, or their gradients, on every rank, detached, in the shapes of `load_full_`."""
        return {name: self._whole(part.grad if gradient else part.detach()) for name, part in self.named_parameters()}

    def _whole(self, part: Tensor | None) -> Tensor:
        assert part is not None  # of a gradient: after a backward pass
        strips = self.mesh.row_group.gather([part.mT if part.dim() > 1 else part])
        whole = join(strips, dim=0, num_blocks=self.num_blocks)
        return whole if whole.dim() == 1 else join(self.mesh.column_group.gather([whole]), dim=1)


class SummaLinear(_Shards):
    """y = x W + b of blocks; the gradients of W and b are those of the whole batch.

    Outputs are `num_blocks` stacked blocks, each cut over mesh columns. A fused query, key, value has 3 blocks, so that
    every head is on one rank.
    """

    def __init__(self, in_features: int, out_features: int, mesh: SummaMesh, *, num_blocks: int = 1):
        share("out_features", out_features, "q * num_blocks", mesh.q * num_blocks)
        shape = share("in_features", in_features, "q", mesh.q), out_features // mesh.q
        super().__init__(mesh, shape, num_blocks=num_blocks)

    def forward(self, x_bSi: Tensor) -> Tensor:
        """Multiply this rank's block: [b, ..., i] -> [b, ..., o]; every rank calls it."""
        weight_io = self.mesh.depth_group.copy(self.weight)
        y_no = _Product.apply(x_bSi.flatten(0, -2), weight_io, self.mesh)
        return y_no.unflatten(0, x_bSi.shape[:-1]) + self.mesh.replicate(self.bias)


class SummaNorm(_Shards):
    """Layer norm over a dimension cut over mesh columns: forward and backward two all-reduces of a number a token."""

    def __init__(self, hidden_size: int, mesh: SummaMesh, *, eps: float = 1e-5):
        super().__init__(mesh, (share("hidden_size", hidden_size, "q", mesh.q),))
        self.hidden_size, self.eps = hidden_size, eps

    def forward(self, x_bSh: Tensor) -> Tensor:
        """Normalise this rank's block [b, ..., h] by mean and variance over all H; every rank calls it."""
        centred_bSh = x_bSh - self._mean(x_bSh)
        scale_bS1 = torch.rsqrt(self._mean(centred_bSh.square()) + self.eps)
        return centred_bSh * scale_bS1 * self.mesh.replicate(self.weight) + self.mesh.replicate(self.bias)

    def _mean(self, x_bSh: Tensor) -> Tensor:
        row = self.mesh.row_group  # each rank uses the mean for its own part, so the gradient is summed as well
        return row.copy(row.sum([x_bSh.sum(-1, keepdim=True)])) / self.hidden_size


class SummaBlock(GPT2Block):
    """GPT-2's block on a mesh, [b, S, h] -> [b, S, h]: no dropout, and at first the weights of `GPT2Block`."""

    def __init__(self, config: GPT2Config, mesh: SummaMesh, index: int = 0):
        local_heads = share("num_heads", config.num_heads, "q", mesh.q)
        if config.dropout:
            raise ValueError(f"dropout: {config.dropout} must be 0 in a block on a mesh")
        super().__init__(config, index)
        full, hidden, eps = self.state_dict(), config.hidden_size, config.layer_norm_eps
        self.num_heads = local_heads
        parts = {
            "attention_norm": SummaNorm(hidden, mesh, eps=eps),
            "mlp_norm": SummaNorm(hidden, mesh, eps=eps),
            "query_key_value": SummaLinear(hidden, 3 * hidden, mesh, num_blocks=3),
            "output": SummaLinear(hidden, hidden, mesh),
            "input": SummaLinear(hidden, 4 * hidden, mesh),
            "projection": SummaLinear(4 * hidden, hidden, mesh),
        }
        for name, part in parts.items():
            self.add_module(name, part)  # in the place of the whole one
        self.load_full_(full)

    def load_full_(self, state: Mapping[str, Tensor]) -> None:
        """Copy this rank's parts of the state of a full `GPT2Block`."""
        for name, part in self._parts():
            part.load_full_(state[f"{name}.weight"], state[f"{name}.bias"])

    def full(self, gradient: bool = False) -> dict[str, Tensor]:
        """Gather all parameters or their gradients on every rank, under the names and in the shapes of `GPT2Block`."""
        parts = ((name, part.full(gradient)) for name, part in self._parts())
        return {f"{name}.{kind}": tensor for name, tensors in parts for kind, tensor in tensors.items()}

    def _parts(self) -> list[tuple[str, _Shards]]:
        return [(name, part) for name, part in self.named_children() if isinstance(part, _Shards)]
