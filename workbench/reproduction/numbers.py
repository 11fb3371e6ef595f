"""Every number that a paper prints, ticked: the verdict of the claim that it has, or why it has none.

A row of numbers.csv names the place, the number, and a claim as "item: claim" or a reason.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.reproduction.causes import read_causes
from workbench.reproduction.claims_table import read_table
from workbench.reproduction.comparing import Verdict
from workbench.reproduction.errors import CatalogueError
from workbench.reproduction.findings import BestRun

__all__ = ["NO_CLAIM", "Number", "read_numbers"]

FILE = "numbers.csv"
NEEDED = ("place", "number", "about", "claim", "why")
NO_CLAIM = "no claim"


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """A number of a paper."""

    place: str  # where the paper prints it
    number: str  # as printed
    about: str  # what it is a number of
    claim: str  # "item: claim"; "" where it has none
    verdict: str  # of that claim; `NO_CLAIM`
    why: str  # of the verdict, or why there is no claim

    def to_json(self) -> dict[str, Any]:
        """Return its fields."""
        return asdict(self)


def read_numbers(folder: Path, runs: Mapping[str, BestRun]) -> list[Number]:
    """Return the numbers of a technique's folder in the paper's order; none where it has no numbers.csv.

    Args:
        folder: of the technique's reproductions.
        runs: of all its items, by id.

    Raises:
        CatalogueError: if a row has both claim and reason, or neither, or a claim that is not declared.
    """
    path, numbers = folder / FILE, []
    if not path.is_file():
        return []
    causes = read_causes(folder, [run.item for run in runs.values()])
    for line, row in read_table(path, NEEDED):
        if bool(row["claim"]) == bool(row["why"]):
            raise CatalogueError(f"{path}:{line}: a number has a claim, or a reason in the column why, and not both")
        item, _, name = row["claim"].partition(": ")
        id = f"{folder.name.replace('_', '-')}/{item}"
        run = runs.get(id)
        if row["claim"] and (run is None or name not in [claim.name for claim in run.item.claims]):
            raise CatalogueError(f"{path}:{line}: claim is {row['claim']!r}, which is not declared")
        judged = [claim_verdict for claim_verdict in (run.verdicts if run else ()) if claim_verdict.claim == name]
        verdict = str(judged[0].verdict) if judged else (Verdict.NOT_RUN.value if row["claim"] else NO_CLAIM)
        why = judged[0].reason if judged else row["why"]
        if verdict == Verdict.DISAGREES:
            cause = causes.get((id, name))
            why = f"{cause.kind}: {cause.changed}" if cause else judged[0].explanation or why
        about = {key: row[key] for key in ("place", "number", "about", "claim")}
        numbers.append(Number(**about, verdict=verdict, why=" ".join(why.split())))
    return numbers


def summary(numbers: Sequence[Number]) -> str:
    """Return how many numbers have each verdict, in a sentence."""
    counts = Counter(number.verdict for number in numbers)
    return (
        f"{len(numbers)} numbers: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) + "."
    )
