"""Fine-tune a pretrained encoder on a GLUE task with encoded messages, and score it: one cell of tables 5, 15 and 16.

What: `fine_tune` on virtual ranks in one process, `fine_tune_on_ranks` on real ones; both run the same loop on the
same batches, and tests say that loss and gradients of every method are equal.
Source: "Does compressing activations help model parallel training?", sections 4.1 and 4.3.
Simplified: another encoder than BERT-large; no dropout; frozen word embeddings; batches of sequences of about the same
length, padded to the longest of the batch (the paper pads to 512). Messages therefore hold little padding, for which
Top-K would otherwise send values, too. In evaluation codecs see batches of 128.
Left out: the choice of the best of several checkpoints or learning rates; the last one is scored.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.datasets import Dataset, glue
from workbench.models.pretrained import DEFAULT_ENCODER, PretrainedEncoder, load_encoder
from workbench.parallel import Traffic, VirtualTensorGroup
from workbench.parallel.pipeline import open_mesh
from workbench.study.cells import named
from workbench.training.batches import Examples
from workbench.training.loop import Recipe, Trainable, TrainingRun, predict, train
from workbench.training.metrics import chance_score, glue_scores

from .ledger import QUANTITIES, Ledger
from .model import classifier, on_real_ranks, on_virtual_ranks
from .setting import FineTuning

__all__ = ["fine_tune", "fine_tune_on_ranks", "fine_tuning_of", "mean_loss_at_end", "train_and_score"]

Build = Callable[[FineTuning, PretrainedEncoder], tuple[Trainable, Traffic]]
PRELOAD = (__name__, "transformers.models.bert.tokenization_bert")  # imported once for all ranks
END_SHARE = 0.1  # of the steps, whose mean loss is the loss at the end


@named("activation_compression/fine_tune")
def fine_tune(
    *,
    task: str,
    method: str,
    seed: int,
    layers: int | Sequence[int] | None = None,
    max_tokens: int = 128,
    batch: int = 32,
    epochs: int = 2,
    learning_rate: float = 1e-4,
    limit: int | None = None,
    precision: str = "fp32",
    error_feedback: bool = False,
    fixed_length: bool = False,
    encoder: str = DEFAULT_ENCODER,
    tp: int = 2,
    pp: int = 2,
    device: str = "cpu",
) -> dict[str, Any]:
    """Fine-tune on virtual ranks in this process, and score on the validation split.

    Args:
        task: a GLUE task, such as "sst2".
        method: a row of table 1, such as "A1".
        seed: of head, codecs, order of the examples and drawn examples; equal seeds give equal bits.
        layers: how many of the last layers are compressed, or their indices; None is the last half.
        max_tokens: longer sequences are cut to as many tokens.
        batch: examples of a step.
        epochs: times that every example is seen.
        learning_rate: at its peak.
        limit: training examples drawn with the seed; None takes all.
        precision: "fp32" or "bf16"; messages have values of 4 or 2 bytes.
        error_feedback: each call site adds what its last message lost to the next; needs fixed_length.
        fixed_length: all batches have one shape: padded to the longest sequence there is, rest of an epoch left out.
        encoder: a pretrained encoder's name, or "stand-in".
        tp: tensor-parallel ranks.
        pp: pipeline stages.
        device: of model and batches.

    Returns:
        Plain values: `score` in the task's leading `metric` and all `scores`, `chance` of a constant prediction,
        `train_loss` at the end, bytes a rank sends in a step, seconds, and where text and weights came from.

    Raises:
        ValueError: for an argument outside its range, before any work.
    """
    setting = fine_tuning_of(**locals())
    return _run(setting, _on_virtual_ranks) | {"ranks": "virtual"}


def fine_tune_on_ranks(*, timeout_s: float = 600, **arguments: Any) -> dict[str, Any]:
    """Fine-tune on real ranks of this machine, tp times pp of them.

    Args:
        timeout_s: seconds after which the ranks are stopped.
        arguments: those of `fine_tune`.

    Returns:
        As `fine_tune`; bytes are those of the stages' first ranks together.
    """
    from workbench.launch import run_on_ranks

    setting = fine_tuning_of(**arguments)
    by_rank = run_on_ranks(_run, setting.tp * setting.pp, setting, _on_real_ranks, timeout_s=timeout_s, preload=PRELOAD)
    of_stages = by_rank[:: setting.tp]
    sums = {name: sum(cell[name] for cell in of_stages) for name in QUANTITIES}
    return of_stages[-1] | sums | {"ranks": "real"}


def fine_tuning_of(**arguments: Any) -> FineTuning:
    """Return the setting that arguments of `fine_tune` say, with its defaults.

    Raises:
        ValueError: for an argument outside its range.
    """
    bound = inspect.signature(fine_tune).bind(**arguments)
    bound.apply_defaults()
    found = bound.arguments
    trained = {name: found.pop(name) for name in ("epochs", "batch", "learning_rate", "precision", "seed", "device")}
    return FineTuning(recipe=Recipe(**trained, drop_last=found["fixed_length"]), **found)


def _on_virtual_ranks(setting: FineTuning, encoder: PretrainedEncoder) -> tuple[Trainable, Traffic]:
    group = VirtualTensorGroup(setting.tp)
    return on_virtual_ranks(setting, encoder, classifier(setting.glue_task), group), group.traffic


def _on_real_ranks(setting: FineTuning, encoder: PretrainedEncoder) -> tuple[Trainable, Traffic]:
    mesh = open_mesh(tensor=setting.tp, pipeline=setting.pp, device=setting.recipe.device)
    return on_real_ranks(setting, encoder, classifier(setting.glue_task), mesh), mesh.tensor_group.traffic


def _run(setting: FineTuning, build: Build) -> dict[str, Any]:
    return train_and_score(setting, load_encoder(setting.encoder, or_stand_in=True), build)


def train_and_score(
    setting: FineTuning, encoder: PretrainedEncoder, build: Build = _on_virtual_ranks
) -> dict[str, Any]:
    """Build, train and score.

    Args:
        setting: what is trained.
        encoder: what is trained further; not changed.
        build: gives the pipeline, and the ledger of what this process sends.

    Returns:
        As `fine_tune`; without scores except in the last stage.
    """
    start = time.perf_counter()
    layers = setting.compressed_layers(encoder.config["num_hidden_layers"])
    learning, scored = (_load(setting, split) for split in ("train", setting.glue_task.validation_split))
    examples, held_out = (_encoded(data, setting, encoder) for data in (learning, scored))
    pipeline, traffic = build(setting, encoder)
    traffic.clear()
    ledger = Ledger(traffic, layers, setting.compressed_boundaries(encoder.config["num_hidden_layers"]))
    run = train(pipeline, examples, setting.recipe, on_step=ledger.close_step)
    outputs = predict(pipeline, held_out, setting.recipe)
    sources = [source.as_record() for source in (learning.source, scored.source, encoder.source)]
    return {
        **_scores(setting, outputs, scored),
        **_described(setting, layers, run),
        **ledger.per_step(),
        "num_train": len(learning),
        "num_validation": len(scored),
        "longest": max(examples.longest, held_out.longest),
        "seconds": time.perf_counter() - start,
        "data": sources,
    }


def _load(setting: FineTuning, split: str) -> Dataset:
    limit = setting.limit if split == "train" else None
    return glue.load(setting.task, split, limit=limit, seed=setting.recipe.seed)


def _encoded(data: Dataset, setting: FineTuning, encoder: PretrainedEncoder) -> Examples:
    """Turn text into token ids, and labels into what the loss takes."""
    found = encoder.tokenizer(*data.texts, truncation=True, max_length=setting.max_tokens)
    ids, types = ([torch.tensor(row) for row in found[name]] for name in ("input_ids", "token_type_ids"))
    labels = torch.tensor(data.labels, dtype=torch.float32 if setting.glue_task.is_regression else torch.int64)
    longest = max(map(len, ids))
    return Examples(ids=ids, types=types, labels=labels, padded_to=longest if setting.fixed_length else 0)


def _scores(setting: FineTuning, outputs: Tensor | None, scored: Dataset) -> dict[str, Any]:
    if outputs is None:
        return {}
    task = setting.glue_task
    predictions = outputs.squeeze(-1) if task.is_regression else outputs.argmax(-1)
    scores = glue_scores(task, predictions.tolist(), scored.labels)
    metric = task.metrics[0]
    return {"metric": metric, "score": scores[metric], "scores": scores, "chance": chance_score(task, scored.labels)}


def _described(setting: FineTuning, layers: Sequence[int], run: TrainingRun) -> dict[str, Any]:
    """Say what was trained, how it ended and how long it took."""
    recipe = setting.recipe
    return {
        "task": setting.task,
        "method": setting.method,
        "seed": recipe.seed,
        "layers": list(layers),
        "precision": recipe.precision,
        "train_loss": mean_loss_at_end(run),
        "num_steps": run.num_steps,
        "training_s": run.seconds,
        "examples_per_s": run.num_examples / run.seconds,
    }


def mean_loss_at_end(run: TrainingRun) -> float | None:
    """Return the mean loss of the last tenth of the steps; None except in the last stage."""
    at_end = run.losses[-max(1, round(END_SHARE * run.num_steps)) :]
    return sum(at_end) / len(at_end) if at_end else None
