"""The phases of a recovery, its timeline and its picture, from a log worked by hand."""

import pytest

from workbench.plots import figure
from workbench.techniques.gemini import plots as pictures
from workbench.techniques.gemini.measured.recovery import RecoveryObserved, phases_of, recovery_rows
from workbench.techniques.gemini.runtime.control.events import Event
from workbench.techniques.gemini.runtime.training import TrainingOutcome
from workbench.timeline import Kind


def on_both(name: str, time_s: float, generation: int, **details) -> list[Event]:
    place = {"time_s": time_s, "generation": generation, "details": details}
    return [Event(name=name, number=number, rank=number, **place) for number in (0, 1)]


def observed() -> RecoveryObserved:
    """Machine 1 dies after iteration 3, whose checkpoint is not complete: both resume from iteration 2."""
    events = [*on_both("resumed", 10, 1), *on_both("resumed", 19.2, 2), *on_both("joined", 17, 2)]
    for generation, time_s, iteration in ((1, 11, 1), (1, 12, 2), (1, 13, 3), (2, 21.2, 3), (2, 22.2, 4)):
        events += on_both("iteration", time_s, generation, iteration=iteration)
    events += on_both("checkpoint", 12, 1, iteration=1, began_s=11, sent_s=0.5, received_s=0.7)
    for name, time_s in (("killed", 13.5), ("failure detected", 14.5), ("generation ordered", 15)):
        events.append(Event(name=name, time_s=time_s))
    for rank, time_s, duration_s, tier in ((0, 18, 0.5, "local memory"), (1, 18.2, 1.0, "peer memory")):
        place = {"time_s": time_s, "duration_s": duration_s, "number": rank, "rank": rank, "generation": 2}
        events.append(Event(name="retrieve", details={"tier": tier, "iteration": 2}, **place))
    outcome = TrainingOutcome(results=(), events=tuple(events), hosts=None)
    return RecoveryObserved(kind="hardware", outcome=outcome, phases=phases_of(outcome), different_ranks=0)


def test_phases_add_up_to_the_time_of_the_recovery_and_one_iteration_is_lost():
    phases = observed().phases
    # Ordered 0.5 s after the detection, joined 2 s later; the last rank asks at 18.2 s and has its state at 19.2 s.
    # The first iteration takes 2 s, an iteration as usual 1 s.
    assert list(phases.seconds.values()) == pytest.approx([1, 0.5, 2, 1.2, 1, 1])
    assert (phases.total_s, phases.lost_iterations, phases.lost_s) == (pytest.approx(6.7), 1, pytest.approx(1))
    rows = {row["quantity"]: row["value"] for row in recovery_rows([observed()])}
    assert (rows["from_memory"], rows["different_ranks"]) == (1, 0)


def test_the_timeline_has_phases_iterations_and_checkpoints_and_the_picture_names_every_ranks_tier():
    timeline = observed().timeline
    assert timeline.resources[:3] == ("recovery", "machine 0", "machine 0, checkpoints")
    labels = [(action.label, action.kind) for action in timeline.of("machine 1")]
    progress = [("1", Kind.COMPUTE), ("2", Kind.COMPUTE), ("3", Kind.OTHER)]
    assert labels == [*progress, ("peer memory", Kind.DECODE), ("3", Kind.COMPUTE), ("4", Kind.COMPUTE)]
    assert timeline.of("machine 0, checkpoints")[0].duration_s == pytest.approx(0.7)
    ax = pictures.draw_recovery(observed(), ax=figure()[1])
    assert "machine 1,\npeer memory" in [label.get_text() for label in ax.get_yticklabels()]
    assert ax.lines[-1].get_xdata()[0] == pytest.approx(3.5)
