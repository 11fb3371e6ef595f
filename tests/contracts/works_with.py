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
TITLES = ("Activation compression", "FlexTP", "SDPipe", "ATP", "Zen", "Espresso", "Cupcake", "Gemini")


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


SIGNS = {"works": "✓", "refused by name": "✗", "does not apply": "–"}
HEAD = """# What works with what

✓ works; a star says that there is something to know. ✗ is refused by an error that names the feature, before a number
is wrong. – does not apply. What to know, and why something does not apply, stands below, technique by technique. Every
✓ and every ✗ is shown by a test of `tests/contracts`; `python -m tests.contracts.works_with` writes this page.
The ranks of these tests are processes on CPUs, with gloo. Nothing here has run on several GPUs yet: see
[On GPUs](#on-gpus).
"""


TOGETHER = """
## Two in one training

`tests/contracts/test_combinations.py` shows these:

- **Gemini beside Zen, Espresso or Cupcake**: a training that resumes ends with the bits of the undisturbed one. Give
  the exchange of Espresso or Cupcake in `extra`; Zen remembers nothing.
- **FlexTP with compressed activations**: learned codes are linear, and numbers stay the same. Top-K chooses within a
  rank's part of a sum, which changes with the columns that the rank multiplies.

## On GPUs

What runs there was read line by line against torch's rules for streams, futures and NCCL, and not run on several GPUs.

- Call `torch.cuda.set_device` first: objects and barriers go by NCCL over the current device.
- A lost rank is mostly found by torch's watchdog, which ends the process at the timeout; `RankLost` comes where NCCL
  itself raises.
- Several ranks that share a GPU need gloo, which sends no GPU memory from one rank to one other: FlexTP's migration,
  pipelines and `atp.measure` need a GPU a rank. Zen, Espresso, Cupcake, ATP on a given mesh and SDPipe's averaging do
  not.
- To be tried on GPUs first: two NCCL communicators of one GPU at work at once (Espresso's two links, Zen beside
  DistributedDataParallel, ATP's two axes), and Gemini's profile of idle spans, which counts NCCL's messages as ended
  when they are queued.
"""


def page() -> str:
    """Return the page: a table technique x feature, and what a user must know of each cell."""
    for name in TECHNIQUES:
        importlib.import_module(f"tests.contracts.test_{name}_in_own_training")
    links = (f"[{title}](#{title.lower().replace(' ', '-')})" for title in TITLES)
    lines = [HEAD, f"| | {' | '.join(links)} |"]
    lines.append("|:--|" + ":-:|" * len(TECHNIQUES))
    for feature in Feature:
        cells = {name: CELLS[name, feature] for name in TECHNIQUES}
        row = [
            SIGNS[cell.answer] + ("\\*" if cell.note and cell.answer != "does not apply" else "")
            for cell in cells.values()
        ]
        lines.append(f"| {feature.value} | {' | '.join(row)} |")
    for name, title in zip(TECHNIQUES, TITLES, strict=True):
        features: dict[Cell, list[str]] = {}  # those of one note together
        for feature in Feature:
            features.setdefault(CELLS[name, feature], []).append(feature.value)
        noted = {cell: "; ".join(words) for cell, words in features.items() if cell.note}
        lines += ["", f"## {title}", ""] if noted else []
        lines += [f"- {SIGNS[cell.answer]} **{words}**: {cell.note}" for cell, words in noted.items()]
    return "\n".join(lines) + "\n" + TOGETHER


if __name__ == "__main__":
    from tests.contracts import works_with  # the module that tests register in, not this script's own copy

    PAGE.write_text(works_with.page(), encoding="utf-8")
