"""The paper's jobs: released gradients and codec times, on the two clusters, calibrated on FP32's scaling factors.

The authors' batches of BERT-base and GPT-2 are not those of table 4.4. Where the text says FP32's scaling factor, all
times of a model's computation are scaled to it on 64 GPUs; what Espresso gains is then predicted.
"""

from collections.abc import Sequence
from functools import cache
from types import MappingProxyType

from workbench.cluster.fitting import bisected
from workbench.datasets import gradient_traces
from workbench.study.thesis import paper_codec, paper_machines, scaled
from workbench.timeline.gradients import Gradients

from .method.job import Job
from .method.options import Option

__all__ = ["SCALING", "WHOLE", "job_of", "paper_codec", "paper_machines", "scaling_factor"]


WHOLE = 64  # GPUs


SCALING = MappingProxyType({"bert_base": 0.51, "gpt2": 0.58, "lstm": 0.46, "resnet101": 0.70})  # table 4.1, 4.8.4


def job_of(model: str, num_gpus: int, algorithm: str = "", *, testbed: str = "", is_calibrated: bool = True) -> Job:
    """Return a job of the paper; by default with the codec and on the testbed that its authors' scripts name."""
    settings = gradient_traces.experiment_settings()[model]
    gradients = _calibrated(model) if is_calibrated else gradient_traces.load(model)
    machines = paper_machines(testbed or settings.testbed, num_gpus)
    return Job(gradients, machines, paper_codec(algorithm or settings.algorithm))


@cache
def _calibrated(model: str) -> Gradients:
    """Return a model's gradients; where FP32's scaling factor is known, with times scaled to it on its own testbed."""
    gradients = gradient_traces.load(model)
    if model not in SCALING:
        return gradients
    whole = job_of(model, WHOLE, is_calibrated=False)

    def is_below(scale: float) -> bool:
        return scaling_factor(Job(scaled(gradients, scale), whole.machines, whole.codec)) < SCALING[model]

    return scaled(gradients, bisected(is_below, 0.01, 10.0, 40))


def scaling_factor(job: Job, strategy: Sequence[Option] | None = None) -> float:
    """Return the throughput of one GPU of many over that of a GPU alone; without a strategy, FP32's (section 4.2.1)."""
    alone_s = job.gradients.forward_s + job.gradients.backward_s
    return alone_s / job.iteration_s(strategy or [job.uncompressed] * job.gradients.num_tensors)
