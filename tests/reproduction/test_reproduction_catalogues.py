"""A technique with many items declares them in several files."""

import pytest
from toy_project import HEADER, ToyProject

from workbench.reproduction import CatalogueError, Project, load_catalogue
from workbench.reproduction.fingerprint import Fingerprinter, changes

ITEM = (
    'Reproduction(item="{item}", notebook="notebooks/toy/one.ipynb", parameters=PARAMETERS, claims=(WITHIN,), **ITEM)'
)


def declare_beside(toy: ToyProject, name: str, item: str, claim: str = "WITHIN") -> None:
    text = f"{HEADER}\nCATALOGUE = ({ITEM.format(item=item).replace('WITHIN', claim)},)\n"
    (toy.root / "reproductions/toy" / name).write_text(text)


def test_items_of_a_second_file_follow_those_of_the_first(toy: ToyProject):
    declare_beside(toy, "simulated_more.py", "table-2")
    assert [item.id for item in load_catalogue(Project())] == ["toy/table-1/counted", "toy/table-2/counted"]


def test_other_files_beside_a_catalogue_declare_nothing(toy: ToyProject):
    declare_beside(toy, "catalogue_more.py", "table-2")
    assert len(load_catalogue(Project())) == 1


def test_one_id_in_two_files_is_refused(toy: ToyProject):
    declare_beside(toy, "simulated_more.py", "table-1")
    with pytest.raises(CatalogueError, match="toy/table-1/counted is declared twice"):
        load_catalogue(Project())


def test_a_malformed_second_file_is_named(toy: ToyProject):
    (toy.root / "reproductions/toy/simulated_more.py").write_text("CATALOGUE = 3")
    with pytest.raises(CatalogueError, match="simulated_more.py: CATALOGUE must be"):
        load_catalogue(Project())


def test_a_changed_claim_of_the_second_file_changes_the_fingerprint_of_its_item_alone(toy: ToyProject):
    def fingerprints():
        project = Project()
        return [Fingerprinter(project)(item, "laptop") for item in load_catalogue(project)]

    declare_beside(toy, "simulated_more.py", "table-2")
    before = fingerprints()
    looser = 'Within("twice the size", quantity="bytes", where={"method": "A1"}, rel=0.5, because="it is counted")'
    declare_beside(toy, "simulated_more.py", "table-2", looser)
    assert [changes(*pair) for pair in zip(before, fingerprints(), strict=True)] == ["", "declaration changed"]
