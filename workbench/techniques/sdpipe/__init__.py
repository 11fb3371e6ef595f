"""SDPipe: pipeline-parallel training whose workers average in groups that a central scheduler forms.

Paper: "SDPipe: A Semi-Decentralized Framework for Heterogeneity-aware Pipeline-parallel Training", PVLDB 16(9), 2023.

Claim: an all-reduce waits for the slowest worker, and a parameter server is a bottleneck. A scheduler that sees every
worker's ready signal lets those average that are ready at about the same time, and waits only where the last P groups
would not connect all workers: up to 4.3 times the throughput of all-reduce, and the same model in the end.

Where to find it
- algorithm 2, group validation, deadlock prevention (sections 3.2 to 3.4, figure 3): `method.scheduler`
- Eq. 2 and theorem 1 (Eqs. 3 and 5): `method.convergence`; Adam with less variance (section 4): `method.optimizer`
- algorithm 1 on real ranks: `runtime.averaging`, with `workbench.parallel.replicas`; the scheduler's process:
  `runtime.service`; All-Reduce, AD-PSGD and HetPipe: `runtime.rivals`
- iterations of all four schemes on a cluster: `cost`; trainings in the order of such a timeline: `virtual`
- rows of the figures: `counted`, `simulated`, `measured`

One line in your own pipeline: `with synchronized(part, optimizer, num_stages=2):` around the loop as it was. torch's
`Schedule1F1B` flushes after each mini-batch; `Endless1F1B` does not, as algorithm 1 has it.

Read so: P counts groups of a stage, and until P - 1 groups are formed any group is valid; a window begins with its
first signal; AD-PSGD pairs neighbours of a seeded shuffle, iteration by iteration, as the authors' release does.
Theorem 1 orders n1 <= |S| <= n2 and names n1 the largest size: both readings are counted.
A mini-batch's two passes use the same weights, and its gradient changes the newest ones; the release does so, too.
The release's own settings are `Settings.released`. It differs further: each worker has a window, of which that of a
group's first one counts; a check ends a group at once when all workers are connected, and rests while one has stopped;
more than 8 pipelines form pairs outside of checks.
Simplified: in `cost` all stages are alike, a delay begins when a mini-batch's input is there, groups that send at the
same time do not share a card, a push or pull is served by one card as it arrives, and messages from stage to stage
take no time.
Left out, as in the paper: recovery from lost workers, and averages of optimizer states such as momentum.
Added: a group averages floating-point buffers, too, and takes its first member's of others; weights that stages share
are averaged over these after each group; all replicas end with the mean of all, those that ended earlier included.
Others go on without the pipeline of a worker that raises or ends; one that is silent for the group's timeout is named.
"""

import importlib

_HOMES = {
    "Endless1F1B": "workbench.parallel.endless",
    "Options": ".runtime.service",
    "Scheduler": ".method.scheduler",
    "SchedulerLost": ".runtime.service",
    "Settings": ".method.scheduler",
    "VarianceReducedAdam": ".method.optimizer",
    "WorkerLost": ".runtime.service",
    "synchronized": ".runtime.averaging",
}

__all__ = [*_HOMES]


def __getattr__(name: str):
    # Lazy, so that a catalogue can be listed without importing torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
