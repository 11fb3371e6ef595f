"""`record(...)`, the last call of every notebook: compares, and inside a run keeps the result."""

import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.reproduction.catalogue import declared_item, published_rows, published_table
from workbench.reproduction.comparing import ORDERS, ClaimVerdict, Verdict
from workbench.reproduction.declare import Evidence, Profile, Reproduction
from workbench.reproduction.files import jsonable, stamp, write_json
from workbench.reproduction.judge import judge
from workbench.reproduction.machine import machine_facts, rank_environment_facts, versions
from workbench.reproduction.project import Project
from workbench.reproduction.records import MOST_KEPT, SealedRecord, merged_rows, record_rows
from workbench.reproduction.schema import ARTIFACTS
from workbench.rows import Row, read_rows

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["FIGURE_FILE", "KEEP_CELLS", "RECORDING_FILE", "RUN_DIR", "RUN_ITEM", "RUN_PROFILE", "TRACE_FILE"]
__all__ += ["published", "record", "verdicts_of"]

RUN_DIR = "WORKBENCH_RUN_DIR"  # folder the runner wants the recording in
RUN_ITEM = "WORKBENCH_RUN_ITEM"  # id of the item it runs
RUN_PROFILE = "WORKBENCH_RUN_PROFILE"  # profile it runs in
KEEP_CELLS = "WORKBENCH_KEEP_CELLS"  # "1" where cells that are out of date are accepted
RECORDING_FILE = "recording.json"
FIGURE_FILE, TRACE_FILE = ARTIFACTS["figure"], ARTIFACTS["trace"]
SOURCES = ("WORKBENCH_DATA", "hub", "stand-in", "package")  # where data can come from
FIGURE_DPI = 144  # dots per inch: sharp on a phone
FIGURE_BYTES = 80_000  # a figure with 128 colours that takes more is stored with fewer
FIGURE_COLOURS = (128, 64, 32, 16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """The checked arguments of `record`."""

    values: Sequence[Mapping[str, Any]]  # as in `record`
    configuration: Mapping[str, Any]
    seeds: Sequence[int]
    data: Sequence[Mapping[str, str]]  # name, source, detail, sha256
    calibration: Mapping[str, Any] | None
    not_comparable: Mapping[str, str]
    finding: str

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("values is empty; a record holds at least one value")
        if bad := [seed for seed in self.seeds if isinstance(seed, bool) or not isinstance(seed, int)]:
            raise ValueError(f"seeds has {bad[0]!r}; it must be a list of whole numbers")
        for source in self.data:
            if source["source"] not in SOURCES:
                raise ValueError(
                    f"data: source of {source['name']!r} is {source['source']!r}; "
                    f"it must be one of {', '.join(SOURCES)}"
                )


def record(
    item: str,
    values: Sequence[Mapping[str, Any]],
    *,
    figure: Any = None,
    trace: Any = None,
    data: Sequence[Any] = (),
    configuration: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (),
    calibration: Mapping[str, Any] | None = None,
    not_comparable: Mapping[str, str] | None = None,
    finding: str = "",
) -> "DataFrame":
    """Compare values with the paper's; inside a run also keep them.

    Args:
        item: id of the item, as its catalogue declares it.
        values: one dictionary a value: quantity, value, unit, key columns, optionally low, high, seed.
        figure: a matplotlib figure, or anything else with `savefig`.
        trace: a Chrome trace as a list or dictionary, or the path of one.
        data: where the data came from: objects or dictionaries with name, source, detail, sha256.
        configuration: settings of the run, as plain values.
        seeds: the seeds that were used.
        calibration: source of a simulation's constants; its entry "cells" lists the published cells used.
        not_comparable: name of a claim to the reason why this run cannot be compared with it.
        finding: the answer to the notebook's question, in a sentence or two computed from the values; the report
            shows it first.

    Returns:
        One row a claim and published row: claim, of, published, ours, unit, difference, verdict, reason. An order or
        a trend has its verdict in a row above those of its values.

    Raises:
        ValueError, UsageError: naming the field that is wrong or the item that is not declared; nothing is written.
    """
    project = Project()
    declared = declared_item(project, item)
    recording = _checked(declared, values, data, configuration, seeds, calibration, not_comparable, finding)
    verdicts = verdicts_of(project, declared, jsonable(recording))
    folder, profile = os.environ.get(RUN_DIR), os.environ.get(RUN_PROFILE, Profile.LAPTOP.value)
    if folder:
        _keep(Path(folder), declared, recording, figure, trace)
    return comparison_table(verdicts, judged=not folder or profile != Profile.SMOKE)


def published(item: str, quantity: str) -> "DataFrame":
    """Return the paper's values of one quantity of an item, one row each; empty where the paper gives none."""
    project = Project()
    return published_table(project, declared_item(project, item), quantity)


def verdicts_of(project: Project, item: Reproduction, recorded: Mapping[str, Any]) -> tuple[ClaimVerdict, ...]:
    """Judge recorded values by the claims and the published numbers as they are now."""
    if not isinstance(recorded, SealedRecord):
        return _judge(project, item, recorded, read_rows(recorded["values"], "values"), None)
    published = project.published(item)
    return _judged(project, item, recorded, stamp(published) if published else (0, 0, 0))


@lru_cache(maxsize=MOST_KEPT)
def _judged(
    project: Project, item: Reproduction, record: SealedRecord, _: tuple[int, int, int]
) -> tuple[ClaimVerdict, ...]:
    return _judge(project, item, record, record_rows(record), merged_rows(record))


def _judge(
    project: Project, item: Reproduction, recorded: Mapping[str, Any], ours: Sequence[Row], merged: Sequence[Row] | None
) -> tuple[ClaimVerdict, ...]:
    return judge(
        item.claims,
        ours,
        published_rows(project, item),
        sources=recorded["data"],
        calibrated_on=(recorded["calibration"] or {}).get("cells", ()),
        not_comparable=recorded["not_comparable"],
        regimes=item.regimes,
        merged=merged,
    )


def _checked(item, values, data, configuration, seeds, calibration, not_comparable, finding) -> Recording:
    if item.evidence is Evidence.SIMULATED and not calibration:
        raise ValueError(f"calibration is {calibration!r}; simulated evidence says what it was calibrated on")
    rows = read_rows(values, "values")
    return Recording(
        values=[row.to_json() for row in rows],
        configuration=jsonable(configuration or {}),
        seeds=[int(seed) if hasattr(seed, "item") else seed for seed in seeds],
        data=[_source(source) for source in data],
        calibration=jsonable(calibration),
        not_comparable=dict(not_comparable or {}),
        finding=finding,
    )


def _source(source: Any) -> dict[str, str]:
    if hasattr(source, "as_record"):
        source = source.as_record()
    fields = ("name", "source", "detail", "sha256")
    if not isinstance(source, Mapping) or not {"name", "source"} <= set(source):
        raise ValueError(f"data has {source!r}; it must have {', '.join(fields)}")
    return {name: str(getattr(source.get(name, ""), "value", source.get(name, ""))) for name in fields}


def _keep(folder: Path, item: Reproduction, recording: Recording, figure: Any, trace: Any) -> None:
    expected = os.environ.get(RUN_ITEM, item.id)
    if item.id != expected:
        raise ValueError(
            f"item is {item.id!r}; the run is of {expected!r}: pass the parameter `item` on to record(...)"
        )
    if (folder / RECORDING_FILE).exists():
        raise ValueError(f"record(...) was already called for {item.id}; one run records once")
    if figure is not None:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=FIGURE_DPI, bbox_inches="tight")
        (folder / FIGURE_FILE).write_bytes(with_palette(buffer.getvalue()))
    if isinstance(trace, (str, os.PathLike)):
        json.loads(Path(trace).read_text(encoding="utf-8"))
        shutil.copyfile(trace, folder / TRACE_FILE)
    elif trace is not None:
        write_json(folder / TRACE_FILE, trace)
    artifacts = {"figure": None if figure is None else FIGURE_FILE, "trace": None if trace is None else TRACE_FILE}
    facts = {"machine": machine_facts(), "versions": versions(), "environment": rank_environment_facts()}
    write_json(folder / RECORDING_FILE, jsonable(recording) | facts | {"artifacts": artifacts})


def with_palette(picture: bytes) -> bytes:
    """Return a PNG with a palette, a third as large; with fewer colours where it takes more than `FIGURE_BYTES`."""
    from PIL import Image

    image = Image.open(io.BytesIO(picture)).convert("RGB")
    for colours in FIGURE_COLOURS:
        buffer = io.BytesIO()
        image.quantize(colours, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
        if buffer.tell() <= FIGURE_BYTES:
            break
    return buffer.getvalue()


def comparison_table(verdicts: Sequence[ClaimVerdict], *, judged: bool = True) -> "DataFrame":
    """Return verdicts as a table, one row a comparison; an order, or a claim without rows, has one for itself."""
    import pandas

    columns = ["claim", "of", "published", "ours", "unit", "difference", "verdict", "reason"]
    rows = []
    for verdict in verdicts:
        of_order = verdict.kind in ORDERS
        for row in [None, *verdict.rows] if of_order or not verdict.rows else verdict.rows:
            keys = "" if row is None else ", ".join(f"{name}={key}" for name, key in row.where.items())
            numbers = (None, None, "", None) if row is None else (row.published, row.ours, row.unit, row.difference)
            implied = "expected by definition" if row is not None and row.by_definition else ""
            reasoned = verdict if row is None or (row.verdict is not Verdict.AGREES and not row.reason) else row
            words = ((row or verdict).verdict.value, "; ".join(filter(None, (reasoned.reason, implied))))
            if of_order and row is not None:
                numbers, words = (*numbers[:3], None), ("", row.reason)
            if not judged:
                words = ("", "no verdicts in the smoke profile")
            rows.append([verdict.claim, keys, *numbers, *words])
    return pandas.DataFrame(rows, columns=columns)
