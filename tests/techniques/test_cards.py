"""The card of every technique: its names and places exist, and what needs no torch imports none."""

import importlib
import pkgutil
import re
import subprocess
import sys

import pytest

TECHNIQUES = ("activation_compression", "flextp", "gemini")
WITHOUT_TORCH = {
    "flextp": "flextp.Plan, flextp.Solution, flextp.plan_semi, flextp.migration_epoch_time_s",
    "gemini": "gemini.recovery_probability, gemini.wasted_time_s, gemini.partition_checkpoint, "
    "gemini.best_checkpointing, gemini.cost.calibrated()",
}


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_every_name_and_every_place_on_the_card_exists(technique):
    card = importlib.import_module(f"workbench.techniques.{technique}")
    assert all(hasattr(card, name) for name in card.__all__)
    places = [place for place in re.findall(r"`([\w.]+)`", card.__doc__) if place not in card.__all__]
    assert len(places) > 10
    for place in places:
        whole = place if place.startswith("workbench.") else f"{card.__name__}.{place}"
        pkgutil.resolve_name(whole)
    with pytest.raises(AttributeError, match="has no attribute 'blance'"):
        card.blance  # noqa: B018


@pytest.mark.parametrize("technique", WITHOUT_TORCH)
def test_cards_planners_probabilities_and_models_of_time_import_no_torch(technique):
    code = f"import sys; from workbench.techniques import {technique}; import workbench.techniques.{technique}.cost; "
    code += f"{WITHOUT_TORCH[technique]}; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert run.stdout.strip() == "False"
