"""Products of bfloat16 matrices where the processor has no instructions for them: rounded once, backward ones too."""

import pytest
import torch
from torch import nn

from workbench.study import precision
from workbench.study.precision import ProductsInFloat32, computing_in


def rounded_by_definition(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left.double() @ right.double()).bfloat16()


def assert_neighbours(product: torch.Tensor, expected: torch.Tensor) -> None:
    """At most one bfloat16 apart, and most of them equal."""
    assert product.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(product, expected, rtol=2**-7, atol=1e-3)
    assert (product == expected).double().mean() > 0.95


def test_a_product_by_hand_is_rounded_after_the_sum():
    # 1 + 2^-8 lies half-way between two bfloat16 values and would be rounded down to 1, twice; 1 + 2^-7 is one.
    left, right = torch.tensor([[1.0, 2**-4, 2**-4]]).bfloat16(), torch.tensor([[1.0], [2**-4], [2**-4]]).bfloat16()
    with ProductsInFloat32():
        product = left @ right
    assert product.dtype == torch.bfloat16 and product.item() == 1 + 2**-7


@pytest.mark.parametrize("shapes", [((7, 33), (33, 5)), ((2, 7, 33), (2, 33, 5))], ids=["mm", "bmm"])
def test_products_are_those_of_torch_s_emulation_up_to_the_last_bit(shapes):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    emulated = left @ right
    with ProductsInFloat32():
        product = left @ right
    assert_neighbours(product, emulated)
    assert_neighbours(product, rounded_by_definition(left, right))


@pytest.mark.parametrize("context", [ProductsInFloat32(), computing_in("fp32")], ids=["in float32", "fp32"])
def test_products_in_float32_stay_bit_for_bit(context):
    left, right = torch.randn(9, 17), torch.randn(17, 3)
    with context:
        assert torch.equal(left @ right, torch.mm(left, right))


@pytest.mark.parametrize("has_instructions", [True, False])
def test_a_model_and_its_gradients_are_the_same_either_way(monkeypatch, has_instructions):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 3))
    inputs = torch.randn(16, 24)

    def loss_and_gradients() -> list[torch.Tensor]:
        model.zero_grad()
        loss = model(inputs).float().square().mean()
        loss.backward()
        return [loss.detach(), *(weight.grad.clone() for weight in model.parameters())]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = loss_and_gradients()
    monkeypatch.setattr(precision, "has_bfloat16_instructions", lambda: has_instructions)
    with computing_in("bf16"):
        computed = loss_and_gradients()
    torch.testing.assert_close(computed, expected, rtol=0.03, atol=1e-3)
