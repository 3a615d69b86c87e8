"""The files of deploy/: they are whole, fit each other and the command line, and what they start works together.

Kubernetes and Slurm are not here. The pods' commands run as processes of this machine, with a real etcd; the script
of Slurm runs as it is, with an `srun` and a `scontrol` that know two addresses of loopback.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_run import process
from cluster.nodes import Etcd, free_ports
from pains import until

import di_store
from di_store import cli
from di_store.base.sizes import parse_size

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
LAUNCHER = DEPLOY / "ray/cluster.yaml"
SBATCH = DEPLOY / "slurm/di_store.sbatch"
SECONDS = 120.0
TOKEN = "a token of the tests, long enough"
PROCESS_BYTES = 2**30
"""What the processes of a served store may take beside it."""


def documents(under: str = "") -> list[dict[str, Any]]:
    """All objects of Kubernetes in the files below a folder."""
    paths = [path for path in sorted((DEPLOY / under).rglob("*.yaml")) if path != LAUNCHER]
    return [each for path in paths for each in yaml.safe_load_all(path.read_text())]


def title(document: dict[str, Any]) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


def names(kind: str) -> set[str]:
    return {each["metadata"]["name"] for each in documents("kubernetes") if each["kind"] == kind}


def pod(document: dict[str, Any]) -> dict[str, Any] | None:
    """The spec of the pods that it makes."""
    return document.get("spec", {}).get("template", {}).get("spec")


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    spec = pod(document) or {}
    return [*spec.get("initContainers", []), *spec.get("containers", [])]


PODS = [each for each in documents("kubernetes") if pod(each)]


def test_every_document_is_an_object() -> None:
    """Each has the fields that all objects have, and no name is given twice."""
    every = documents()
    assert len(every) >= 10
    for each in every:
        assert each["apiVersion"]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", each["metadata"]["name"]), title(each)
    assert len({title(each) for each in every}) == len(every)


def test_selectors_match_pods() -> None:
    """Workloads select the pods that they make; what selects pods finds some."""
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in PODS]

    def found(wanted: dict[str, str]) -> bool:
        return any(wanted.items() <= each.items() for each in labels)

    for each in documents("kubernetes"):
        spec = each.get("spec", {})
        if each["kind"] in ("DaemonSet", "StatefulSet", "Deployment"):
            own = spec["template"]["metadata"]["labels"]
            assert spec["selector"]["matchLabels"].items() <= own.items(), title(each)
        elif each["kind"] == "Service":
            assert found(spec["selector"]), title(each)
        elif each["kind"] == "PodDisruptionBudget":
            assert found(spec["selector"]["matchLabels"]), title(each)
        elif each["kind"] == "NetworkPolicy":
            peers = [peer["podSelector"] for rule in spec["ingress"] for peer in rule["from"]]
            assert all(found(one["matchLabels"]) for one in [spec["podSelector"], *peers]), title(each)


@pytest.mark.parametrize("document", PODS, ids=title)
def test_everything_pods_refer_to_exists(document: dict[str, Any]) -> None:
    """Secrets and their keys, Services, volumes, and programs of the image."""
    keys = {each["metadata"]["name"]: set(each["stringData"]) for each in documents() if each["kind"] == "Secret"}
    claims = document["spec"].get("volumeClaimTemplates", [])
    volumes = {each["name"] for each in pod(document).get("volumes", [])} | {one["metadata"]["name"] for one in claims}
    if "serviceName" in document["spec"]:
        assert document["spec"]["serviceName"] in names("Service")
    for each in containers(document):
        assert {one["name"] for one in each["volumeMounts"]} <= volumes
        for variable in each["env"]:
            if secret := variable.get("valueFrom", {}).get("secretKeyRef"):
                assert secret["key"] in keys[secret["name"]]
        text = " ".join([*each["command"], *(str(one.get("value", "")) for one in each["env"])])
        for host in re.findall(r"di-store://([^:/]+):", text):
            assert host in names("Service") | {"$(NODE_IP)"}
        for host, service in re.findall(r"\b(etcd-\d)\.(\w+):", text):
            assert service in names("Service")
            assert int(host[-1]) < 3
        if "/src/job.py" in each["command"]:
            assert each["command"][-1] in ("learner", "actor", "member")
        for name in re.findall(r"\$\((\w+)\)", text):
            assert name in {one["name"] for one in each["env"]}


def test_the_image_contains_the_programs_of_the_pods() -> None:
    """The programs are where the Dockerfile puts them, and the images have one name."""
    text = (DEPLOY / "Dockerfile").read_text()
    assert "COPY . /src/" in text
    assert (DEPLOY / "job.py").exists()
    images = {each["image"] for document in PODS for each in containers(document)} - {
        "gcr.io/etcd-development/etcd:v3.5.17"
    }
    assert all(image in text for image in images)


@pytest.mark.parametrize("document", PODS, ids=title)
def test_pods_have_no_rights(document: dict[str, Any]) -> None:
    """Not root, no capabilities; containers that share a store have one user."""
    spec = pod(document)
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] > 0
    for each in containers(document):
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        assert "runAsUser" not in each["securityContext"]


def test_container_memory_suffices() -> None:
    """A served store and its processes fit the container's limit, and all of it is asked for."""
    served = [(document, each) for document in PODS for each in containers(document) if "serve" in each["command"]]
    assert len(served) == 2
    for document, each in served:
        limit = _bytes(each["resources"]["limits"]["memory"])
        assert each["resources"]["requests"]["memory"] == each["resources"]["limits"]["memory"]
        memory = parse_size(each["command"][each["command"].index("--memory") + 1])
        assert limit >= memory + PROCESS_BYTES, title(document)
        assert pod(document)["shareProcessNamespace"]
        assert len(containers(document)) == 2, "somebody else holds the store too"
        assert each["readinessProbe"]["exec"] == each["startupProbe"]["exec"]


def _bytes(text: str) -> int:
    return parse_size(text + "B")


# -- command lines -------------------------------------------------------------------------------------------------


def command_lines() -> Iterator[list[str]]:
    """The words behind `di-store` of all commands in the files."""
    for document in documents():
        for each in containers(document):
            if each.get("command", [""])[0] == "di-store":
                yield each["command"][1:]
    for text in re.findall(r"exec di-store ([^'\n]+)'", SBATCH.read_text()):
        yield shlex.split(text)


def test_command_lines_in_the_files_parse() -> None:
    """The command line takes the commands of the files as they are."""
    found = list(command_lines())
    assert len(found) == 3
    for name, *arguments in found:
        command = cli.group.get_command(None, name)  # type: ignore[arg-type]
        command.make_context(f"di-store {name}", list(arguments))


@pytest.mark.parametrize(
    "page", ["README.md", "README.zh-CN.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_pages_name_options_that_exist(page: str) -> None:
    """Every option behind `di-store COMMAND` in a page, in the text or in a console, is one of that command."""
    faults = []
    for name, rest in re.findall(r"di-store ([a-z]+)\b([^`\n|;&>]*)", (ROOT / page).read_text()):
        if name in cli.COMMANDS:
            command = cli.group.get_command(None, name)  # type: ignore[arg-type]
            known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            faults += [
                f"di-store {name} {option}" for option in re.findall(r"(?<!\S)--[a-z-]+", rest) if option not in known
            ]
    assert not faults


def test_the_script_passes_bash_and_shellcheck() -> None:
    """Bash reads it, and shellcheck where there is one."""
    subprocess.run(["bash", "-n", SBATCH], check=True)
    if found := shutil.which("shellcheck"):
        subprocess.run([found, SBATCH], check=True)


def test_ray_accepts_the_launcher_file() -> None:
    """By Ray's own schema; with the provider of the comments too."""
    ray = pytest.importorskip("ray")
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler/ray-schema.json").read_text())
    text = LAUNCHER.read_text()
    config = yaml.safe_load(text)
    jsonschema.validate(config, schema)
    other = re.search(r"^# provider:\n(?:# .*\n)+", text, re.M)
    assert other
    config |= yaml.safe_load(re.sub(r"^# ", "", other.group(), flags=re.M))
    assert config["provider"]["type"] == "aws"
    jsonschema.validate(config, schema)


# -- what they start -----------------------------------------------------------------------------------------------


class Pods:
    """Commands of the files as processes here: with ports, names and sizes of this test."""

    def __init__(self, etcd: Etcd, running: ExitStack) -> None:
        self._suffix = secrets.token_hex(4)  # other stores of this user may be called as those of the files
        self._ports = dict(zip(("node", "learner"), free_ports(2), strict=True))
        self._etcd = etcd
        self._running = running

    def start(self, container: str, store: str, **more: str) -> subprocess.Popen[str]:
        """One container, beside the store `store`."""
        return self._run(_container(container)["command"], store, **more)

    def is_ready(self, container: str, store: str) -> bool:
        """What the readiness probe says."""
        probe = self._run(_container(container)["readinessProbe"]["exec"]["command"], store)
        return probe.wait(SECONDS) == 0

    def name(self, store: str) -> str:
        return f"{store}-{self._suffix}"

    def address(self, store: str) -> str:
        return f"di-store://127.0.0.1:{self._ports[store]}/{self.name(store)}"

    def _run(self, command: list[str], store: str, **more: str) -> subprocess.Popen[str]:
        program = [sys.executable] if command[0] == "python" else [sys.executable, "-m", "di_store"]
        mine = {"POD_IP": "127.0.0.1", "DI_STORE_TOKEN": TOKEN, "DI_STORE_NODE": self.name(store), **more}
        given = (f"{key}={value}" for key, value in mine.items())
        words = [self._here(each, store) for each in command[1:]]
        if "serve" in words:
            words[words.index("serve") + 1] = self.name(store)
        return self._running.enter_context(process("env", *given, *program, *words))

    def _here(self, word: str, store: str) -> str:
        """A word of a command, as it is here."""
        port = self._ports[store]
        word = word.replace("$(POD_IP):7370", f"127.0.0.1:{port}").replace(
            f":7370/{store}", f":{port}/{self.name(store)}"
        )
        word = re.sub(r"^etcd://.*/rl$", f"etcd://{self._etcd.where}/{self._suffix}", word)
        return {"4GiB": "256MiB", "16GiB": "256MiB"}.get(word, word).replace("/src/", f"{DEPLOY}/")


def _container(name: str) -> dict[str, Any]:
    (found,) = (each for document in PODS for each in containers(document) if each["name"] == name)
    return found


@pytest.fixture
def pods(tmp_path: Path, store_dir: str) -> Iterator[Pods]:
    etcd = Etcd(tmp_path, 1)
    try:
        with ExitStack() as running:
            yield Pods(etcd, running)
    finally:
        etcd.end()


@pytest.mark.extended
def test_pods_work_together(pods: Pods) -> None:
    """The learner learns from rows of actors; its weights come to the node's store, which outlives its server."""
    serve, _ = pods.start("serve", "node"), pods.start("store", "learner")
    until(lambda: pods.is_ready("serve", "node") and pods.is_ready("store", "learner"), "the stores", SECONDS)
    pods.start("member", "node")
    pods.start("actor", "node", DI_STORE_ROWS=pods.address("learner"), DI_STORE_WEIGHTS=pods.address("node"))
    learner = pods.start("learner", "learner", DI_STORE_STEPS="50")
    out, err = learner.communicate(timeout=SECONDS)
    assert learner.returncode == 0, err
    assert "learned: 12,800 samples" in out

    def newest() -> int:
        with di_store.connect(pods.address("node"), token=TOKEN, timeout=SECONDS) as near:
            found = near.latest("policy", timeout=SECONDS)
            return 0 if found is None else int(found.value["step"])

    until(lambda: newest() == 49, "the last weights on the node", SECONDS)
    serve.terminate()
    assert serve.wait(SECONDS) == 0
    assert not pods.is_ready("serve", "node")
    pods.start("serve", "node")
    until(lambda: pods.is_ready("serve", "node"), "the store again", SECONDS)
    assert newest() == 49


@pytest.mark.extended
def test_a_learners_pod_is_replaced(pods: Pods) -> None:
    """The next learner makes the table anew, whose name the lost store has left in etcd."""
    for _ in range(2):
        store = pods.start("store", "learner")
        until(lambda: pods.is_ready("store", "learner"), "the store", SECONDS)
        learner = pods.start("learner", "learner", DI_STORE_STEPS="0")
        out, err = learner.communicate(timeout=SECONDS)
        assert "learned: 0 samples" in out, err
        store.terminate()
        assert store.wait(SECONDS) == 0


SRUN = """#!/bin/bash
nodes=(127.0.0.1 127.0.0.2) tasks=0 status=0
while [[ $1 == --* ]]; do
    case $1 in
        --ntasks=*) tasks=${1#*=} ;;
        --nodelist=*) nodes=("${1#*=}") ;;
    esac
    shift
done
trap 'kill $(jobs -p) 2> /dev/null; wait' TERM
for ((task = 0; task < tasks; task++)); do
    SLURMD_NODENAME=${nodes[task % ${#nodes[@]}]} "$@" &
done
for each in $(jobs -p); do wait "$each" || status=$?; done
exit $status
"""
SCONTROL = """#!/bin/bash
[[ $* == "show hostnames two-nodes" ]] && printf '127.0.0.1\n127.0.0.2\n'
"""


@pytest.fixture
def slurm(tmp_path: Path, store_dir: str) -> dict[str, str]:
    """The environment of a job on two nodes."""
    tools = tmp_path / "tools"
    tools.mkdir()
    programs = {"srun": SRUN, "scontrol": SCONTROL, "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n'}
    programs["di-store"] = f'#!/bin/sh\nexec {sys.executable} -m di_store "$@"\n'
    for name, text in programs.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SLURM_JOB_ID": str(secrets.randbelow(10**9)),
        "SLURM_JOB_NODELIST": "two-nodes",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_SUBMIT_DIR": str(DEPLOY),
        "SLURMD_NODENAME": "127.0.0.1",
        "MEMORY": "256MiB",
        "ACTORS": "1",
        "PORT": str(free_ports(1)[0]),
    }


@pytest.mark.extended
@pytest.mark.parametrize(("steps", "status", "said"), [("50", 0, "learned: 12,800 samples"), ("many", 1, "ValueError")])
def test_a_slurm_job_runs_on_two_nodes(slurm: dict[str, str], steps: str, status: int, said: str) -> None:
    """Two nodes find each other, the learner learns; the job ends as the learner does, and leaves nothing."""
    environment = {**slurm, "DI_STORE_STEPS": steps}
    done = subprocess.run(["bash", SBATCH], env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == status, done.stderr
    assert "2 of 2 nodes answer" in done.stdout
    assert said in done.stdout + done.stderr
    job = f"job-{slurm['SLURM_JOB_ID']}-"
    until(lambda: not any(each.name.startswith(job) for each in di_store.list_stores()), "the stores to end", SECONDS)


@pytest.mark.extended
def test_a_job_that_is_cancelled_ends(slurm: dict[str, str]) -> None:
    """SIGTERM ends servers, actors and learner."""
    job = f"job-{slurm['SLURM_JOB_ID']}-"

    def stores() -> int:
        return sum(each.name.startswith(job) for each in di_store.list_stores())

    running = subprocess.Popen(["bash", SBATCH], env={**slurm, "DI_STORE_STEPS": "1000000"}, stderr=subprocess.DEVNULL)
    try:
        until(lambda: stores() == 2, "two stores", SECONDS)
    finally:
        running.terminate()
        assert running.wait(SECONDS) == 143
    until(lambda: stores() == 0, "the stores to end", SECONDS)
