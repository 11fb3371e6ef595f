"""What is reproduced of "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control".

The worked example of figure 2; further items stand beside it, in files by evidence.
Tolerances were fixed before the first run.
"""

from workbench.reproduction import Evidence, Reproduction, Within

__all__ = ["CATALOGUE"]

COUNT = "a count of whole numbers, the same on any machine: no tolerance"
GRADIENTS = ["grad_weight", "grad_input"]

FIGURE_2 = Reproduction(
    technique="flextp",
    item="fig-2",
    evidence=Evidence.COUNTED,
    title="The worked example: columns 2 and 4 of 4 dropped, forward and backward",
    notebook="notebooks/flextp/worked_example.ipynb",
    published="fig-2.csv",
    parameters={
        "smoke": {"imputations": ["Zero"]},
        **dict.fromkeys(("laptop", "full", "paper"), {"imputations": ["Zero", "Average", "Same"]}),
    },
    expected_s={"smoke": 6, "laptop": 6},
    claims=(
        Within(
            "Dropping half of the columns spares half of the multiplications, forward and backward",
            quantity="saved_share",
            where={"product": ["output", "grad_weight"]},
            abs=0.0,
            because=COUNT,
            source="section III-A, text to figure 2",
        ),
        Within(
            "It does so for the gradient that is handed on, too",
            quantity="saved_share",
            where={"product": "grad_input"},
            expected=0.5,
            abs=0.0,
            because=COUNT,
            source="section III-A: the same operation is performed for the gradient used in the next layer",
        ),
        Within(
            "The output and both gradients have their normal shape",
            quantity="shape_difference",
            where={"product": ["output", *GRADIENTS]},
            expected=0.0,
            abs=0.0,
            because=COUNT,
            source="section III-A, the consistency constraint",
        ),
        Within(
            "With the lineage, every computed column of a gradient is put where the plain layer has it",
            quantity="kept_columns_off",
            where={"product": GRADIENTS},
            expected=0.0,
            abs=0.0,
            because=f"{COUNT}; the example's numbers are small integers, so the plain layer's columns are met exactly",
            source="section III-A, figure 2 (right bottom)",
        ),
        Within(
            "What was not computed is what the imputation says, and nothing else",
            quantity="missing_columns_off",
            where={"product": GRADIENTS},
            expected=0.0,
            abs=0.0,
            because=COUNT,
            source="section III-A: Zero (the paper's choice), Average, Same",
        ),
    ),
)

CATALOGUE = (FIGURE_2,)
