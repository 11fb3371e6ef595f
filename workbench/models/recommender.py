"""DeepFM (Guo et al., 2017): linear terms, a factorisation machine and a perceptron over the same embeddings.

y = w + Σ_i w_i x_i + Σ_{i<j} <v_i, v_j> x_i x_j + MLP(v_1 x_1, v_2 x_2, ...), over categories (x = 1) and numbers.

Shapes: B = batch, C = categories, N = numbers, F = C + N fields, D = width of an embedding.
"""

from itertools import combinations

import torch
from torch import Tensor, nn

from workbench.checks import require_counts

__all__ = ["DeepFM", "interactions", "interactions_by_definition"]

FACTOR_STD = 0.01  # standard deviation of the initial v: products of two are then near 0


def interactions(fields_BFD: Tensor) -> Tensor:
    """Sum the inner products of all pairs of fields, [B]: half of (the squared sum less the sum of squares)."""
    return 0.5 * (fields_BFD.sum(dim=1).square() - fields_BFD.square().sum(dim=1)).sum(dim=-1)


def interactions_by_definition(fields_BFD: Tensor) -> Tensor:
    """Sum the inner products of all pairs of fields one after the other, [B]."""
    pairs = combinations(fields_BFD.unbind(dim=1), 2)
    return torch.stack([(first_BD * second_BD).sum(dim=-1) for first_BD, second_BD in pairs]).sum(dim=0)


class DeepFM(nn.Module):
    """Predicts a click from categories and numbers.

    Args:
        num_rows: Rows of the one table that holds the values of all categories.
        num_categories: C.
        num_numbers: N.
        width: D.
        hidden: Widths of the perceptron's layers.
        sparse: Whether the two tables have sparse gradients.
    """

    def __init__(
        self,
        num_rows: int,
        *,
        num_categories: int = 26,
        num_numbers: int = 13,
        width: int = 10,
        hidden: tuple[int, ...] = (400, 400),
        sparse: bool = False,
    ):
        super().__init__()
        require_counts(1, num_rows=num_rows, num_categories=num_categories, num_numbers=num_numbers, width=width)
        self.embedding = nn.Embedding(num_rows, width, sparse=sparse)
        self.first_order = nn.Embedding(num_rows, 1, sparse=sparse)
        self.number_factors = nn.Parameter(torch.empty(num_numbers, width))
        self.number_weights = nn.Linear(num_numbers, 1)
        sizes = ((num_categories + num_numbers) * width, *hidden)
        layers = [part for k, n in zip(sizes, hidden, strict=False) for part in (nn.Linear(k, n), nn.ReLU())]
        self.perceptron = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))
        for weight in (self.embedding.weight, self.first_order.weight, self.number_factors):
            nn.init.normal_(weight, std=FACTOR_STD)

    def forward(self, rows_BC: Tensor, numbers_BN: Tensor) -> Tensor:
        """Score advertisements by the table's rows of their categories, int64, and by their numbers: logits [B]."""
        numbers_BND = numbers_BN[:, :, None] * self.number_factors
        fields_BFD = torch.cat([self.embedding(rows_BC), numbers_BND], dim=1)
        linear_B = self.first_order(rows_BC).sum(dim=(1, 2)) + self.number_weights(numbers_BN)[:, 0]
        return linear_B + interactions(fields_BFD) + self.perceptron(fields_BFD.flatten(1))[:, 0]
