"""Train a pipelined model over epochs, and predict with it, on real ranks or on virtual ranks in one process.

Every rank runs the same loop on the same batches: AdamW, a learning rate that rises and falls in lines (Devlin et al.,
BERT, appendix A.2), no gradient clipping.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from workbench.checks import require_one_of
from workbench.parallel.pipeline import StepResult
from workbench.study.batches import shuffled_batches, sorted_batches
from workbench.study.precision import PRECISIONS, computing_in

__all__ = ["LabelledBatch", "LabelledExamples", "Recipe", "Trainable", "TrainingRun", "linear_factor"]
__all__ += ["linear_warm_up_and_decay", "predict", "train"]

EVALUATION_BATCH = 128  # rows
END_SHARE = 0.1  # share of the steps that counts as the end of the training


class LabelledBatch(Protocol):
    """The batch that a step learns from."""

    @property
    def labels(self) -> Tensor:
        """A label a row."""
        ...

    @property
    def inputs(self) -> Tensor:
        """The first argument of the model, [B, ...]."""
        ...

    @property
    def context(self) -> dict[str, Tensor]:
        """Its further arguments, by name."""
        ...


class LabelledExamples(Protocol):
    """The examples that batches are drawn from."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row; batches hold rows of about the same length."""
        ...

    def batch(self, rows: Sequence[int] | np.ndarray, device: str | torch.device = "cpu") -> LabelledBatch:
        """Put the chosen rows together."""
        ...

    def __len__(self) -> int: ...


class Trainable(Protocol):
    """The part of a pipeline that the loop needs, on real or on virtual ranks."""

    @property
    def module(self) -> nn.Module:
        """The part of the model that is here."""
        ...

    def step(self, inputs: Tensor, targets: Tensor, **context: Tensor) -> StepResult:
        """Run one batch forward and backward."""
        ...

    def evaluate(self, inputs: Tensor, **context: Tensor) -> Tensor | None:
        """Run one batch forward; the output in the last stage, None elsewhere."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How to train."""

    epochs: int  # times that every example is seen
    batch: int  # examples of a step
    learning_rate: float  # at its peak
    precision: str = "fp32"  # or "bf16": matrix products in bfloat16 by autocast, weights and their updates in fp32
    seed: int = 0  # seed of the order of the examples
    warm_up: float = 0.1  # share of the steps in which the learning rate rises
    weight_decay: float = 0.01  # weight decay of AdamW
    drop_last: bool = False  # leave out the examples that do not fill a batch, so that all batches have one shape
    device: str = "cpu"  # device of model and batches

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate is {self.learning_rate}; it must be above 0")
        require_one_of(PRECISIONS, precision=self.precision)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun:
    """The losses, the size and the time of a training."""

    losses: tuple[float, ...]  # one a step; empty except in the last stage
    num_steps: int  # updates
    num_examples: int  # examples seen, repetitions included
    seconds: float  # wall clock, data included

    @property
    def losses_at_end(self) -> tuple[float, ...]:
        """The losses of the last tenth of the steps, one at least; empty except in the last stage."""
        return self.losses[-max(1, round(END_SHARE * self.num_steps)) :]


def train(
    pipeline: Trainable,
    examples: LabelledExamples,
    recipe: Recipe,
    *,
    augment: Callable[..., LabelledBatch] | None = None,
    on_step: Callable[[LabelledBatch], None] | None = None,
) -> TrainingRun:
    """Train all parameters that require a gradient; `augment` takes a batch and the number of its step."""
    draw = np.random.default_rng(recipe.seed)
    batches: list[np.ndarray] = []
    for _ in range(recipe.epochs):
        batches += shuffled_batches(examples.lengths, recipe.batch, draw, drop_last=recipe.drop_last)
    if not batches:
        raise ValueError(f"batch is {recipe.batch}; it must be at most the number of examples, {len(examples)}")
    weights = [weight for weight in pipeline.module.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True)
    schedule = linear_warm_up_and_decay(optimizer, len(batches), warm_up=recipe.warm_up)
    pipeline.module.train()
    start = time.perf_counter()
    losses = []
    for step, rows in enumerate(batches):
        batch = examples.batch(rows, recipe.device)
        batch = batch if augment is None else augment(batch, step)
        optimizer.zero_grad()
        with computing_in(recipe.precision, recipe.device):
            losses.append(pipeline.step(batch.inputs, batch.labels, **batch.context).loss)
        optimizer.step()
        schedule.step()
        if on_step is not None:
            on_step(batch)
    kept = tuple(float(loss) for loss in losses if loss is not None)  # waits for a GPU
    seconds = time.perf_counter() - start
    num_examples = sum(len(rows) for rows in batches)
    return TrainingRun(losses=kept, num_steps=len(batches), num_examples=num_examples, seconds=seconds)


def predict(
    pipeline: Trainable, examples: LabelledExamples, recipe: Recipe, *, batch: int = EVALUATION_BATCH
) -> Tensor | None:
    """Run all examples forward without dropout; return float32 outputs in order, None except in the last stage."""
    outputs = []
    order = sorted_batches(examples.lengths, batch)
    for rows in order:
        part = examples.batch(rows, recipe.device)
        with computing_in(recipe.precision, recipe.device):
            outputs.append(pipeline.evaluate(part.inputs, **part.context))
    if outputs[0] is None:
        return None
    joined = torch.cat([output.float() for output in outputs if output is not None]).cpu()
    return joined[torch.as_tensor(np.argsort(np.concatenate(order)))]


def linear_factor(step: int, num_steps: int, warm_up: float) -> float:
    """Return the share of the peak rate: it rises over the share `warm_up` of the steps, then falls."""
    num_rising = round(warm_up * num_steps)
    if step < num_rising:
        return (step + 1) / num_rising
    return max(0.0, (num_steps - step) / (num_steps - num_rising))


def linear_warm_up_and_decay(optimizer: torch.optim.Optimizer, num_steps: int, *, warm_up: float) -> LambdaLR:
    """Return a schedule in which an optimizer's rate rises to its peak and falls to nothing."""
    if num_steps < 1:
        raise ValueError(f"num_steps is {num_steps}; it must be at least 1")
    if not 0 <= warm_up < 1:
        raise ValueError(f"warm_up is {warm_up}; it must lie in [0, 1)")
    return LambdaLR(optimizer, lambda step: linear_factor(step, num_steps, warm_up))
