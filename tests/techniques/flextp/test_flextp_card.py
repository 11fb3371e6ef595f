"""The card of the technique: its names are there, its references lead somewhere, and reading it needs no torch."""

import pkgutil
import re
import subprocess
import sys

import pytest

from workbench.techniques import flextp


def test_every_name_on_the_card_is_found():
    for name in flextp.__all__:
        assert getattr(flextp, name).__name__ == name


def test_every_place_that_the_card_names_exists():
    places = [place for place in re.findall(r"`([\w.]+)`", flextp.__doc__) if place not in flextp.__all__]
    assert len(places) > 10
    for place in places:
        pkgutil.resolve_name(f"workbench.techniques.flextp.{place}")


def test_the_card_the_planners_and_the_model_of_time_import_no_torch():
    code = (
        "import sys; from workbench.techniques import flextp; "
        "flextp.Plan, flextp.Solution, flextp.plan_semi, flextp.migration_epoch_time_s; print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert run.stdout.strip() == "False"


def test_an_unknown_name_is_named():
    with pytest.raises(AttributeError, match="has no attribute 'blance'"):
        flextp.blance  # noqa: B018
