"""`workbench advise`: which technique pays for a training of one's own."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer import Argument, Option

from . import common

__all__ = ["advise_on", "register"]


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("advise", rich_help_panel=common.LOOK)(advise_on)


def advise_on(
    model: Annotated[str, Argument(metavar="MODEL", help='A name such as "GPT-2 medium", or a config.json.')],
    machines: Annotated[
        str, Option("--machines", "-m", help="Machines x GPUs, kind and network; a file of links.toml; or 'measured'.")
    ] = "1x8 H100",
    batch: Annotated[int | None, Option(help="Sequences or examples of a replica.")] = None,
    sequence: Annotated[int | None, Option(help="Tokens of a sequence.")] = None,
    tp: Annotated[int | None, Option(help="Tensor-parallel ranks; by default as few as fit.")] = None,
    pp: Annotated[int | None, Option(help="Pipeline stages; by default as few as fit.")] = None,
    computation_s: Annotated[
        float | None, Option(help="Seconds that one GPU computes for a replica's batch, as you measured.")
    ] = None,
    failures: Annotated[float | None, Option(help="Failures of a machine a day; by default those of OPT-175B.")] = None,
    slow: Annotated[float, Option(help="How many times as long a slow GPU takes.")] = 1.0,
    slow_share: Annotated[float, Option(help="Of its iterations; 1 for one GPU that is always slow.")] = 1.0,
    density: Annotated[float, Option(help="Share of an embedding's rows that a GPU's batch touches.")] = 1.0,
    embedding: Annotated[str, Option(metavar="ROWSxWIDTH", help="The embedding, such as 1000000x64.")] = "",
    limits: Annotated[bool, Option(help="Also search from which value on a technique pays.")] = True,
    as_json: common.AsJson = False,
    results: common.Results = None,
) -> None:
    """Say which technique pays for a training, how much and how sure that is. It can be none of them.

    \b
    Examples
      workbench advise "GPT-2 medium" --machines "8x8 H100, 400 Gbit/s"
      workbench advise DeepFM --machines "4x1 V100, 25 Gbit/s" --density 0.01
      workbench advise "GPT-2 10B" --machines "16x8 V100, 100 Gbit/s" --slow 2
      torchrun --nproc-per-node 8 --no-python workbench advise "GPT-2" --machines measured
    """
    import torch.distributed as dist

    from workbench.advisor import advise
    from workbench.advisor.machines import MEASURED
    from workbench.reproduction import Project, UsageError

    given: dict[str, Any] = {"failures_per_machine_day": failures, "batch": batch, "sequence": sequence}
    given |= {"tp": tp, "pp": pp, "computation_s": computation_s}
    inputs = {name: value for name, value in given.items() if value is not None}
    if embedding:
        rows, _, width = embedding.partition("x")
        if not (rows.isdigit() and width.isdigit()):
            raise UsageError(f"embedding is {embedding!r}; it must read like 1000000x64")
        inputs["embedding"] = int(rows), int(width)
    try:
        inputs |= {"slow": slow, "slow_share": slow_share, "density": density}
        advice = advise(model, machines, limits=limits, project=Project(results=results), **inputs)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if machines == MEASURED and dist.is_initialized() and dist.get_rank() != 0:
        return  # one rank of the job speaks
    if as_json:
        common.print_json(advice.to_json())
    else:
        common.console().print(str(advice), markup=False, soft_wrap=True)
