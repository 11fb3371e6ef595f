"""The residual network for small images (He et al., 2016, section 4.2), cut into pipeline stages.

6 n + 2 layers: one convolution, three rows of n blocks with 1, 2 and 4 times the width, and a classifier. Group norm
takes the place of batch norm, so that replicas which average their weights have no running statistics to disagree in.

Shapes: B = batch, C = channels, H = height, W = width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.checks import require_counts

__all__ = ["resnet_stages"]

GROUP_CHANNELS = 4  # channels of a group in a group norm
NUM_ROWS = 3
COLOURS = 3


class _Block(nn.Module):
    """Two convolutions around which the input is carried; where the shape changes it is strided and padded by zeros."""

    def __init__(self, channels: int, out_channels: int):
        super().__init__()
        self.stride = out_channels // channels
        self.convolution = _convolution(channels, out_channels, self.stride)
        self.norm = nn.GroupNorm(out_channels // GROUP_CHANNELS, out_channels)
        self.second_convolution = _convolution(out_channels, out_channels)
        self.second_norm = nn.GroupNorm(out_channels // GROUP_CHANNELS, out_channels)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW = functional.relu(self.norm(self.convolution(x_BCHW)))
        y_BCHW = self.second_norm(self.second_convolution(y_BCHW))
        if self.stride > 1:
            x_BCHW = x_BCHW[:, :, :: self.stride, :: self.stride]
            x_BCHW = functional.pad(x_BCHW, (0, 0, 0, 0, 0, y_BCHW.shape[1] - x_BCHW.shape[1]))
        return functional.relu(y_BCHW + x_BCHW)


class _Classifier(nn.Linear):
    """Scores of classes from the mean over all places: [B, C, H, W] -> [B, labels]."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return super().forward(x_BCHW.mean(dim=(2, 3)))


def _convolution(channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=False)


def resnet_stages(
    num_stages: int, *, blocks: int = 1, width: int = 8, num_labels: int = 10, seed: int = 0
) -> list[nn.Sequential]:
    """Build the network in stages of about as many blocks each, equal for equal seeds.

    Args:
        num_stages: M; at most 3 n + 2, the parts that it can be cut between.
        blocks: n, of a row.
        width: channels of the first row, a multiple of 4.
        num_labels: classes.
        seed: of the weights.
    """
    require_counts(1, num_stages=num_stages, blocks=blocks, width=width)
    if width % GROUP_CHANNELS:
        raise ValueError(f"width is {width}; it must be a multiple of {GROUP_CHANNELS}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parts: list[nn.Module] = [_convolution(COLOURS, width)]
        channels = width
        for row in range(NUM_ROWS):
            for _ in range(blocks):
                out_channels = width * 2**row
                parts.append(_Block(channels, out_channels))
                channels = out_channels
        parts.append(_Classifier(channels, num_labels))
    return [nn.Sequential(*chosen) for chosen in _cut(parts, num_stages)]


def _cut(parts: Sequence[nn.Module], num_stages: int) -> list[Sequence[nn.Module]]:
    """Cut parts into stages of equal length or one more, the later ones longer."""
    if num_stages > len(parts):
        raise ValueError(f"num_stages is {num_stages}; it must be at most {len(parts)}, the parts of the network")
    ends = [len(parts) * (stage + 1) // num_stages for stage in range(num_stages)]
    return [parts[start:end] for start, end in zip([0, *ends], ends, strict=False)]
