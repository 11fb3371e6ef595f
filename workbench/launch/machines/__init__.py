"""Machines: worker-agent processes with their ranks, each of which can be killed while the others go on.

`Ranks` (a pool) ends as a whole when one rank fails; here one machine, or one rank of it, can be lost and started
again. A machine is one single-threaded process, its agent, and the ranks that the agent forks. What an agent keeps
for its ranks in memory outlives a rank and dies with the machine.

    with Machines() as machines:
        machines.start("a", agent)              # agent(machine) runs in a process of its own
        for happening in machines.wait(1.0):    # what machines and ranks said, and who ended
            ...
        machines.kill("a")                      # as if its power had failed

Simplified: all machines are processes of this one; `hosts=ShapedHosts(...)` gives each its own network card.
Left out: other systems than Linux (memfd_create, pidfd, PR_SET_CHILD_SUBREAPER).
"""

from importlib import import_module

__all__ = [
    "Machine",
    "MachineEnded",
    "MachineSaid",
    "MachineStarted",
    "Machines",
    "RankEnded",
    "RankExit",
    "RankLink",
    "RankSaid",
    "RankStarted",
]

MODULE_OF = {
    "Machine": "machine",
    "MachineEnded": "happenings",
    "MachineSaid": "happenings",
    "MachineStarted": "happenings",
    "Machines": "machines",
    "RankEnded": "happenings",
    "RankExit": "happenings",
    "RankLink": "rank_life",
    "RankSaid": "happenings",
    "RankStarted": "happenings",
}


def __getattr__(name: str):
    if name not in MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULE_OF[name]}"), name)
