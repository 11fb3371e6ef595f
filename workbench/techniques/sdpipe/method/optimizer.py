"""Adam whose second moments have the variance of all workers' mean gradient (section 4)."""

from collections.abc import Iterable

import torch
from torch import Tensor, optim

from workbench.checks import require_counts, require_not_negative, require_positive

__all__ = ["VarianceReducedAdam", "reduced_by_definition"]


def reduced_by_definition(gradients: Iterable[Tensor], beta2: float, num_workers: int) -> Tensor:
    """Return the second moments after these gradients of one worker, with the variance of a mean over workers.

    v and m are moving averages of squared gradients and of gradients, freed of their start at zero; the variance
    v - m^2, at least 0, is divided by N and added to m^2 again.

    Args:
        gradients: of one worker, step by step, tensors of one shape.
        beta2: decay of both averages.
        num_workers: N.
    """
    v = m = torch.zeros(())
    steps = 0
    for gradient in gradients:
        v = beta2 * v + (1 - beta2) * gradient**2
        m = beta2 * m + (1 - beta2) * gradient
        steps += 1
    v, m = v / (1 - beta2**steps), m / (1 - beta2**steps)
    return m**2 + (v - m**2).clamp(min=0) / num_workers


class VarianceReducedAdam(optim.Optimizer):
    """AdamW for workers that average their models: its second moments are those of `reduced_by_definition`.

    With one worker it is AdamW. It keeps one more average of gradients, with the decay of the second moments.

    Args:
        params: parameters, or groups of them.
        num_workers: N, whose models are averaged.
        lr, betas, eps, weight_decay: as of torch's AdamW.
    """

    def __init__(self, params, *, num_workers: int, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        require_counts(1, num_workers=num_workers)
        require_not_negative(lr=lr.item() if isinstance(lr, Tensor) else lr)
        require_positive(eps=eps)
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas is {betas!r}; both must be in [0, 1)")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._num_workers = num_workers

    @torch.no_grad()
    def step(self, closure=None):
        """Do one update; `closure` is called first, as in torch."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    if weight.grad.layout is not torch.strided:
                        raise RuntimeError(f"gradient is {weight.grad.layout}; it must be dense, as with sparse=False")
                    self._update_(weight, group)
        return loss

    def _update_(self, weight: Tensor, group: dict) -> None:
        state, (beta1, beta2) = self.state[weight], group["betas"]
        if not state:
            state["step"] = 0
            for name in ("first", "mean", "square"):  # of the update; with the decay of the squares; of squares
                state[name] = torch.zeros_like(weight)
        state["step"] += 1
        state["first"].lerp_(weight.grad, 1 - beta1)
        state["mean"].lerp_(weight.grad, 1 - beta2)
        state["square"].mul_(beta2).addcmul_(weight.grad, weight.grad, value=1 - beta2)
        grown = 1 - beta2 ** state["step"]
        mean_squared = (state["mean"] / grown).square_()
        second = (state["square"] / grown).sub_(mean_squared).clamp_(min=0).div_(self._num_workers).add_(mean_squared)
        rate = float(group["lr"])  # which may be a tensor
        weight.mul_(1 - rate * group["weight_decay"])
        weight.addcdiv_(state["first"], second.sqrt_().add_(group["eps"]), value=-rate / (1 - beta1 ** state["step"]))
