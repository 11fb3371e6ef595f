"""Every feature has an answer for every technique, and docs/works-with.md says what the tests show."""

import importlib

from tests.contracts.works_with import CELLS, PAGE, TECHNIQUES, Feature, page


def test_every_technique_has_an_answer_for_every_feature_and_the_page_gives_them():
    for name in TECHNIQUES:
        importlib.import_module(f"tests.contracts.test_{name}_in_own_training")
    assert not [
        f"{name}: {feature.value}" for name in TECHNIQUES for feature in Feature if (name, feature) not in CELLS
    ]
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.contracts.works_with writes it anew"
