"""Counted items of Espresso: the paths of the decision tree."""

from workbench.reproduction import Evidence, Reproduction, Within

CATALOGUE = (
    Reproduction(
        technique="espresso",
        item="table-4-3",
        evidence=Evidence.COUNTED,
        title="The decision tree of tables 4.2 and 4.3 and figure 4.8: how many options a tensor has",
        notebook="notebooks/espresso/options.ipynb",
        parameters={"smoke": {}, "laptop": {}},
        expected_s={"smoke": 6, "laptop": 6},
        claims=(
            Within(
                "A tensor has 4,341 options",
                quantity="options",
                where={"part": "tree"},
                expected=4341.0,
                abs=0.0,
                because="a count is exact",
                source="section 4.7.1",
            ),
        ),
    ),
)
