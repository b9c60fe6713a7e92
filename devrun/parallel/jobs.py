"""Job files: a training as SLURM, Kubernetes or torchrun takes it, as text.

What the user typed reaches a shell quoted, YAML dumped, and Kubernetes with every `$`
doubled, which it would expand. Names of jobs are made of the characters they may have.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

_PORT = 29500
_REQUEUES = 20


@dataclass(frozen=True)
class Job:
    """What a job file says.

    Attributes:
        words: of `devrun train`, the config first.
        processes: of each machine.
        resource: what Kubernetes calls a device; None where it counts none.
        gres: the same of SLURM.
    """

    name: str
    words: tuple[str, ...]
    nodes: int = 1
    processes: int = 1
    resource: str | None = None
    gres: str | None = None
    max_restarts: int = 3
    image: str = ""
    time: str | None = None
    partition: str | None = None
    cpus: int | None = None
    warning: int = 120
    """Seconds before the end of its time at which a SLURM job is warned."""


def torchrun(job: Job) -> str:
    """One shell command; for several machines, on each with HEAD set to the first."""
    meeting = _Shell(f'"$HEAD:{_PORT}"')
    return _lines([*_torchrun(job, meeting), *job.words, "--launcher", "pytorch"])


def slurm(job: Job) -> str:
    """A script for sbatch, which queues itself again when the run was stopped."""
    options = {
        "job-name": _slug(job.name),
        "partition": job.partition,
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "gres": job.gres and f"{job.gres}:{job.processes}",
        "cpus-per-task": job.cpus,
        "time": job.time,
        "signal": f"USR1@{job.warning}",
        "open-mode": "append",
        "output": "%x-%j.log",
    }
    heads = [f"#SBATCH --{k}={v}" for k, v in options.items() if v is not None]
    words = ["srun", "--kill-on-bad-exit=0"]
    if job.cpus is not None:  # which srun does not take over
        words += ["--cpus-per-task", str(job.cpus)]
    words += ["devrun", "train", *job.words]
    words += ["--num-devices", str(job.processes)]
    words += ["--max-restarts", str(job.max_restarts)]
    meeting = ""
    if job.nodes > 1:
        words += ["--nnodes", str(job.nodes), "--rdzv-endpoint"]
        words.append(_Shell('"$HEAD:$PORT"'))
        meeting = (
            'HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
            "PORT=$((15000 + SLURM_JOB_ID % 15000))\n"
        )
    return (
        "#!/bin/bash\n" + "\n".join([*heads, "#SBATCH --requeue"]) + "\n\n"
        f"{meeting}{_lines(words)}"
        "status=$?\n"
        "# 75: stopped by a signal, such as the warning before the end, and saved\n"
        'if [ "$status" -eq 75 ] && '
        f'[ "${{SLURM_RESTART_COUNT:-0}}" -lt {_REQUEUES} ]; then\n'
        '    scontrol requeue "$SLURM_JOB_ID"\n'
        "fi\n"
        'exit "$status"\n'
    )


def train_job(job: Job) -> str:
    """A TrainJob of Kubeflow Trainer, for its runtime `torch-distributed`."""
    trainer: dict[str, Any] = {
        "image": job.image,
        **_command(job),
        "numNodes": job.nodes,
        "numProcPerNode": job.processes,
    }
    if limits := _limits(job):
        trainer["resourcesPerNode"] = {"limits": limits}
    return _document(
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": _slug(job.name)},
            "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
        }
    )


def pytorch_job(job: Job) -> str:
    """A PyTorchJob of Kubeflow's training operator."""
    container: dict[str, Any] = {
        "name": "pytorch",
        "image": job.image,
        **_command(job),
    }
    if limits := _limits(job):
        container["resources"] = {"limits": limits}
    template = {"spec": {"containers": [container]}}

    def replicas(number: int) -> dict[str, Any]:
        return {
            "replicas": number,
            "restartPolicy": "OnFailure",
            "template": template,
        }

    specs = {"Master": replicas(1)}
    if job.nodes > 1:
        specs["Worker"] = replicas(job.nodes - 1)
    return _document(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": _slug(job.name)},
            "spec": {
                "nprocPerNode": str(job.processes),
                "runPolicy": {"backoffLimit": _REQUEUES},
                "pytorchReplicaSpecs": specs,
            },
        }
    )


def _torchrun(job: Job, meeting: str | None) -> list[str]:
    """torchrun's own words; without `meeting` the operator says where and how many."""
    words = ["torchrun"]
    if meeting is not None:
        words += ["--nproc-per-node", str(job.processes)]
        if job.nodes == 1:
            words.append("--standalone")
        else:
            words += ["--nnodes", str(job.nodes), "--rdzv-backend", "c10d"]
            words += ["--rdzv-endpoint", meeting, "--rdzv-id", _slug(job.name)]
    words += ["--max-restarts", str(job.max_restarts)]
    return [*words, "-m", "devrun", "train"]


def _command(job: Job) -> dict[str, list[str]]:
    """Of a container: no shell, but Kubernetes puts variables in place of `$(NAME)`."""
    words = [word.replace("$", "$$") for word in job.words]
    return {
        "command": ["torchrun"],
        "args": [*_torchrun(job, None)[1:], *words, "--launcher", "pytorch"],
    }


def _limits(job: Job) -> dict[str, int]:
    return {} if job.resource is None else {job.resource: job.processes}


def _document(content: Mapping[str, Any]) -> str:
    class Dumper(yaml.SafeDumper):  # what is there twice is written twice
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump(content, Dumper=Dumper, sort_keys=False)


def _lines(words: Sequence[str]) -> str:
    """A shell command over several lines, a flag and its values on each."""
    lines = [[_quoted(words[0])]]
    for word in words[1:]:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(_quoted(word))
    return " \\\n    ".join(" ".join(line) for line in lines) + "\n"


class _Shell(str):
    """A word with a variable of our own, quoted already."""


def _quoted(word: str) -> str:
    return word if isinstance(word, _Shell) else shlex.quote(word)


def _slug(name: str) -> str:
    """`name` as Kubernetes and SLURM take one: a to z, 0 to 9 and -, at most 50."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].strip("-")
    return words if words[:1].isalpha() else f"devrun-{words}".strip("-")
