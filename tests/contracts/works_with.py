"""What works with what: each test says by `works` or `refuses` which cells of docs/works-with.md it proves.

    python -m tests.contracts.works_with        # writes the page anew

A cell that no test proves must say by `does_not_apply` why, or `test_works_with.py` fails.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "works-with.md"
TECHNIQUES = ("activation_compression", "flextp", "sdpipe", "atp", "zen", "espresso", "cupcake", "gemini")


class Feature(Enum):
    """What users do in trainings of their own; the values are the page's words."""

    GRADIENT_SCALING = "gradient scaling (GradScaler, or a loss that is multiplied)"
    NOT_FINITE = "inf or NaN on one rank reaches all"
    UNUSED_PARAMETERS = "parameters without a gradient in a pass"
    FROZEN_PARAMETERS = "frozen parameters"
    TIED_WEIGHTS = "tied weights"
    BUFFERS = "buffers (BatchNorm, DDP's broadcast)"
    RESUME = "resuming from a state_dict"
    SAVING = "saving and loading the whole model"
    CHECKPOINTING = "activation checkpointing, reentrant or not"
    COMPILE = "torch.compile"
    ACCUMULATION = "gradient accumulation (no_sync)"
    CLIPPING = "clip_grad_norm_"
    UNEVEN_ENDS = "ranks with unequal numbers of batches"
    BF16 = "bf16 weights"
    AUTOCAST = "autocast"
    EMA = "EMA (AveragedModel)"
    LORA = "LoRA (peft)"
    FSDP = "FSDP2 (fully_shard)"
    MODELS = "GPT-2, BERT, T5 and Llama"
    RAISES = "a rank that raises"
    EXITS = "a rank that exits"
    FREEZES = "a rank that freezes"


@dataclass(frozen=True, slots=True)
class Cell:
    """What is known of one technique and one feature."""

    answer: str  # works, refused by name, does not apply
    note: str = ""  # what a user must know, in one sentence


CELLS: dict[tuple[str, Feature], Cell] = {}


def works(technique: str, *features: Feature, note: str = "") -> Callable:
    """Mark a test that shows that a technique works with these features."""
    return _proves(technique, features, Cell("works", note))


def refuses(technique: str, *features: Feature, note: str = "") -> Callable:
    """Mark a test that shows that a technique refuses these features by an error that names them."""
    return _proves(technique, features, Cell("refused by name", note))


def does_not_apply(technique: str, *features: Feature, why: str) -> None:
    """Say why a technique has nothing to do with these features."""
    _proves(technique, features, Cell("does not apply", why))


def _proves(technique: str, features: tuple[Feature, ...], cell: Cell) -> Callable:
    if technique not in TECHNIQUES or not features:
        raise ValueError(f"technique is {technique!r}, features {features}: one of {', '.join(TECHNIQUES)}, and some")
    for feature in features:
        known = CELLS.setdefault((technique, feature), cell)
        if known.answer != cell.answer:
            raise ValueError(f"{technique}, {feature.value}: one test says {known.answer!r}, another {cell.answer!r}")
        if cell.note and cell.note not in known.note:
            CELLS[technique, feature] = Cell(cell.answer, f"{known.note} {cell.note}".strip())
    return lambda test: test


def page() -> str:
    """Return the page: a table technique x feature, and what a user must know of each cell."""
    for name in TECHNIQUES:
        importlib.import_module(f"tests.contracts.test_{name}_in_own_training")
    names = [name.replace("_", " ") for name in TECHNIQUES]
    lines = [
        "# What works with what",
        "",
        "Every cell is proved by a test of `tests/contracts`, which also writes this page",
        "(`python -m tests.contracts.works_with`). *Refused* is an error, before any number is wrong, that names the",
        "feature; – does not apply.",
        "",
        f"| | {' | '.join(names)} |",
        "|---|" + "---|" * len(names),
    ]
    signs = {"works": "works", "refused by name": "*refused*", "does not apply": "–"}
    for feature in Feature:
        row = [signs[CELLS[name, feature].answer] for name in TECHNIQUES]
        lines.append(f"| {feature.value} | {' | '.join(row)} |")
    for name, title in zip(TECHNIQUES, names, strict=True):
        lines += ["", f"## {title}", ""]
        cells = [(feature, CELLS[name, feature]) for feature in Feature]
        lines += [f"- {feature.value}: {cell.answer}. {cell.note}".rstrip() for feature, cell in cells if cell.note]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    from tests.contracts import works_with  # the module that tests register in, not this script's own copy

    PAGE.write_text(works_with.page())
