"""The control plane under seeded random interleavings of whole machines, without processes."""

import random

import pytest
from stores import MemoryKeyValueStore

from workbench.techniques.gemini.runtime import ControlAgent, StoreUnavailable, Timing
from workbench.techniques.gemini.runtime.control.records import ORDER_KEY, Order, Phase

TIMING = Timing(heartbeat_s=0.1, lease_s=1.0, start_s=3.0)


class Interleaving(MemoryKeyValueStore):
    """A store in which, between any two calls of one agent, others may act, and calls may fail."""

    def __init__(self, world):
        super().__init__()
        self.world = world

    def get(self, key):
        self.world.disturb()
        return super().get(key)

    def set(self, key, value):
        self.world.disturb()
        super().set(key, value)
        if key == ORDER_KEY:
            self.world.written.append(Order.from_bytes(value))

    def compare_set(self, key, expected, desired):
        self.world.disturb()
        now = super().compare_set(key, expected, desired)
        if key == ORDER_KEY and now == desired:
            self.world.written.append(Order.from_bytes(desired))
        self.world.disturb()  # an answer may be lost after the store has written
        return now


class World:
    """Machines without processes: they die, sleep, forget, and are replaced; each has a clock of its own."""

    def __init__(self, seed, wipes):
        self.draw = random.Random(seed)
        self.wipes = wipes
        self.now_s = 0.0
        self.chaos = True
        self.store = Interleaving(self)
        self.agents, self.clocks, self.asleep_until_s, self.busy = {}, {}, {}, []
        self.accepted, self.written, self.finished, self.lives = {}, [], None, 0
        self.initial = ("m0", "m1", "m2")
        self.roster = [*self.initial, "s0"]
        self.replaced, self.elected = set(), []
        for name in self.roster:
            self.boot(name)

    def boot(self, name):
        self.agents[name] = ControlAgent(
            name, self.store, initial=self.initial, roster=tuple(self.roster), timing=TIMING, meeting=lambda: name
        )
        self.clocks[name] = self.draw.uniform(-1000, 1000)
        self.asleep_until_s[name] = 0.0

    def disturb(self):
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
        mine = self.accepted.setdefault(name, [])
        if mine:  # what an agent follows only ever gets newer
            assert order.generation > mine[-1].generation
            assert order.term >= mine[-1].term
        mine.append(order)

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
            together = all(one is not None and one.order == agent.order for one in partners)
            if agent.phase == Phase.RUNNING and together and self.draw.random() < 0.1:
                choices = [Phase.RUNNING, Phase.RUNNING, Phase.FAILED, Phase.RETURNED]
                agent.phase = self.draw.choice(choices) if self.chaos else Phase.RETURNED
            elif agent.phase == Phase.RUNNING and None in partners:
                agent.phase = Phase.LOST_PEER

    def accident(self):
        name = self.draw.choice(list(self.agents))
        kind = self.draw.random()
        if kind < 0.4 and len(self.agents) > 1:
            self.agents.pop(name)
        elif kind < 0.8:
            self.asleep_until_s[name] = self.now_s + self.draw.uniform(0.5, 3.0)

    def run(self, chaos_s, calm_s):
        end_s = chaos_s + calm_s
        while self.now_s < end_s and not (self.finished and not self.chaos):
            self.chaos = self.now_s < chaos_s
            if not self.chaos:
                self.asleep_until_s = dict.fromkeys(self.asleep_until_s, 0.0)
            self.tick()
            if self.chaos and self.draw.random() < 0.08:
                self.accident()
            if not self.chaos:
                self.finished = self.finished if self.finished in self.current() else None

    def tick(self):
        for name in self.draw.sample(list(self.agents), len(self.agents)):
            self.step(name)
        self.ranks_do_something()
        self.now_s += 0.1

    def current(self):
        return [agent.order for agent in self.agents.values()]


@pytest.mark.parametrize("wipes", [False, True], ids=["a lasting store", "a forgetful store"])
@pytest.mark.parametrize("block", range(4))
def test_whatever_happens_no_two_roots_act_in_one_generation_and_training_ends(block, wipes):
    for seed in range(100 * block, 100 * block + 6):
        world = World(seed, wipes)
        world.run(chaos_s=15.0, calm_s=60.0)
        assert world.finished is not None, f"seed {seed}: no end after calm"
        assert len(world.finished.members) == 3
        followed = {order for orders in world.accepted.values() for order in orders}
        identities = [order.identity for order in followed]
        assert len(set(identities)) == len(identities), f"seed {seed}: two orders of one identity"
        if not wipes:
            generations = [order.generation for order in world.written]
            assert generations == sorted(set(generations)), f"seed {seed}: one generation was ordered twice"
            assert len({order.generation for order in followed}) == len(followed), f"seed {seed}: two in one generation"
            assert len(set(world.elected)) == len(world.elected), f"seed {seed}: two roots in one term"


def test_the_interleavings_are_wild_enough_to_mean_something():
    worlds = [World(seed, False) for seed in range(10)]
    for world in worlds:
        world.run(chaos_s=15.0, calm_s=60.0)
    roots = [{order.root for order in world.written} for world in worlds]
    assert sum(len(names) > 1 for names in roots) >= 5  # the root changed in most of them
    assert sum(len(world.replaced) for world in worlds) >= 20
    assert max(order.generation for world in worlds for order in world.written) >= 5
