"""The manifests of examples/k8s, and a job of all their pods on this machine."""

import socket
import subprocess
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="kubernetes-validate not installed")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "k8s"
LIMIT_SECONDS = 300

KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
FILES = KUSTOMIZATION["resources"]
MANIFESTS = [item for file in FILES for item in yaml.safe_load_all((FOLDER / file).read_text())]


def find(kind, name):
    [found] = [m for m in MANIFESTS if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


def pods():
    return [m for m in MANIFESTS if "template" in m.get("spec", {})]


def container_of(manifest):
    [container] = manifest["spec"]["template"]["spec"]["containers"]
    return container


def environment(manifest, index, root):
    """What the container of a pod with this index has in its environment."""
    container = container_of(manifest)
    variables = {}
    for source in container["envFrom"]:
        variables.update(find("ConfigMap", source["configMapRef"]["name"])["data"])
    for item in container["env"]:
        source = item.get("valueFrom", {})
        if "secretKeyRef" in source:
            variables[item["name"]] = "0123456789abcdef" * 4
            continue
        field = source.get("fieldRef", {}).get("fieldPath", "")
        variables[item["name"]] = str(index) if field.endswith("-index']") else item["value"]
    if manifest["spec"].get("completionMode") == "Indexed":
        variables["JOB_COMPLETION_INDEX"] = str(index)
    # On one machine all would have the same ports.
    variables["KV_ROOT"] = root
    if container["name"] == "server":
        variables["KV_BIND"] = "127.0.0.1:0"
    if container["name"] == "scheduler":
        variables["KV_BIND"] = root
    return variables


def run_pods(start):
    """Starts a process for each pod by `start(container, environment)`; what each has printed.

    `start` gives the command and the environment of the process.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        root = f"127.0.0.1:{free.getsockname()[1]}"
    processes = []
    try:
        for manifest in pods():
            count = manifest["spec"].get("replicas") or manifest["spec"]["completions"]
            for index in range(count):
                command, variables = start(
                    container_of(manifest), environment(manifest, index, root)
                )
                process = subprocess.Popen(
                    command, env=variables,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )
                processes.append(process)
        said = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes), said
    return said
