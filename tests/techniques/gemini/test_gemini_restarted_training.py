"""Training that is really hurt: ranks, machines, the root and the store are killed, and it ends as if nothing was.

Every machine keeps a counter of the iterations done in its memory; a rank begins with the smallest counter of all.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections import Counter

import psutil
import pytest
from cases import refusals
from processes_seen import family, wait_for

from workbench.cluster import Link
from workbench.launch import RankFailed, ShapedHosts
from workbench.techniques.gemini import control
from workbench.techniques.gemini.control import Fault, Victim, operator, run_training
from workbench.techniques.gemini.control.operator import Repeats

TIMING = control.Timing(heartbeat_s=0.05, lease_s=3.0)
STEPS = 12


def count(context, steps, pause_s=0.02):
    """Do the iterations that are left, and say where each generation began."""
    import torch
    import torch.distributed as dist

    memory = context.mapped("counter", 8)
    kept = int.from_bytes(memory[:8], "little")
    first = torch.tensor([kept])
    dist.all_reduce(first, op=dist.ReduceOp.MIN)
    for iteration in range(int(first), steps):
        dist.all_reduce(torch.ones(1))
        with context.during("pause"):
            time.sleep(pause_s)
        memory[:8] = (iteration + 1).to_bytes(8, "little")
        context.report(iteration)
    place = {"machine": context.machine_name, "rank": context.rank, "local": (context.machine, context.local_rank)}
    return {"kept": kept, "first": int(first), "memory": context.memory_names(), **place}


def run(num_machines=3, ranks_per_machine=1, function=count, args=(STEPS,), **choices):
    choices = {"timing": TIMING, "timeout_s": 200.0, **choices}
    return control.run_training(function, num_machines, ranks_per_machine, args=args, **choices)


@pytest.fixture
def train(fleet):
    """Trains on warm machines, of which none is left running."""
    yield lambda *args, **choices: run(*args, machines=fleet, **choices)
    assert fleet.names == ()


def machines_of(outcome):
    return [result["machine"] for result in outcome.results]


def test_without_a_failure_every_rank_trains_once_and_ranks_of_a_machine_share_its_memory(train):
    outcome = train(2, 2, memory_limit_bytes=8)
    assert [result["rank"] for result in outcome.results] == [0, 1, 2, 3] and outcome.num_generations == 1
    assert machines_of(outcome) == ["machine-0", "machine-0", "machine-1", "machine-1"]
    done = Counter((event.rank, event.details["iteration"]) for event in outcome.named("iteration"))
    assert done == {(rank, iteration): 1 for rank in range(4) for iteration in range(STEPS)}
    assert [result["local"] for result in outcome.results] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(result["memory"] == {"counter": 8} for result in outcome.results)
    assert all(event.duration_s >= 0.02 for event in outcome.named("pause"))


def test_after_a_machine_was_killed_its_successor_has_its_number_and_an_empty_memory(train):
    outcome = train(faults=[Fault(kills=Victim.MACHINE, numbers=(1,), at_iteration=5)])
    assert machines_of(outcome) == ["machine-0", "machine-1+1", "machine-2"]
    assert [result["kept"] >= 5 for result in outcome.results] == [True, False, True]
    assert outcome.results[1]["kept"] == 0
    [replaced] = outcome.named("replaced")
    assert (replaced.number, replaced.details["lost"]) == (1, "machine-1")
    [killed], [lost] = outcome.named("killed"), outcome.named("heartbeat lost")
    assert 2.9 <= lost.time_s - killed.time_s <= 60.0  # a lease of 3 s, on a machine that may be busy


def test_after_the_root_was_killed_with_the_store_another_one_orders_the_next_generation(train):
    outcome = train(faults=[Fault(kills=kind, at_iteration=5) for kind in (Victim.STORE, Victim.ROOT)])
    first, last = (outcome.named("root elected")[place] for place in (0, -1))
    assert (first.details["term"], last.details["term"]) == (1, 2) and last.machine != first.machine
    assert outcome.named("generation ordered")[-1].machine == last.machine
    assert outcome.num_generations == 2 and machines_of(outcome)[first.number] == f"{first.machine}+1"
    assert sum(result["kept"] == 0 for result in outcome.results) == 1


def test_where_all_machines_are_lost_at_once_the_operator_replaces_them_unasked(train):
    outcome = train(2, faults=[Fault(kills=Victim.MACHINE, numbers=(0, 1), at_iteration=5)])
    assert sorted(machines_of(outcome)) == ["machine-0+1", "machine-1+1"]
    assert [result["first"] for result in outcome.results] == [0, 0], "nothing of their memory is left"
    assert len(outcome.named("replacement asked")) == 2


def test_a_store_that_is_killed_and_comes_back_empty_does_not_disturb_training(train):
    outcome = train(args=(40,), faults=[Fault(kills=Victim.STORE, at_iteration=5, down_s=0.3)])
    assert outcome.num_generations == 1
    assert len(outcome.named("store started")) == 2
    assert {event.machine for event in outcome.named("store lost")}
    assert not outcome.named("heartbeat lost")


def test_a_standby_takes_over_while_the_operator_still_looks_for_a_machine(train):
    faults = [Fault(kills=Victim.MACHINE, numbers=(2,), at_iteration=5)]
    outcome = train(standbys=1, replacement_s=30.0, faults=faults)
    assert machines_of(outcome) == ["machine-0", "machine-1", "standby-0"]
    asked = outcome.named("replacement asked")[0]
    assert (asked.number, asked.details["by"]) == (2, "machine-2+1")


def fail_four_times(context):
    done = context.mapped("tries", 1)
    done[0] += 1
    context.report(done[0])
    if done[0] < 5:
        raise ZeroDivisionError("not yet")
    return done[0]


def test_an_error_that_comes_back_does_not_end_training_where_there_is_progress_and_one_in_a_result_does(train):
    assert train(1, function=fail_four_times, args=()).results == (5,)
    with pytest.raises(RankFailed, match="rank 0 returned a value that cannot be unpickled here: ValueError: made in"):
        train(1, function=lambda context: OnlyThere(), args=())


def hang_at_three(context):
    for iteration in range(6):
        if (context.rank, iteration) == (1, 3):
            os.kill(os.getpid(), signal.SIGSTOP)
        context.report(iteration)
    time.sleep(600)


def test_training_that_takes_too_long_says_what_is_missing_and_names_the_rank_that_hangs(train):
    message = r"did not end within 8 s: generation 1, no result of ranks \[0, 1, 2\]"
    with pytest.raises(TimeoutError, match=f"{message}.*behind the others' iteration 5: rank 1 at iteration 2"):
        train(3, function=hang_at_three, args=(), timeout_s=8.0)


class OnlyThere:
    """Can be pickled on a rank and not unpickled here."""

    def __reduce__(self):
        return unpickled, (os.getpid(),)


def unpickled(pid):
    raise ValueError(f"made in {pid}")


def start_in_background(training):
    training.start(200.0)
    while not any(event.name == "iteration" for event in training.events):
        time.sleep(0.01)


def test_a_notebook_can_strike_and_close_a_training_that_runs_in_the_background(fleet):
    with control.Training(count, 2, args=(60,), timing=TIMING, machines=fleet) as training:
        start_in_background(training)
        training.strike(Victim.RANK, 0)
        outcome = training.result()
    assert outcome.num_generations == 2
    names = ("killed", "rank failed", "failure detected", "generation ordered")
    times_s = [outcome.named(name)[-1 if name == names[-1] else 0].time_s for name in names]
    assert times_s == sorted(times_s), "what was found out happened before"
    assert "workbench-training" not in [thread.name for thread in threading.enumerate()]
    with control.Training(count, 2, args=(600,), timing=TIMING, machines=fleet) as training:
        start_in_background(training)
    with pytest.raises(RuntimeError, match="training was closed before its end: generation 1"):
        training.result()
    assert fleet.names == ()


def test_warm_machines_must_be_idle_and_say_their_own_hosts(fleet):
    with pytest.raises(ValueError, match="hosts is given beside machines"):
        control.Training(count, 2, machines=fleet, hosts=ShapedHosts(2, link=Link.gigabit()))
    fleet.start("busy", lambda machine: machine.wait(600.0))
    with pytest.raises(ValueError, match="machines has .'busy',. running; there must be none"):
        control.Training(count, 2, machines=fleet)
    fleet.kill_all()


def test_training_recovers_with_etcd_and_leaves_nothing_in_it(train, etcd):
    outcome = train(store=etcd, faults=[Fault(kills=Victim.ROOT, at_iteration=5)])
    assert outcome.named("root elected")[-1].details["term"] == 2
    assert sum(result["kept"] == 0 for result in outcome.results) == 1
    assert control.EtcdKeyValueStore(etcd)._client.get_prefix("workbench/") == []


def own_address(context):
    """Say which address this machine has on the shaped network, after an all-reduce over it."""
    import torch
    import torch.distributed as dist

    memory = context.mapped("tries", 1)
    memory[0] += 1
    context.report(0)
    if context.generation == 1:
        time.sleep(600)
    total = torch.ones(1000)
    dist.all_reduce(total)
    [address] = [nic.address for nic in psutil.net_if_addrs()["shaped0"] if nic.address.startswith("10.")]
    return context.machine_name, address, float(total.sum())


def test_on_shaped_hosts_a_successor_is_on_the_host_of_the_lost_machine():
    if ShapedHosts.missing():
        pytest.skip(f"shaped hosts need {ShapedHosts.missing()}")
    before = set(family(os.getpid()))
    faults = [Fault(kills=Victim.MACHINE, numbers=(1,), at_iteration=0)]
    outcome = run(2, function=own_address, args=(), faults=faults, hosts=ShapedHosts(2, link=Link.gigabit()))
    assert outcome.results == (("machine-0", "10.77.0.1", 2000.0), ("machine-1+1", "10.77.0.2", 2000.0))
    assert outcome.hosts["num_hosts"] == 2
    assert set(family(os.getpid())) <= before
    with pytest.raises(ValueError, match="hosts.num_hosts is 2; it must be 3, standbys included"):
        run(2, standbys=1, hosts=ShapedHosts(2, link=Link.gigabit()))


OUTSIDE = Fault(kills=Victim.MACHINE, numbers=(2,), at_iteration=1)
STORE_KILLED = Fault(kills=Victim.STORE, at_iteration=1)


@pytest.mark.parametrize(
    ("message", "choices"),
    [
        ("num_machines is 0", {"num_machines": 0}),
        ("ranks_per_machine is 1.5", {"ranks_per_machine": 1.5}),
        ("standbys is -1", {"standbys": -1}),
        ("store is 'redis://x'; it must be", {"store": "redis://x"}),
        ("store is 'None'; it must be", {"store": None}),
        ("replacement_s is -1; it must be finite and not negative", {"replacement_s": -1}),
        ("timeout_s is 0; it must be above 0", {"timeout_s": 0}),
        ("Fault.numbers is .2,.; each must lie in 0..1", {"faults": [OUTSIDE]}),
        ("only the embedded store can be killed", {"store": "http://127.0.0.1:1", "faults": [STORE_KILLED]}),
    ],
)
def test_bad_input_is_refused_before_anything_starts(message, choices):
    before = set(family(os.getpid()))
    with pytest.raises(ValueError, match=message):
        control.run_training(**{"function": print, "num_machines": 2, **choices})
    assert set(family(os.getpid())) <= before


test_a_fault_names_its_victims_and_its_time = refusals(
    ({"kills": Victim.ROOT}, "one of them must be given"),
    ({"kills": Victim.ROOT, "at_iteration": 1, "after_event": "x"}, "one of them must be given"),
    ({"kills": Victim.MACHINE, "at_iteration": 1}, "for a machine it must be different numbers"),
    ({"kills": Victim.ROOT, "numbers": (1,), "at_iteration": 1}, "for a root it must be empty"),
    ({"kills": Victim.ROOT, "after_event": "x", "occurrence": 0}, "Fault.occurrence is 0"),
    ({"kills": Victim.ROOT, "after_event": "x", "delay_s": -1}, "Fault.delay_s is -1"),
    of=Fault,
)


def fail(context, iteration: int) -> None:
    for done in range(1, iteration + 1):
        context.report(done)
    raise KeyError(f"no column for {context.rank} in generation {context.generation}")  # other words every time


@pytest.mark.parametrize(
    ("iteration", "generations", "note"),
    [(0, 1, "It failed before its first iteration"), (3, 2, "failed again at the same place after a restart")],
)
def test_an_error_is_shown_at_once_and_ends_training_by_its_class_and_place(
    fleet, capsys, iteration, generations, note
):
    with (
        pytest.raises(RankFailed, match=note) as failed,
        control.Training(fail, 2, args=(iteration,), machines=fleet, timing=TIMING) as training,
    ):
        training.run()
    assert "in fail" in str(failed.value) and max(event.generation or 0 for event in training.events) == generations
    shown = capsys.readouterr().err
    assert shown.count("no column for") > generations and shown.count("Traceback") == 1


def lose_peers(context) -> None:
    context.report(1)
    raise RuntimeError("Connection closed by peer")


def test_ranks_that_only_lose_each_other_again_and_again_end_training_too(fleet, monkeypatch):
    monkeypatch.setattr(operator, "MOST_STALLED", 2)
    with pytest.raises(RankFailed, match="started 2 times without getting beyond iteration 1"):
        run_training(lose_peers, 2, machines=fleet, timing=TIMING, timeout_s=200)


def end(repeats: Repeats, generation: int, progress: int, signature: str = "") -> str:
    if repeats.is_new(generation, progress) and signature:
        repeats.note_error(signature)
    return repeats.verdict


def test_generations_without_progress_are_counted_whatever_ended_them_and_wait_longer_each_time():
    repeats, pauses_s = Repeats(), []
    for generation in range(1, 10):
        assert end(repeats, generation, 7) == ""
        assert end(repeats, generation, 7) == "", "a second failure of one generation does not count"
        pauses_s.append(repeats.pause_s)
    assert pauses_s == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert end(repeats, 10, 7) == "Training was started 10 times without getting beyond iteration 7."
    repeats = Repeats()
    ended = [end(repeats, generation, progress=generation) for generation in range(1, 50)]
    assert not any(ended) and repeats.pause_s == 0.0, "with progress it may go on for ever"
    repeats = Repeats()
    ended = [end(repeats, generation, 2, signature) for generation, signature in enumerate("ababbcccc", 1)]
    assert [bool(verdict) for verdict in ended].index(True) == 4, "two of one kind in a row, without progress"


def test_a_stopped_store_is_an_unavailable_one_within_the_time_given(fleet, served):
    with served() as place, contextlib.closing(control.TcpKeyValueStore(*place, timeout_s=0.5)) as store:
        store.set("key", b"value")
        stopped = psutil.Process(fleet.pids["store"]["agent"])
        stopped.suspend()
        wait_for(lambda: stopped.status() == psutil.STATUS_STOPPED)  # it may still answer before that
        for _ in range(2):
            began_s = time.monotonic()
            with pytest.raises(control.StoreUnavailable, match=r"no answer within 0.5 s"):
                store.get("key")
            assert time.monotonic() - began_s < 60.0
        stopped.resume()

        def answers() -> bool:
            with contextlib.suppress(control.StoreUnavailable):
                return store.get("key") == b"value"
            return False

        wait_for(answers)


def write_garbage(place, keys, until):
    """Be another process of this machine that finds the store, reads all and writes what it likes, again and again."""
    listening = control.TcpKeyValueStore(*place)
    seen, number = [], 0
    while not until.is_set():
        for key in keys:
            with contextlib.suppress(control.StoreUnavailable):
                seen += [(key, value)] if (value := listening.get(key)) else []
                forged = [b"garbage", b"{", b"null", b'{"term": "1", "name": 7}', b'{"phase": "failed"}', b"\xff" * 99]
                forged += [value for other, value in seen[:50] if other == key]  # what was right some time ago
                listening.set(key, forged[number % len(forged)])
            number += 1
        for junk in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(200), b"\x00" * 64):
            with contextlib.suppress(OSError), socket.create_connection(place, 5.0) as end:
                end.sendall(junk)
        until.wait(0.1)
    listening.close()


def test_what_other_processes_write_to_the_store_is_dropped_and_counted_and_training_goes_on(fleet):
    patient = control.Timing(heartbeat_s=0.05, lease_s=5.0)  # nobody seems lost, however busy this machine is
    training = control.Training(count, 2, args=(30, 0.05), timing=patient, machines=fleet)
    with training:
        training.start(timeout_s=200.0)
        wait_for(lambda: "joined" in [event.name for event in training.events], 60.0)
        place = training._operator._store_address
        keys = ["root", "order", "agents/machine-0", "agents/machine-1"]
        ended = threading.Event()
        neighbour = threading.Thread(target=write_garbage, args=[place, keys, ended])
        neighbour.start()
        try:
            outcome = training.result()
        finally:
            ended.set()
            neighbour.join()
    assert machines_of(outcome) == ["machine-0", "machine-1"] and outcome.num_generations == 1
    dropped = outcome.named("message dropped")
    assert outcome.num_dropped == len(dropped) > 0
    assert {event.details["key"] for event in dropped} & {"root", "order"}
