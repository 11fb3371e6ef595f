"""Groups by hand, and properties over random traces; figure 3's deadlock is a study."""

import json
import math
import random

import pytest

from tests.cases import refusals
from workbench.techniques.sdpipe.method import Group, Scheduler, Settings, certify, connects_by_definition


def group(stage, *members, enforced=False):
    return Group(stage, frozenset(members), enforced)


def test_signals_within_a_window_make_one_group():
    scheduler = Scheduler(1, 4, history=10, window_s=1.0)
    assert scheduler.signal(0, 2, 5.0) == []
    assert scheduler.next_deadline_s() == 6.0
    assert scheduler.signal(0, 0, 5.9) == []
    assert scheduler.expire(5.95) == []
    assert scheduler.expire(6.0) == [group(0, 0, 2)]
    assert scheduler.next_deadline_s() is None


def test_a_stage_whose_workers_are_all_ready_does_not_wait_for_the_end_of_its_window():
    scheduler = Scheduler(2, 2, history=10, window_s=math.inf)
    assert scheduler.signal(1, 0, 0.0) == scheduler.signal(0, 1, 1.0) == []
    assert scheduler.signal(1, 1, 9.0) == [group(1, 0, 1)]


def test_without_a_window_groups_are_single_until_the_last_p_do_not_connect_all():
    scheduler = Scheduler(1, 3, history=3, window_s=0.0)
    assert scheduler.signal(0, 0, 0.0) == [group(0, 0)]
    assert scheduler.signal(0, 1, 1.0) == [group(0, 1)]
    # {0}, {1} and {2} do not connect three workers: 2 waits, with 0 they do not connect either, with 1 all are ready
    assert scheduler.signal(0, 2, 2.0) == scheduler.signal(0, 0, 3.0) == []
    assert scheduler.enforcing == {0}
    assert scheduler.signal(0, 1, 4.0) == [group(0, 0, 1, 2, enforced=True)]
    assert scheduler.enforcing == set()
    # {1}, {0, 1, 2} and {0} do
    assert scheduler.signal(0, 0, 5.0) == [group(0, 0)]
    assert scheduler.num_unchecked == 0


def test_the_window_grows_by_small_groups_and_shrinks_again_within_its_bounds():
    scheduler = Scheduler(1, 3, history=100, window_s=1.0, settings=Settings(enlarge=2.0, shorten=0.5, most=3.0))
    now_s, lengths = 0.0, []
    for workers in ([0], [0], [0], [0, 1], [0, 1], [0, 1], [0]):
        for worker in workers:
            scheduler.signal(0, worker, now_s)
        lengths.append(scheduler.next_deadline_s() - now_s)
        now_s = scheduler.next_deadline_s()
        scheduler.expire(now_s)
    assert lengths == [1.0, 2.0, 3.0, 3.0, 1.5, 1.0, 1.0]


def test_the_released_settings_check_after_p_signals_of_each_worker():
    scheduler = Scheduler(1, 2, history=2, window_s=0.0, settings=Settings.released())
    alone = [scheduler.signal(0, worker, 0.0) for worker in (0, 1, 0)]
    assert alone == [[group(0, 0)], [group(0, 1)], [group(0, 0)]]
    assert scheduler.signal(0, 1, 1.0) == [group(0, 1)]  # the fourth signal: from now on a check is due
    assert scheduler.signal(0, 0, 2.0) == []  # no group has joined them yet
    assert scheduler.signal(0, 1, 3.0) == [group(0, 0, 1, enforced=True)]
    assert scheduler.signal(0, 1, 4.0) == [group(0, 1)]  # seven signals; the next check is due after eight


def test_a_check_of_the_released_settings_stays_due_while_another_stage_enforces():
    scheduler = Scheduler(2, 2, history=1, window_s=0.0, settings=Settings.released())
    for stage in (0, 1):  # two signals of each stage make a check due
        assert [scheduler.signal(stage, worker, 0.0) for worker in (0, 1)] == [[group(stage, 0)], [group(stage, 1)]]
    assert scheduler.signal(0, 0, 1.0) == [] and scheduler.enforcing == {0}
    assert scheduler.signal(1, 0, 2.0) == [group(1, 0)] and scheduler.num_unchecked == 1
    assert scheduler.signal(0, 1, 3.0) == [group(0, 0, 1, enforced=True)]
    assert scheduler.signal(1, 1, 4.0) == [] and scheduler.enforcing == {1}
    assert scheduler.signal(1, 0, 5.0) == [group(1, 0, 1, enforced=True)]


def test_a_pipeline_that_leaves_is_not_waited_for():
    scheduler = Scheduler(2, 3, history=1, window_s=math.inf)
    assert scheduler.signal(0, 0, 0.0) == scheduler.signal(0, 2, 0.0) == scheduler.signal(1, 1, 0.0) == []
    assert scheduler.leave(0, 1) == [group(0, 0, 2)]
    assert scheduler.leave(1, 1) == [] and scheduler.next_deadline_s() is None
    with pytest.raises(ValueError, match=r"worker is 1; it must be in 0..2 and not have left"):
        scheduler.signal(0, 1, 1.0)


def test_a_stage_that_enforced_for_a_worker_who_leaves_goes_on_if_its_group_is_valid_without_it():
    scheduler = Scheduler(1, 3, history=2, window_s=1.0)
    scheduler.signal(0, 0, 0.0), scheduler.signal(0, 1, 0.5)
    assert scheduler.expire(1.0) == [group(0, 0, 1)]
    assert scheduler.signal(0, 0, 2.0) == scheduler.expire(3.0) == []  # {0, 1} and {0} lack 2
    assert scheduler.leave(0, 2) == [group(0, 0, enforced=True)]  # and connect 0 and 1
    assert scheduler.enforcing == set()


def test_a_window_that_is_set_counts_from_the_next_group_on_with_its_bounds():
    scheduler = Scheduler(1, 3, history=10, window_s=8.0)
    scheduler.signal(0, 0, 0.0)
    scheduler.set_window(1.0)
    assert scheduler.next_deadline_s() == 8.0
    assert scheduler.expire(8.0) == [group(0, 0)]  # alone: the window grows by 1.1
    scheduler.signal(0, 0, 10.0)
    assert scheduler.next_deadline_s() == pytest.approx(11.1)
    with pytest.raises(ValueError, match="window_s is -1"):
        scheduler.set_window(-1.0)


test_bad_arguments_are_refused = refusals(
    ({"num_pipelines": 1}, "num_pipelines is 1; it must be a whole number of at least 2"),
    ({"history": 0}, "history is 0; it must be a whole number of at least 1"),
    ({"num_stages": 0}, "num_stages is 0"),
    ({"window_s": -0.1}, "window_s is -0.1; it must be at least 0"),
    ({"window_s": math.nan}, "window_s is nan"),
    of=lambda **changed: Scheduler(**{"num_stages": 1, "num_pipelines": 2, "history": 1, "window_s": 0.0} | changed),
)


def test_bad_signals_are_refused_and_change_nothing():
    scheduler = Scheduler(1, 2, history=1, window_s=1.0)
    scheduler.signal(0, 0, 0.0)
    for stage, worker, message in ((0, 0, "waits in stage 0 already"), (1, 0, "stage is 1"), (0, 2, "worker is 2")):
        with pytest.raises(ValueError, match=message):
            scheduler.signal(stage, worker, 0.0)
    assert scheduler.signal(0, 1, 0.5) == [group(0, 0, 1)]


def test_a_certificate_counts_what_the_disjoint_set_connects():
    for seed in range(100):
        draw = random.Random(seed)
        members = [frozenset(draw.sample(range(6), draw.randint(1, 4))) for _ in range(draw.randint(1, 8))]
        groups = [Group(0, chosen) for chosen in members]
        runs = [members[end - 3 : end] for end in range(3, len(members) + 1)]
        expected = sum(connects_by_definition(run, range(6)) for run in runs)
        certificate = certify(groups, num_pipelines=6, history=3)
        assert (certificate.num_runs, certificate.num_connected) == (len(runs), expected)


class Pipelines:
    """Workers that signal as pipelines let them: a stage's backward pass ends after that of the stage behind it."""

    def __init__(self, scheduler, stages, pipelines, draw):
        self.scheduler, self.draw = scheduler, draw
        self.done = {(stage, worker): 0 for stage in range(stages) for worker in range(pipelines)}
        self.is_waiting, self.stages = set(), stages
        self.groups, self.now_s = [], 0.0

    def can_signal(self):
        """A worker is ready when its pipeline's last mini-batch is in, and the stage behind has gone through it."""
        for place, done in self.done.items():
            stage, worker = place
            behind = [self.done[s, worker] + ((s, worker) in self.is_waiting) for s in range(stage + 1, self.stages)]
            ahead = [self.done[s, worker] for s in range(self.stages)]
            if place not in self.is_waiting and all(b > done for b in behind) and min(ahead) >= done:
                yield place

    def hear(self, formed):
        for group in formed:
            for worker in group.members:
                self.is_waiting.discard((group.stage, worker))
                self.done[group.stage, worker] += 1
            self.groups.append(group)

    def run(self, num_signals, leaver=None):
        for number in range(num_signals):
            if number == num_signals // 2 and leaver is not None:
                for stage in range(self.stages):
                    self.hear(self.scheduler.leave(stage, leaver))
                self.is_waiting = {place for place in self.is_waiting if place[1] != leaver}
                self.done = {place: done for place, done in self.done.items() if place[1] != leaver}
                leaver = None
            able = sorted(self.can_signal())
            deadline_s = self.scheduler.next_deadline_s()
            if deadline_s is not None and (not able or self.draw.random() < 0.3):
                self.now_s = max(self.now_s, deadline_s)
                self.hear(self.scheduler.expire(self.now_s))
                continue
            assert able, "every worker waits: deadlock"
            stage, worker = self.draw.choice(able)
            self.now_s += self.draw.choice([0.0, 0.05, 0.5])
            self.is_waiting.add((stage, worker))
            self.hear(self.scheduler.signal(stage, worker, self.now_s))


@pytest.mark.parametrize("seed", range(24))
def test_whatever_the_trace_nothing_deadlocks_and_only_unchecked_groups_break_the_connection(seed):
    draw = random.Random(seed)
    stages, pipelines, history = draw.randint(1, 3), draw.randint(2, 5), draw.randint(1, 6)
    window_s, settings = draw.choice([0.0, 0.1, 1.0, math.inf]), draw.choice([Settings(), Settings.released()])
    leaver = draw.choice([None, draw.randrange(pipelines)])
    scheduler = Scheduler(stages, pipelines, history, window_s, settings=settings)
    driven = Pipelines(scheduler, stages, pipelines, draw)
    driven.run(120, leaver)
    if leaver is not None:
        return
    for group in driven.groups:
        assert window_s > 0 or group.enforced or len(group.members) == 1
        assert window_s < math.inf or len(group.members) == pipelines
    if not settings.by_signals:
        by_stage, broken = {}, 0
        for group in driven.groups:
            last = by_stage.setdefault(group.stage, [])
            last.append(group.members)
            broken += len(last) >= history and not connects_by_definition(last[-history:], range(pipelines))
        assert broken == scheduler.num_unchecked


def test_a_resumed_scheduler_waits_for_whom_the_groups_before_it_did_not_connect():
    def formed(scheduler):
        return [sorted(group.members) for worker in (0, 1) for group in scheduler.signal(0, worker, now_s=3.0)]

    scheduler, resumed, anew = (Scheduler(1, 3, history=3, window_s=0.0) for _ in range(3))
    assert formed(scheduler) == [[0], [1]]  # P - 1 groups
    resumed.load_state_dict(0, json.loads(json.dumps(scheduler.state_dict(0))))
    assert formed(resumed) == []  # the last worker is missing
    assert formed(anew) == [[0], [1]]


def test_a_worker_that_has_left_may_join_again():
    scheduler = Scheduler(1, 2, history=1, window_s=math.inf)
    scheduler.leave(0, 1)
    assert scheduler.signal(0, 0, now_s=0.0) == [group(0, 0)]
    scheduler.join(0, 1)
    assert scheduler.signal(0, 0, now_s=1.0) == []
    assert scheduler.signal(0, 1, now_s=2.0) == [group(0, 0, 1)]
