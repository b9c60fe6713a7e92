"""`devrun launch --print`: job files that their own parsers take."""

import re
import shlex
import subprocess

import pytest
import yaml

from tests.support.command import command

HOSTILE = (
    "plain.yaml",
    "two words.yaml",
    'it\'s "quoted".yaml',
    "$(touch pwned) `touch pwned`.yaml",
    "$HEAD:29500.yaml",
    "a\nb: [c]\n#SBATCH --nodes=99\n.yaml",
    "${local_rank} $$ $(HOSTNAME).yaml",
    "; exit 3 #.yaml",
    "\u2028 \x1b[31m é.yaml",
)


@pytest.fixture(params=HOSTILE, ids=range(len(HOSTILE)))
def config(request, place, monkeypatch):
    monkeypatch.chdir(place.path)
    return place.write(name=request.param)


def printed(capsys, *words):
    status, out, err = command(capsys, "launch", "--print", *words)
    assert (status, err) == (0, "")
    return out


def run_words(script, place, **variables):
    """What a shell makes of `script`: its status, and the words of srun or torchrun."""
    stand_ins = (
        "srun() { printf '%s\\0' \"$@\"; return 75; }\n"
        "torchrun() { printf '%s\\0' \"$@\"; }\n"
        "scontrol() { echo requeue >> requeued; }\n"
    )
    done = subprocess.run(
        ["bash", "-c", stand_ins + script], capture_output=True, text=True,
        cwd=place.path, env={"PATH": "/usr/bin:/bin", **variables}, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert not (place.path / "pwned").exists()
    return done.returncode, done.stdout.split("\0")[:-1]


def sbatch(script):
    """The options of the #SBATCH lines above the first command, as sbatch reads."""
    found = {}
    for line in script.splitlines():
        if not line.startswith("#"):
            if line.strip():
                break
            continue
        if line.startswith("#SBATCH "):
            (word,) = shlex.split(line.removeprefix("#SBATCH "))
            name, _, value = word.removeprefix("--").partition("=")
            found[name] = value
    return found


def test_slurm(config, place, capsys):
    flags = ("--nodes", 2, "--num-devices", 8)
    given = (config, "--seed", "3", "--work-dir", "$HEAD:29500")
    script = printed(capsys, "slurm", *flags, *given)
    check = ["bash", "-n", "-c", script]
    assert subprocess.run(check, capture_output=True, check=False).stderr == b""
    options = sbatch(script)
    assert options["nodes"] == "2"
    assert options["cpus-per-task"] == "1"  # no loader workers
    assert options["ntasks-per-node"] == "8"
    assert re.fullmatch(r"devrun[-a-z0-9]*", options["job-name"])
    assert options["signal"] == "USR1@120"
    assert "requeue" in options
    status, words = run_words(script, place, SLURM_JOB_ID="41234")
    assert status == 75
    assert (place.path / "requeued").exists()
    at = words.index("devrun")
    assert words[at + 1 : at + 7] == ["train", *given]
    assert words[-2:] == ["--launcher", "slurm"]
    assert words[words.index("--resume-from") + 1] == "auto"
    (place.path / "requeued").unlink()
    run_words(script, place, SLURM_JOB_ID="1", SLURM_RESTART_COUNT="20")
    assert not (place.path / "requeued").exists()


def test_torchrun(config, place, capsys):
    from torch.distributed.run import get_args_parser

    script = printed(capsys, "torchrun", "--num-devices", 4, config, "--seed", 3)
    _, words = run_words(script, place)
    args = get_args_parser().parse_args(words)
    assert (args.nproc_per_node, args.nnodes, args.module) == ("4", "1", True)
    assert args.rdzv_endpoint == "localhost:29500"
    assert args.training_script == "devrun"
    assert args.training_script_args[:2] == ["train", config]
    assert args.training_script_args[-2:] == ["--launcher", "pytorch"]
    script = printed(capsys, "torchrun", "--nodes", 3, config)
    _, words = run_words(script, place, HEAD="n1")
    args = get_args_parser().parse_args(words)
    assert (args.nnodes, args.rdzv_backend) == ("3", "c10d")
    assert args.rdzv_endpoint == "n1:29500"


def expanded(word):
    """As Kubernetes reads an argument: `$$` is `$`, `$(NAME)` a variable."""
    return re.sub(
        r"\$\$|\$\((\w+)\)", lambda m: "$" if m[0] == "$$" else f"<{m[1]}>", word
    )


def test_kubernetes(config, place, capsys):
    from torch.distributed.run import get_args_parser

    flags = ("--nodes", 2, "--num-devices", 8)
    text = printed(capsys, "kubernetes", *flags, config, "--device", "cuda")
    job = yaml.safe_load(text)
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", job["metadata"]["name"])
    assert job["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    assert job["kind"] == "TrainJob"
    spec = job["spec"]
    assert spec["runtimeRef"] == {"name": "torch-distributed"}
    part = spec["trainer"]
    assert (part["numNodes"], part["numProcPerNode"]) == (2, 8)
    assert part["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": 8}
    assert part["command"] == ["torchrun"]
    args = get_args_parser().parse_args([expanded(word) for word in part["args"]])
    assert args.training_script_args[:2] == ["train", config]
    (changed,) = spec["podTemplateOverrides"]
    (volume,), (container,) = (changed["spec"][k] for k in ("volumes", "containers"))
    assert volume["emptyDir"] == {"medium": "Memory"}
    mounted = {"name": volume["name"], "mountPath": "/dev/shm"}
    assert container["volumeMounts"] == [mounted]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--print", "lsf", "run.yaml"), "invalid choice"),
        (("--print", "slurm", "none.yaml"), "none.yaml"),
        (("--print", "slurm", "run.yaml", "--num-device", "2"), "--num-devices"),
        (("--print", "slurm", "run.yaml", "--num-devices", "2"), "before CONFIG"),
        (("--print", "slurm", "run.yaml", "--overwrite"), "--resume-from auto"),
        (("--print", "slurm", "run.yaml", "--cfg-options", "modle=1"), "modle"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_gets_one_line(words, said, place, capsys, monkeypatch):
    monkeypatch.chdir(place.path)
    place.write()
    status, out, err = command(capsys, "launch", *words)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert said in line
