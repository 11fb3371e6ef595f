"""Declarations: one `Reproduction` per table or figure and kind of evidence."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from workbench.reproduction.claims import Claim, Within
from workbench.reproduction.regimes import Regime

__all__ = ["CELLS", "Evidence", "Finding", "Missed", "Page", "Profile", "Reproduction", "Use", "Value", "check_plain"]

TECHNIQUE = re.compile(r"[a-z][a-z0-9_]*")
ITEM = re.compile(r"[a-z0-9][a-z0-9-]*")
CELLS = "cells"  # folder of finished cells, beside the folders of a technique's items


class Evidence(StrEnum):
    """The kind of evidence of a number."""

    COUNTED = "counted"  # bytes, messages, probabilities, counts: the same on any machine
    MEASURED = "measured"  # time or accuracy observed on a named machine; see `Reproduction.tags`
    SIMULATED = "simulated"  # from a cost model or event simulation of a named cluster


class Profile(StrEnum):
    """The size of a run."""

    SMOKE = "smoke"  # plumbing only, seconds an item, no verdicts
    QUICK = "quick"  # the headline findings of all papers in ten minutes
    LAPTOP = "laptop"  # small models on two CPU cores
    FULL = "full"  # hours on a CPU, or a GPU
    PAPER = "paper"  # the paper's own models and scale


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reproduction:
    """One table or figure of a paper with one kind of evidence; compared by identity."""

    technique: str  # name of the technique's folders: lower case with underscores
    item: str  # the paper's table or figure: table-2, fig-4a
    evidence: Evidence  # kind of evidence of its numbers
    title: str  # its content in one line
    notebook: str  # path of the notebook from the project's root
    parameters: Mapping[str, Mapping[str, Any]]  # profile to the notebook's parameters; names all its profiles
    claims: Sequence[Claim] = ()  # statements about its values, with tolerances
    regimes: Sequence[Regime] = ()  # ratios that decide the claims; none of a counted item
    published: str | None = None  # file in reproductions/<technique>/published/; None if the paper gives no numbers
    expected_s: Mapping[str, float] = field(default_factory=dict)  # profile to seconds, used until a record exists
    tags: Sequence[str] = ()  # shown beside the evidence: "virtual ranks", "injected delays", "shaped links"
    times: bool = False  # its evidence is a measured time, so it runs alone
    needs: Sequence[str] = ()  # requirements, such as "data:glue/sst2"; see `runner.plan.lacking`

    def __post_init__(self) -> None:
        _check_names(self)
        _check_parameters(self)
        _check_claims(self)
        for profile, seconds in self.expected_s.items():
            _known_profile("expected_s", profile)
            if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
                raise ValueError(f"expected_s[{profile!r}] is {seconds!r}; it must be seconds, zero or more")
        if bad := [need for need in self.needs if not re.fullmatch(r"data:[^:\s]+", str(need))]:
            raise ValueError(f"needs has {bad[0]!r}; it must read 'data:NAME'")

    @property
    def id(self) -> str:
        """technique/item/evidence, with hyphens."""
        return f"{self.technique.replace('_', '-')}/{self.item}/{self.evidence.value}"

    @property
    def profiles(self) -> tuple[str, ...]:
        """Its profiles, smallest first."""
        return tuple(profile.value for profile in Profile if profile.value in self.parameters)


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A number of a record, named in the sentence of a finding."""

    item: str  # the item and its evidence, such as "table-2/measured"
    quantity: str
    where: Mapping[str, Any] = field(default_factory=dict)  # key columns that pick exactly one row
    minus: float = 0.0  # the sentence shows (value - minus) * times: 1 and 100 turn a speedup into a gain in per cent
    times: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A main statement of a paper, and our result in one plain sentence with numbers from records."""

    says: str  # the paper's statement in our words
    source: str  # its place in the paper
    ours: str  # our result, with a placeholder such as {gain:.1f} for each of `values`
    values: Mapping[str, Value] = field(default_factory=dict)
    claims: Sequence[str] = ()  # claims that decide the mark, each as "table-2/measured: name of the claim"
    means: str = ""  # advice for users of the technique


@dataclass(frozen=True, kw_only=True, slots=True)
class Missed:
    """Where a cost model was compared with measured times: rows with the same other keys belong together."""

    item: str
    measured: str = "measured_over_predicted"  # a quantity, already divided by the predicted one unless that is named
    predicted: str = ""
    plain: Mapping[str, Any] = field(default_factory=dict)  # key columns of the best plain setting; {} for gains
    technique: Mapping[str, Any] = field(default_factory=dict)  # of the technique's rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """When a technique pays: a line of the first page, and what `workbench advise` needs of records."""

    when: str
    gain: str  # here, with placeholders for `values`
    values: Mapping[str, Value]
    avoid: str  # when not
    lost: str  # accuracy or the like, with placeholders for `lost_values`
    lost_values: Mapping[str, Value] = field(default_factory=dict)
    line: str  # of code
    missed: Missed | None = None
    seen: Value | None = None  # rows of the ratio that decides, whose range is the regime seen here
    ratio: str = ""  # that ratio in words

    @property
    def findings(self) -> tuple[Finding, Finding]:
        """What it gains, and what it loses."""
        gain = Finding(says=self.when, source="", ours=self.gain, values=self.values, means=self.avoid)
        return gain, Finding(says="", source="", ours=self.lost, values=self.lost_values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The head of a technique's page; `PAGE` in its catalogue.py."""

    scale: str  # model, parameters, data, steps, baseline score and chance, in one line
    findings: Sequence[Finding]  # three to six
    picture: str  # item and evidence whose figure stands for the paper, such as "table-2/measured"
    name: str = ""  # name in the authors' spelling; by default the capitalised name of the folder
    use: Use | None = None


def _check_names(item: Reproduction) -> None:
    for name in ("technique", "item", "title", "notebook"):
        value = getattr(item, name)
        _require(name, value, isinstance(value, str) and value.strip(), "a non-empty text")
    is_technique = TECHNIQUE.fullmatch(item.technique)
    _require("technique", item.technique, is_technique, "lower case letters, digits and underscores")
    _require("item", item.item, ITEM.fullmatch(item.item), "lower case letters, digits and hyphens")
    if item.item == CELLS:
        raise ValueError(f"item is {item.item!r}; that is the folder of the technique's cells")
    known = ", ".join(f"Evidence.{kind.name}" for kind in Evidence)
    _require("evidence", item.evidence, isinstance(item.evidence, Evidence), known)
    path, published = item.notebook, item.published
    is_inside = path.endswith(".ipynb") and not path.startswith("/") and ".." not in path.split("/")
    _require("notebook", path, is_inside, "the path of an .ipynb inside the project")
    is_table = published is None or (str(published).endswith(".csv") and "/" not in str(published))
    _require("published", published, is_table, "the name of a .csv file, or None")
    _require("times", item.times, isinstance(item.times, bool), "True or False")
    for name in ("needs", "tags"):
        _require(name, getattr(item, name), not isinstance(getattr(item, name), str), "a list of texts")


def _require(field: str, value: Any, holds: Any, rule: str) -> None:
    if not holds:
        raise ValueError(f"{field} is {value!r}; it must be {rule}")


def _check_parameters(item: Reproduction) -> None:
    is_given = isinstance(item.parameters, Mapping) and item.parameters
    _require("parameters", item.parameters, is_given, "a dictionary of at least one profile's parameters")
    for profile, parameters in item.parameters.items():
        _known_profile("parameters", profile)
        _require(f"parameters[{profile!r}]", parameters, isinstance(parameters, Mapping), "a dictionary")
        if "item" in parameters:
            raise ValueError(f"parameters[{profile!r}] sets 'item'; the runner does that itself")
        for name, value in parameters.items():
            check_plain(f"parameters[{profile!r}][{name!r}]", value)


def check_plain(what: str, value: Any) -> None:
    """Refuse what is not a plain text, number, truth value, None, list or dictionary of these, naming it."""
    if type(value) is list:
        for position, inner in enumerate(value):
            check_plain(f"{what}[{position}]", inner)
    elif type(value) is dict:
        for key, inner in value.items():
            if type(key) is not str:
                raise ValueError(f"{what} has the key {key!r}; keys must be texts")
            check_plain(f"{what}[{key!r}]", inner)
    elif value is not None and type(value) not in (str, bool, int, float):
        raise ValueError(
            f"{what} is {value!r}, a {type(value).__name__}: "
            "it must be a plain text, number, truth value, None, list or dict of these"
        )
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{what} is {value!r}; it must be finite")


def _check_claims(item: Reproduction) -> None:
    are_claims = not isinstance(item.claims, Claim) and all(isinstance(claim, Claim) for claim in item.claims)
    _require("claims", item.claims, are_claims, "a list of Within, Bound, Ordering, Trend and Crossover")
    names = [claim.name for claim in item.claims]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"claims has two of the name {twice[0]!r}; names must differ")
    comparing = [claim.name for claim in item.claims if isinstance(claim, Within) and claim.expected is None]
    if item.published is None and comparing:
        raise ValueError(f"published is None, and claim {comparing[0]!r} compares with published values")


def _known_profile(what: str, profile: Any) -> None:
    if profile not in [known.value for known in Profile]:
        raise ValueError(f"{what} names the profile {profile!r}; it must be one of {', '.join(Profile)}")
