"""The card of the technique: its names are there, its references lead somewhere, and reading it needs no torch."""

import importlib
import re
import subprocess
import sys

import pytest

from workbench.techniques import gemini

pytestmark = pytest.mark.timeout(60)


def test_every_name_on_the_card_is_found():
    for name in gemini.__all__:
        assert getattr(gemini, name).__name__ == name


def test_every_place_that_the_card_names_exists():
    places = [place for place in re.findall(r"`([\w.]+)`", gemini.__doc__) if place not in gemini.__all__]
    assert len(places) > 15
    for place in places:
        importlib.import_module(f"workbench.techniques.gemini.{place}")


def test_the_card_the_probabilities_and_the_planners_import_no_torch():
    code = (
        "import sys; from workbench.techniques import gemini; gemini.recovery_probability, gemini.wasted_time_s, "
        "gemini.partition_checkpoint, gemini.best_checkpointing; from workbench.techniques.gemini import cost; "
        "cost.calibrated(); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert run.stdout.strip() == "False"
