"""Leases, election and orders without processes, worked by hand; and the contract of every key-value store."""

import contextlib
import json
import platform
import random
import time

import pytest
import torch
import torch.distributed as dist
from cases import refusals

from workbench.techniques.gemini import control
from workbench.techniques.gemini.control import ControlAgent, LeaseBook, StoreUnavailable, Timing
from workbench.techniques.gemini.control import agent as ordering
from workbench.techniques.gemini.control import store as stores
from workbench.techniques.gemini.control.agent import ORDER_KEY, Order, Phase, RootRecord, decide
from workbench.techniques.gemini.control.service import own_gpu


def test_a_lease_ends_when_the_same_count_was_seen_for_longer_than_it_lasts():
    book = LeaseBook(2.0, start_s=10.0)
    for time_s, count in ((0.0, 7), (1.0, 7), (1.5, 8), (3.0, None), (3.5, 8), (3.5, 7)):
        book.look("a", count, time_s)  # the last one is an old heartbeat that somebody has written again
    book.look("a", 8, 3.5)
    assert not book.is_expired("a", 3.5)  # 8 was first seen at 1.5
    assert book.is_expired("a", 3.6)
    assert not book.is_expired("a", 5.5, leases=2.0)
    assert not book.is_expired("nobody looked at", 100.0)
    book.look("never heard", None, 0.0)
    assert [book.is_expired("never heard", time_s) for time_s in (10.0, 10.1)] == [False, True]
    book.pardon(5.0)  # all have a fresh lease
    assert [book.is_expired("a", time_s) for time_s in (7.0, 7.1)] == [False, True]


test_leases_are_positive_and_cover_several_heartbeats = refusals(
    (lambda: LeaseBook(lease_s=0.0, start_s=None), "lease_s is .*; it must be"),
    (lambda: LeaseBook(lease_s=1.0, start_s=-1.0), "start_s is .*; it must be"),
    (lambda: Timing(heartbeat_s=0.0), "heartbeat_s is .*; it must be"),
    (lambda: Timing(heartbeat_s=0.3, lease_s=1.0), "lease_s is .*; it must be"),
    (lambda: Timing(lease_s=5.0, start_s=4.0), "start_s is .*; it must be"),
)

A = RootRecord(term=3, name="a")
ELECTIONS = [
    # Nobody is root yet: a machine that may takes the first term, a standby does not.
    ("b", None, None, True, 0, (1, "b")),
    ("standby", None, None, False, 0, None),
    # The root lives: nothing to do. The root is lost: the next term.
    ("b", A, A, False, 3, None),
    ("b", A, A, True, 3, (4, "b")),
    # The store has forgotten everything: the root comes back in its term, the others leave it the time.
    ("a", None, A, False, 3, (3, "a")),
    ("b", None, A, False, 3, None),
    # It has forgotten everything and the root died: the next term.
    ("b", None, A, True, 3, (4, "b")),
    # The root sees that somebody has seen a higher term: agents would refuse its orders, so it takes a higher one.
    ("a", A, A, False, 5, (6, "a")),
    # The store has forgotten the root, and meanwhile there was a higher term: not the old one again.
    ("a", None, A, False, 4, None),
]


@pytest.mark.parametrize(("me", "record", "known", "root_is_lost", "seen_term", "expected"), ELECTIONS)
def test_an_election_step(me, record, known, root_is_lost, seen_term, expected):
    claim = ordering.election_step(me=me, record=record, known=known, root_is_lost=root_is_lost, seen_term=seen_term)
    assert (None if claim is None else (claim.term, claim.name)) == expected


ORDER = Order(generation=4, term=2, root="a", members=("a", "b"), meeting="here:1")


def status(name, phase=Phase.RUNNING, generation=4, term=2, root="a", **changes):
    values = {"identity": (generation, term, root), "seen_term": 2, "served": True, "meeting": "here:2"}
    return ordering.AgentStatus(name=name, count=1, phase=phase, **{**values, **changes})


def spare(name):
    return status(name, Phase.IDLE, served=False)


def decided(*statuses, lost=(), order=ORDER, ripe=False):
    by_name = {status.name: status for status in statuses}
    known = {"initial": ("a", "b"), "roster": tuple(by_name), "lost": set(lost), "statuses": by_name}
    return decide(order=order, peer_loss_is_ripe=ripe, **known)


def test_training_begins_when_all_are_heard_and_after_a_software_failure_with_the_same_machines():
    idle = {"generation": 0, "term": 0, "root": "", "served": False, "phase": Phase.IDLE}
    assert decided(status("a", **idle), order=None).reason == "waits for b"
    decision = decided(status("a", **idle), status("b", **idle), order=None)
    assert (decision.members, decision.generation) == (("a", "b"), 1)
    decision = decided(status("a"), status("b", Phase.RETURNED))  # all train or are done
    assert (decision.members, decision.replace, decision.finished) == (None, (), False)
    decision = decided(status("a", Phase.LOST_PEER), status("b", Phase.FAILED))
    assert (decision.members, decision.generation, decision.replace) == (("a", "b"), 5, ())
    assert decision.reason == "a rank of b failed"
    # Ranks that only lost a peer wait until a lost machine would be known.
    statuses = (status("a", Phase.LOST_PEER), status("b"))
    assert decided(*statuses).members is None
    assert decided(*statuses, ripe=True).members == ("a", "b")


REPLACEMENTS = [
    # A standby takes the number of a lost machine, and the operator is asked for another.
    ([spare("s")], ["b"], ("a", "s"), {"b": 1}, ""),
    # Without a standby the root asks and waits.
    ([], ["a"], None, {"a": 0}, "waits for a replacement of a"),
    # Two lost machines need two spares, which follow in the order of the numbers.
    ([spare("s")], ["a", "b"], None, {"a": 0, "b": 1}, "waits for a replacement of b"),
    ([spare("s"), spare("t")], ["a", "b"], ("s", "t"), {"a": 0, "b": 1}, ""),
    # A machine that was replaced and comes back gets no number again.
    ([status("old", Phase.IDLE)], ["b"], None, {"b": 1}, "waits for a replacement of b"),
    # A lost standby is replaced too.
    ([spare("s")], ["s"], None, {"s": None}, ""),
]


@pytest.mark.parametrize(("others", "lost", "members", "asked", "reason"), REPLACEMENTS)
def test_lost_machines_are_replaced_by_standbys_and_asked_for_again(others, lost, members, asked, reason):
    decision = decided(status("a"), status("b"), *others, lost=lost)
    assert (decision.members, decision.generation if members else 5) == (members, 5)
    assert {replacement.lost: replacement.number for replacement in decision.replace} == asked
    assert reason in decision.reason


def test_training_is_finished_when_all_ranks_of_the_newest_order_have_returned_even_if_a_machine_died_then():
    done = (status("a", Phase.RETURNED), status("b", Phase.RETURNED))
    assert decided(*done).finished
    assert decided(*done, lost=["b"]).finished
    assert not decided(done[0], status("b", Phase.RETURNED, generation=3)).finished


def test_machines_that_hold_another_order_of_the_same_or_a_later_generation_get_a_later_one():
    assert decided(status("a"), status("b", term=1)).generation == 5
    assert decided(status("a"), status("b", generation=7, term=3)).generation == 8
    # A machine that has not read the order yet is waited for, unless it would refuse the order.
    assert decided(status("a"), status("b", generation=3, seen_term=2)).members is None
    assert decided(status("a"), status("b", generation=3, seen_term=3)).generation == 5


# The whole loop


class MemoryKeyValueStore:
    """The definition of a store: a dictionary, for one process, with functions to call at every access."""

    def __init__(self, before=lambda kind, key: None, after=lambda kind, key, written: None):
        self.values, self.before, self.after = {}, before, after

    def get(self, key):
        self.before("get", key)
        return self.values.get(key)

    def set(self, key, value):
        self.before("set", key)
        stores.check_values(value=value)
        self.values[key] = value
        self.after("set", key, value)

    def compare_set(self, key, expected, desired):
        self.before("compare_set", key)
        stores.check_values(desired=desired, expected=expected)
        if self.values.get(key) == expected:
            self.values[key] = desired
        now = self.values.get(key)
        self.after("compare_set", key, desired if now == desired else None)
        return now

    def close(self):
        pass


TIMING = Timing(heartbeat_s=0.1, lease_s=1.0, start_s=3.0)


def agents(store, names=("a", "b", "c"), **changes):
    common = {"initial": tuple(names), "roster": tuple(names), "timing": TIMING, **changes}
    return [ControlAgent(name, store, meeting=lambda: "here:1", **common) for name in names]


def step_all(agents, *times_s):
    for time_s in times_s:
        for agent in agents:
            agent.step(time_s)


def test_agents_elect_one_root_which_cannot_act_any_more_once_it_slept_and_was_succeeded():
    store = MemoryKeyValueStore()
    a, b, c = agents(store)
    step_all((a, b, c), 0.0, 0.0)
    assert [agent.leads for agent in (a, b, c)] == [True, False, False]
    assert {(agent.order.identity, agent.phase) for agent in (a, b, c)} == {((1, 1, "a"), Phase.RUNNING)}
    step_all((a, b, c), 0.1)
    step_all((b, c), *(tick / 10 for tick in range(2, 14)))  # a sleeps for 1.2 s
    assert RootRecord.from_bytes(store.get(ordering.ROOT_KEY)) == RootRecord(term=2, name="b")
    late = Order(generation=2, term=1, root="a", members=("a", "b", "c"), meeting="")
    store.set(ORDER_KEY, late.to_bytes())  # what a decided before it fell asleep, written late
    step_all((c, a, b, c), 1.4)  # a wakes up as well; b, who sees all alive again, orders anew
    assert [agent.order.identity for agent in (b, c)] == [(3, 2, "b")] * 2
    assert a.order.identity == (1, 1, "a")
    assert not a.leads


def test_nobody_is_lost_because_the_store_was_silent_for_longer_than_a_lease():
    tick = 0

    def cut_off(kind, key):
        if 10 <= tick < 40:  # 3 s, three leases
            raise StoreUnavailable("cut off")

    everybody = agents(MemoryKeyValueStore(before=cut_off))
    for tick in range(60):
        # The root reads what all have just written before, and looks at them first after the silence.
        order = everybody if tick >= 10 else everybody[::-1]
        events = [event for agent in order for event, _ in agent.step(tick / 10).events]
        assert "heartbeat lost" not in events
    assert [agent.order.generation for agent in everybody] == [1, 1, 1]


# Seeded random interleavings of whole machines


class World:
    """Machines without processes: they die, sleep, forget, and are replaced; each has a clock of its own."""

    def __init__(self, seed, wipes=False, forged=False):
        self.seed, self.draw, self.wipes, self.forged = seed, random.Random(seed), wipes, forged
        self.history = []  # all that was ever written, which anybody may read and write again
        self.now_s, self.chaos, self.store = 0.0, True, MemoryKeyValueStore(self.disturb, self.note)
        self.agents, self.clocks, self.asleep_until_s, self.busy = {}, {}, {}, []
        self.accepted, self.written, self.finished, self.lives = {}, [], None, 0
        self.initial = ("m0", "m1", "m2")
        self.roster = [*self.initial, "s0"]
        self.replaced, self.elected = set(), []
        for name in self.roster:
            self.boot(name)

    def boot(self, name):
        known = {"initial": self.initial, "roster": tuple(self.roster), "timing": TIMING}
        store = stores.SignedKeyValueStore(self.store, b"of this training")
        self.agents[name] = ControlAgent(name, store, meeting=lambda: name, **known)
        self.clocks[name] = self.draw.uniform(-1000, 1000)
        self.asleep_until_s[name] = 0.0

    def note(self, kind, key, written):
        self.history += [(key, written)] if written else []
        if written and key == ORDER_KEY and written != stores.NOTHING:
            self.written.append(Order.from_bytes(written[stores.MAC_BYTES :]))
        if kind == "compare_set":
            self.disturb()  # an answer may be lost after the store has written

    def disturb(self, *access):
        if not self.chaos:
            return
        if self.draw.random() < 0.03:
            raise StoreUnavailable("dropped")
        if self.wipes and self.draw.random() < 0.002:
            self.store.values.clear()
        if len(self.busy) < 3 and self.draw.random() < 0.1:
            self.step(self.draw.choice(list(self.agents)))
        if len(self.busy) < 2 and self.draw.random() < 0.003:
            for _ in range(self.draw.randint(5, 30)):  # whoever is in the middle of a step stands still
                self.tick()

    def step(self, name):
        if name in self.busy or name not in self.agents or self.asleep_until_s[name] > self.now_s:
            return
        agent = self.agents[name]
        self.busy.append(name)
        step = agent.step(self.now_s + self.clocks[name])
        self.busy.remove(name)
        if name not in self.agents:
            return  # it died in the middle of it
        if step.order is not None:
            self.check_accepted(name, step.order)
        self.elected += [details["term"] for event, details in step.events if event == "root elected"]
        if step.finished is not None:
            self.finished = step.finished
        for replacement in step.replace:
            self.replace(replacement.lost)

    def check_accepted(self, name, order):
        orders = self.accepted.setdefault(name, [])
        if orders:  # what an agent follows only ever gets newer
            assert order.generation > orders[-1].generation
            assert order.term >= orders[-1].term
        orders.append(order)

    def replace(self, lost):
        if lost in self.replaced or lost not in self.roster:
            return
        self.replaced.add(lost)
        self.agents.pop(lost, None)  # fenced
        self.lives += 1
        self.roster = [name for name in self.roster if name != lost] + [f"n{self.lives}"]
        self.boot(self.roster[-1])
        for agent in self.agents.values():
            agent.roster = tuple(self.roster)

    def ranks_do_something(self):
        for name, agent in self.agents.items():
            if agent.order is None or name not in agent.order.members:
                continue
            partners = [self.agents.get(member) for member in agent.order.members]
            together = all(partner is not None and partner.order == agent.order for partner in partners)
            if agent.phase == Phase.RUNNING and together and self.draw.random() < 0.1:
                choices = [Phase.RUNNING, Phase.RUNNING, Phase.FAILED, Phase.RETURNED]
                agent.phase = self.draw.choice(choices) if self.chaos else Phase.RETURNED
            elif agent.phase == Phase.RUNNING and None in partners:
                agent.phase = Phase.LOST_PEER

    def accident(self):
        name, kind = self.draw.choice(list(self.agents)), self.draw.random()
        if kind < 0.4 and len(self.agents) > 1:
            self.agents.pop(name)
        elif kind < 0.8:
            self.asleep_until_s[name] = self.now_s + self.draw.uniform(0.5, 3.0)

    def run(self, chaos_s, calm_s):
        while self.now_s < chaos_s:
            self.tick()
            if self.draw.random() < 0.08:
                self.accident()
        self.chaos, self.asleep_until_s = False, dict.fromkeys(self.asleep_until_s, 0.0)
        while self.now_s < chaos_s + calm_s and not self.is_over():
            self.tick()

    def is_over(self):
        return self.finished is not None and self.finished in [agent.order for agent in self.agents.values()]

    def forge(self):
        key, old = self.draw.choice(self.history)
        another = self.draw.choice(self.history)[1]
        half = old[: self.draw.randrange(len(old))]
        dead = json.dumps({"name": "m1", "count": 10**9, "phase": "failed", "generation": 1, "term": 1}).encode()
        unsigned = old[stores.MAC_BYTES :]
        values = [old, old, another, half, b"", b"garbage", b"null", b"[1, 2]", b'{"term": "9"}', dead, unsigned]
        self.store.values[key] = self.draw.choice(values)

    def tick(self):
        if self.forged and self.history and self.draw.random() < 0.5:
            self.forge()
        for name in self.draw.sample(list(self.agents), len(self.agents)):
            self.step(name)
        self.ranks_do_something()
        self.now_s += 0.1


KINDS = {"a lasting store": {}, "a forgetful store": {"wipes": True}, "a store that others write to": {"forged": True}}


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_happens_no_two_roots_act_in_one_generation_and_training_ends(kind):
    worlds = [World(100 * block + number, **KINDS[kind]) for block in range(4) for number in range(2)]
    for world in worlds:
        world.run(chaos_s=15.0, calm_s=60.0)
        assert world.is_over(), f"seed {world.seed}: no end after calm"
        assert len(world.finished.members) == 3
        followed = {order for orders in world.accepted.values() for order in orders}
        identities = [order.identity for order in followed]
        assert len(set(identities)) == len(identities), f"seed {world.seed}: two orders of one identity"
        if kind == "a lasting store":
            generations = [order.generation for order in world.written]
            assert generations == sorted(set(generations)), f"seed {world.seed}: one generation was ordered twice"
            assert len({order.generation for order in followed}) == len(followed), f"seed {world.seed}: two at once"
            assert len(set(world.elected)) == len(world.elected), f"seed {world.seed}: two roots in one term"
    # The interleavings are wild enough to mean something: the root changes in most of them.
    assert sum(len({order.root for order in world.written}) > 1 for world in worlds) >= len(worlds) / 2
    assert sum(len(world.replaced) for world in worlds) >= 2 * len(worlds)
    assert max(order.generation for world in worlds for order in world.written) >= 5


# One contract for every key-value store: the dictionary, torch's TCPStore, and etcd


@pytest.fixture(params=["dictionary", "tcp", "etcd"])
def store(request):
    if request.param == "dictionary":
        yield MemoryKeyValueStore()
    elif request.param == "tcp":
        served = request.getfixturevalue("served")
        with served() as place, contextlib.closing(control.TcpKeyValueStore(*place)) as client:
            yield client
    else:
        client = control.EtcdKeyValueStore(request.getfixturevalue("etcd"), prefix=f"test-{time.monotonic_ns()}/")
        yield client
        client.delete_all()
        client.close()


def test_a_value_is_there_after_it_was_set_and_compare_set_writes_only_over_the_expected_one(store):
    assert isinstance(store, stores.KeyValueStore)
    assert store.get("b") is None
    store.set("b", b"\x00\xff binary")
    assert store.get("b") == b"\x00\xff binary"
    assert store.compare_set("a", b"old", b"1") is None  # no value, and one was expected
    assert store.get("a") is None
    for expected, desired, now in ((None, b"1", b"1"), (None, b"2", b"1"), (b"0", b"2", b"1"), (b"1", b"2", b"2")):
        assert store.compare_set("a", expected, desired) == store.get("a") == now
    assert store.compare_set("a", b"2", b"2") == b"2"


@pytest.mark.parametrize("empty", [b"", "text"])
def test_empty_values_and_text_are_refused(store, empty):
    calls = {"value": ("set", empty), "desired": ("compare_set", None, empty), "expected": ("compare_set", empty, b"1")}
    for field, (method, *values) in calls.items():
        with pytest.raises(ValueError, match=f"{field} is .*; it must be bytes, at least one"):
            getattr(store, method)("a", *values)
    assert store.get("a") is None


def test_of_many_clients_one_wins_and_finds_a_store_that_was_killed_and_started_again_empty(served):
    with served() as (address, port):
        clients = [control.TcpKeyValueStore(address, port, timeout_s=0.5) for _ in range(4)]
        answers = [client.compare_set("a", None, b"%d" % number) for number, client in enumerate(clients)]
        assert answers == [b"0"] * 4
    client = clients[0]
    with pytest.raises(StoreUnavailable, match=f"the store at {address}:{port} does not answer"):
        client.get("a")
    with pytest.raises(StoreUnavailable):  # nobody listens
        client.set("a", b"2")
    with served(port):
        assert client.get("a") is None
        client.set("a", b"3")
        assert client.get("a") == b"3"


def test_an_etcd_url_needs_scheme_host_and_port_and_a_server_that_is_not_there_is_unavailable():
    for url in ("127.0.0.1:2379", "http://127.0.0.1", "ftp://host:1"):
        with pytest.raises(ValueError, match="url is .*; it must be http://host:port or https://host:port"):
            control.EtcdKeyValueStore(url)
    pytest.importorskip("etcd3gw")
    store = control.EtcdKeyValueStore("http://127.0.0.1:9", timeout_s=0.5)
    with pytest.raises(StoreUnavailable):
        store.get("a")
    with pytest.raises(ValueError, match="prefix is empty"):
        store.delete_all()


@pytest.mark.parametrize(("num_gpus", "gpus"), [(3, [0, 1, 0, 2]), (2, [None] * 4)])
def test_ranks_of_several_machines_of_a_computer_have_gpus_of_their_own_or_no_rank_has(monkeypatch, num_gpus, gpus):
    store, computers = dist.HashStore(), ["a", "a", "b", "a"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)

    def gpu_of(rank, is_available):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
        monkeypatch.setattr(platform, "node", lambda: computers[rank])
        return own_gpu(store, rank, len(computers))

    assert [gpu_of(rank, False) for rank in range(4)] == [None] * 4  # all have said where they are
    assert [gpu_of(rank, True) for rank in range(4)] == gpus
