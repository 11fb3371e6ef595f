"""The folders of a project: catalogues, notebooks, results and data of one root."""

import os
from dataclasses import dataclass
from pathlib import Path

from workbench.checkout import ROOT_VARIABLE, find_results, find_root
from workbench.reproduction.declare import CELLS, Profile, Reproduction
from workbench.reproduction.errors import UsageError

__all__ = ["FAILURE_FILE", "ON", "RECORD_FILE", "ItemRun", "Project"]

RECORD_FILE, FAILURE_FILE = "record.json", "failure.json"  # in the folder of a run
ON = "-on-"  # between a profile and the name of a further machine


@dataclass(frozen=True, slots=True, init=False)
class Project:
    """A root with reproductions/, notebooks/ and data/, and the folder for results."""

    root: Path  # absolute path
    results: Path  # output of runs, one folder per profile

    def __init__(self, root: str | os.PathLike | None = None, results: str | os.PathLike | None = None) -> None:
        """Find the project, by default from the current folder."""
        object.__setattr__(self, "root", Path(root or find_root()).resolve())
        object.__setattr__(self, "results", Path(results or find_results(self.root)).resolve())
        if not self.reproductions.is_dir():
            raise UsageError(
                f"{self.root} has no folder reproductions/: run inside a checkout, or name one with {ROOT_VARIABLE}"
            )

    @property
    def reproductions(self) -> Path:
        """Catalogues, published numbers and promoted records, one folder a technique."""
        return self.root / "reproductions"

    @property
    def notebooks(self) -> Path:
        """Notebooks, one folder a technique."""
        return self.root / "notebooks"

    @property
    def data(self) -> Path:
        """The manifest, generated samples and downloads."""
        return self.root / "data"

    def results_of(self, profile: str) -> Path:
        """Return the folder of one profile's records."""
        if profile not in [known.value for known in Profile]:
            raise UsageError(f"profile {profile!r} is unknown; it must be one of {', '.join(Profile)}")
        return self.results / str(profile)

    def recorded_folder(self, technique: str, profile: str, machine: str = "") -> Path:
        """Return the folder of a technique's promoted records of one profile, or those of a further machine."""
        name = self.results_of(profile).name + (ON + machine if machine else "")
        return self.reproductions / technique / "recorded" / name

    def cells_folder(self, technique: str, profile: str) -> Path:
        """Return the folder of a technique's finished cells in one profile."""
        return self.results_of(profile) / technique.replace("_", "-") / CELLS

    def recorded_cells_folder(self, technique: str, profile: str) -> Path:
        """Return the folder of a technique's promoted cells of one profile."""
        return self.recorded_folder(technique, profile) / CELLS

    def published(self, item: Reproduction) -> Path | None:
        """Return the file of an item's published numbers, None if it has none."""
        return None if item.published is None else self.reproductions / item.technique / "published" / item.published

    def notebook(self, item: Reproduction) -> Path:
        """Return the path of an item's notebook."""
        return self.root / item.notebook


@dataclass(frozen=True, slots=True)
class ItemRun:
    """One item of a project in one profile: the places of its run here, of its promoted run, and of its cells."""

    project: Project
    item: Reproduction
    profile: str
    machine: str = ""  # name of a further machine, whose promoted run stands beside that of the project's own

    @property
    def folder(self) -> Path:
        """The folder of its record."""
        return self.project.results_of(self.profile) / self.item.id

    @property
    def record(self) -> Path:
        """Its record."""
        return self.folder / RECORD_FILE

    @property
    def failure(self) -> Path:
        """Why its last run failed, if it did."""
        return self.folder / FAILURE_FILE

    @property
    def promoted(self) -> Path:
        """Its promoted record."""
        folder = self.project.recorded_folder(self.item.technique, self.profile, self.machine)
        return folder / self.item.item / f"{self.item.evidence.value}.json"

    @property
    def promoted_figure(self) -> Path:
        """The figure beside its promoted record, which may have none."""
        return self.promoted.with_suffix(".png")

    @property
    def notebook_page(self) -> Path:
        """The page of its executed notebook in the report."""
        return self.project.results_of(self.profile) / "report" / "notebooks" / f"{self.item.id.replace('/', '-')}.html"

    @property
    def cells(self) -> Path:
        """The folder of its technique's finished cells."""
        return self.project.cells_folder(self.item.technique, self.profile)

    @property
    def needed_cells(self) -> Path:
        """The file that lists the cells it needs: function's name to digests."""
        return self.cells / f"{self.item.item}.{self.item.evidence.value}.json"

    def at(self, profile: str) -> "ItemRun":
        """Return the run of the same item in another profile, or on a further machine: "laptop-on-lab"."""
        profile, _, machine = profile.partition(ON)
        return ItemRun(self.project, self.item, profile, machine)

    @property
    def recorded(self) -> tuple["ItemRun", ...]:
        """Its promoted runs in all profiles, on this project's machine and on further ones."""
        folder = self.project.reproductions / self.item.technique / "recorded"
        names = [path.parents[1].name for path in sorted(folder.glob(f"*/{self.item.item}/{self.promoted.name}"))]
        return tuple(self.at(name) for name in names if name.partition(ON)[0] in list(Profile))
