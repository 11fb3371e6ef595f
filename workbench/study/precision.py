"""The precision in which a model computes: float32, or bfloat16 also where the processor has no instructions for it.

There matrix products of bfloat16 operands are computed in float32 and rounded once, as the instructions do (Intel,
"BFLOAT16 - Hardware Numerics Definition", 2018); only the order of the additions differs. torch's emulation takes about
four times as long.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["PRECISIONS", "ProductsInFloat32", "computing_in", "has_bfloat16_instructions"]

PRECISIONS = ("fp32", "bf16")
_PRODUCTS: Mapping[Any, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {torch.ops.aten.mm.default: torch.mm, torch.ops.aten.bmm.default: torch.bmm}
)


class ProductsInFloat32(TorchDispatchMode):
    """A mode in which products of bfloat16 matrices on CPU, also backward, are computed in float32 and rounded."""

    def __torch_dispatch__(self, operation: Any, types: tuple, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Replace a product; pass all other operations on."""
        product = _PRODUCTS.get(operation)
        if product is None or args[0].dtype is not torch.bfloat16 or args[0].device.type != "cpu":
            return operation(*args, **(kwargs or {}))
        return product(args[0].float(), args[1].float()).bfloat16()


@contextmanager
def computing_in(precision: str, device: str | torch.device = "cpu") -> Iterator[None]:
    """Compute in "fp32", or in "bf16": matrix products of operands rounded to bfloat16, by autocast; weights stay."""
    kind = torch.device(device).type
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=precision == "bf16"):
        if precision == "bf16" and kind == "cpu" and not has_bfloat16_instructions():
            with ProductsInFloat32():
                yield
        else:
            yield


def has_bfloat16_instructions() -> bool:
    """Return whether this processor multiplies bfloat16; True where torch cannot tell."""
    capabilities = torch.cpu.get_capabilities()
    asked = [capabilities[name] for name in ("avx512_bf16", "amx_bf16", "amx_tile", "bf16") if name in capabilities]
    return any(asked) if asked else True
