"""Bad input of a training is refused before anything starts."""

import psutil
import pytest

from workbench.techniques.gemini.runtime.training import Fault, Victim, run_training


def children():
    return {child.pid for child in psutil.Process().children()}


@pytest.mark.parametrize(
    ("message", "choices"),
    [
        ("num_machines is 0; it must be an integer of at least 1", {"num_machines": 0}),
        ("ranks_per_machine is 1.5; it must be an integer", {"ranks_per_machine": 1.5}),
        ("standbys is -1; it must be an integer of at least 0", {"standbys": -1}),
        ("names is .*; two machines must not have one name", {"names": ["a", "a"]}),
        ("names is .*; 'standby-0' is the name of a standby machine", {"names": ["a", "standby-0"], "standbys": 1}),
        ("names is .*; it must have one for each of 2 machines", {"names": ["a"]}),
        ("store is 'redis://x'; it must be", {"store": "redis://x"}),
        ("replacement_s is -1; it must be finite and not negative", {"replacement_s": -1}),
        ("names has 'a[+]1'; it must be a text without a plus sign", {"names": ["a+1", "b"]}),
        ("timeout_s is 0; it must be above 0", {"timeout_s": 0}),
        (
            "Fault.numbers is .2,.; each must lie in 0..1",
            {"faults": [Fault(kills=Victim.MACHINE, numbers=(2,), at_iteration=1)]},
        ),
        (
            "only the embedded store can be killed",
            {"store": "http://127.0.0.1:1", "faults": [Fault(kills=Victim.STORE, at_iteration=1)]},
        ),
    ],
)
def test_bad_input_is_refused_before_anything_starts(message, choices):
    before = children()
    with pytest.raises(ValueError, match=message):
        run_training(**{"function": print, "num_machines": 2, **choices})
    assert children() <= before


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("one of them must be given", {"kills": Victim.ROOT}),
        ("one of them must be given", {"kills": Victim.ROOT, "at_iteration": 1, "after_event": "x"}),
        ("for a machine it must be different numbers", {"kills": Victim.MACHINE, "at_iteration": 1}),
        ("for a root it must be empty", {"kills": Victim.ROOT, "numbers": (1,), "at_iteration": 1}),
        ("Fault.occurrence is 0", {"kills": Victim.ROOT, "after_event": "x", "occurrence": 0}),
        ("Fault.delay_s is -1", {"kills": Victim.ROOT, "after_event": "x", "delay_s": -1}),
    ],
)
def test_a_fault_says_what_and_when(message, fields):
    with pytest.raises(ValueError, match=message):
        Fault(**fields)
