"""Claims as data: a row of claims.csv each, with the prose that it names in explanations.md and changes.md.

A rule reads as it is meant: ">= 1.37", "<= 3", "paper ± 10%", "paper ± 25% of its distance from 1", "1 ± 0.2",
"largest 1.13 ± 10%", "= paper", "mesh: ATP-1 < ATP-4", "rises with devices",
"scheme: A < B until gpus = 40 ± 25% on a log scale".
"""

import csv
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from workbench.reproduction.claims import Bound, Claim, Crossover, Decidable, Ordering, Trend, Whose, Within
from workbench.reproduction.errors import CatalogueError
from workbench.rows import Key

__all__ = ["NUMBER", "read_claims", "read_prose", "read_table", "read_where"]

NEEDED = ("item", "claim", "quantity", "where", "rule", "because", "source", "whose")
PROSE = {"explanation": "explanations.md", "erratum": "explanations.md", "insensitive": "explanations.md"}
CHANGES = "changes.md"
KNOWN = {*NEEDED, *PROSE, "changed", "needs_real_data", "decidable", "neutral", "repeats", "any_regime"}
EXACT = 1e-9  # tolerance of "=": a share of the value, for counts that floating point rounds

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
BOUND = re.compile(rf"(>=|<=) ({NUMBER})")
WITHIN = re.compile(rf"(= )?(paper|{NUMBER})(?: ± ({NUMBER})(%)?)?(?: of its distance from ({NUMBER}))?")
TREND = re.compile(r"(rises|falls) with (.+)")
CROSSOVER = re.compile(rf"(.+?): (.+) < (.+) until (.+) = ({NUMBER}) ± ({NUMBER})%( on a log scale)?")
ORDERING = re.compile(r"(.+?): (.+ < .+)")
KINDS = "of the form '>= 2', 'paper ± 10%', '= paper', '1 ± 0.2', 'column: a < b' or 'rises with column'"


def read_table(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row of a CSV file with its line; CatalogueError names file and line of what cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            columns = reader.fieldnames or []
            if missing := [name for name in needed if name not in columns]:
                raise CatalogueError(f"{path}: column {missing[0]!r} is missing; every file has {', '.join(needed)}")
            for row in reader:
                if None in row or None in row.values():
                    raise CatalogueError(f"{path}: line {reader.line_num} does not have {len(columns)} columns")
                yield reader.line_num, row
    except OSError as error:
        raise CatalogueError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise CatalogueError(f"{path}: cannot be read: {error}") from None


def read_prose(path: Path) -> dict[str, str]:
    """Return the text below each heading "## name", or "## name: more"; nothing where there is no such file."""
    if not path.is_file():
        return {}
    prose: dict[str, str] = {}
    for number, block in enumerate(re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)):
        heading, _, text = block.partition("\n")
        name = heading.partition(":")[0].strip()
        if number == 0:
            continue  # the title
        if name in prose:
            raise CatalogueError(f"{path}: the heading {name!r} stands there twice")
        prose[name] = " ".join(text.split())
    return prose


def read_claims(folder: Path, decidable: Mapping[str, Decidable]) -> dict[str, list[Claim]]:
    """Return the claims of a technique's folder by item and evidence, such as "table-2/measured".

    Args:
        folder: reproductions/<technique>.
        decidable: when trainings can decide a claim, by the name that the column `decidable` gives.
    """
    path = folder / "claims.csv"
    if not path.is_file():
        return {}
    prose = {name: read_prose(folder / name) for name in {*PROSE.values(), CHANGES}}
    unused = {name: set(texts) for name, texts in prose.items()}
    claims: dict[str, list[Claim]] = {}
    for line, row in read_table(path, NEEDED):
        try:
            if strange := row.keys() - KNOWN:
                raise ValueError(f"column {min(strange)!r} is not known; a claim has {', '.join(sorted(KNOWN))}")
            texts = {}
            for column, file in {**PROSE, "changed": CHANGES}.items():
                if name := row.get(column, ""):
                    texts[column] = _named(name, column, prose[file], file)
                    unused[file].discard(name)
            if name := row.get("decidable", ""):
                texts["decidable"] = _named(name, "decidable", decidable, "items.toml")
            claims.setdefault(row["item"], []).append(_claim(row, texts))
        except ValueError as error:
            raise CatalogueError(f"{path}:{line}: {error}") from None
    for name, headings in unused.items():
        if headings:
            raise CatalogueError(f"{folder / name}: no claim names the heading {min(headings)!r}")
    return claims


def _named(name: str, column: str, known: Mapping[str, Any], file: str) -> Any:
    if name not in known:
        raise ValueError(f"{column} is {name!r}, which {file} does not have")
    return known[name]


def _claim(row: Mapping[str, str], more: Mapping[str, Any]) -> Claim:
    kind, rule = _rule(row["rule"])
    if row.get("needs_real_data", "") not in ("", "yes"):
        raise ValueError(f"needs_real_data is {row['needs_real_data']!r}; it must be yes or empty")
    if row["whose"] not in list(Whose):
        raise ValueError(f"whose is {row['whose']!r}; it must be one of {', '.join(Whose)}")
    return kind(
        row["claim"],
        quantity=row["quantity"],
        where=read_where(row["where"]),
        because=row["because"],
        source=row["source"],
        whose=Whose(row["whose"]),
        needs_real_data=row.get("needs_real_data") == "yes",
        neutral=float(row["neutral"]) if row.get("neutral") else None,
        repeats=row.get("repeats", ""),
        any_regime=row.get("any_regime", ""),
        **rule,
        **more,
    )


def _rule(text: str) -> tuple[type[Claim], dict[str, Any]]:
    """Return the kind of claim that a rule makes, and that kind's fields."""
    if text.startswith(("largest ", "least ")):
        pick, rest = text.split(" ", 1)
        kind, of_rest = _rule(rest)
        if kind is not Within:
            raise ValueError(f"rule is {text!r}; largest and least need a value with a tolerance")
        return kind, of_rest | {"pick": pick}
    if match := BOUND.fullmatch(text):
        return Bound, {"at_least" if match[1] == ">=" else "at_most": float(match[2])}
    if (match := WITHIN.fullmatch(text)) and bool(match[1]) != bool(match[3]):
        fields: dict[str, Any] = {} if match[2] == "paper" else {"expected": float(match[2])}
        if match[1]:
            fields["rel"] = EXACT
        elif match[4]:
            fields["rel"] = _share(match[3])
        else:
            fields["abs"] = float(match[3])
        return Within, fields | ({"no_effect": float(match[5])} if match[5] else {})
    if match := TREND.fullmatch(text):
        return Trend, {"along": match[2], "direction": "increasing" if match[1] == "rises" else "decreasing"}
    if match := CROSSOVER.fullmatch(text):
        series, before, after, along, at, share, scale = match.groups()
        fields = {"series": series, "between": (before, after), "smaller_before": before, "along": along}
        return Crossover, fields | {"at": float(at), "rel": _share(share), "scale": "log" if scale else "linear"}
    if match := ORDERING.fullmatch(text):
        return Ordering, {"along": match[1], "order": [_key(part) for part in match[2].split(" < ")]}
    raise ValueError(f"rule is {text!r}; it must be {KINDS}")


def _share(percent: str) -> float:
    return float(Decimal(percent) / 100)  # exactly the double that 0.07 is, for "7%"


def read_where(text: str) -> dict[str, Any]:
    """Read "mesh=ATP-1; devices=[8 | 16]"; any of a list fits, and all of it are needed."""
    where: dict[str, Any] = {}
    for part in filter(None, text.split("; ")):
        name, equals, value = part.partition("=")
        if not equals or not name or name in where:
            raise ValueError(f"where is {text!r}; it must read 'column=value; column=[value | value]'")
        is_list = value.startswith("[") and value.endswith("]")
        where[name] = [_key(choice) for choice in value[1:-1].split(" | ")] if is_list else _key(value)
    return where


def _key(text: str) -> Key:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
