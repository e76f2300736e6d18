"""The manifests of examples/k8s: against the schemas of Kubernetes, among themselves, and as a job.

The job runs on this machine, each process with the environment that its container would have.
"""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="kubernetes-validate not installed")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "k8s"
PREFIX = Path(os.environ.get("KVSTORE_PREFIX") or ROOT / "build" / "stage")
LIMIT_SECONDS = 60

FILES = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
MANIFESTS = [item for file in FILES for item in yaml.safe_load_all((FOLDER / file).read_text())]
# Label pod-index came with 1.28.
VERSIONS = [v for v in kubernetes_validate.utils.all_versions() if re.match(r"1\.(2[89]|3\d)", v)]


def find(kind, name):
    [found] = [m for m in MANIFESTS if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


def pods():
    return [m for m in MANIFESTS if "template" in m.get("spec", {})]


def test_every_file_is_in_the_kustomization():
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == set(FILES)


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_every_manifest_fits_the_schema(version):
    assert len(MANIFESTS) == 6
    for manifest in MANIFESTS:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schema_finds_a_mistake():
    wrong = {**find("Job", "kvstore-worker"), "spec": {"completion": 4}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_numbers_and_labels_agree():
    settings = find("ConfigMap", "kvstore-job")["data"]
    workers = find("Job", "kvstore-worker")["spec"]
    servers = find("StatefulSet", "kvstore-server")["spec"]
    service = find("Service", "kvstore")
    assert int(settings["KV_NUM_WORKERS"]) == workers["completions"] == workers["parallelism"]
    assert int(settings["KV_NUM_SERVERS"]) == servers["replicas"]
    host, port = settings["KV_ROOT"].split(":")
    assert host == f"kvstore-scheduler-0.{service['metadata']['name']}"
    assert int(port) in [item["port"] for item in service["spec"]["ports"]]
    for manifest in pods():
        labels = manifest["spec"]["template"]["metadata"]["labels"]
        selected = service["spec"]["selector"].items() <= labels.items()
        assert selected == (manifest["kind"] == "StatefulSet")
        if selected:
            assert manifest["spec"]["serviceName"] == service["metadata"]["name"]
            assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()
        policy = find("NetworkPolicy", "kvstore")["spec"]["podSelector"]["matchLabels"]
        assert policy.items() <= labels.items()


def test_every_process_has_its_token_from_a_secret():
    for manifest in pods():
        [container] = manifest["spec"]["template"]["spec"]["containers"]
        sources = {item["name"]: item.get("valueFrom") for item in container["env"]}
        secret = {"secretKeyRef": {"name": "kvstore-job", "key": "token"}}
        assert sources["KV_TOKEN"] == secret
    assert "KV_INSECURE" not in (FOLDER / "settings.yaml").read_text()


def environment(manifest, index, root):
    """What the container of a pod with this index has in its environment."""
    [container] = manifest["spec"]["template"]["spec"]["containers"]
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
    return container, variables


PROGRAM = """
import kvstore, numpy
with kvstore.create("dist_sync") as kv:
    kv.init(7, numpy.zeros(3, "float32"))
    kv.push(7, numpy.full(3, kv.rank + 1, "float32"))
    out = numpy.empty(3, "float32")
    kv.pull(7, out=out)
    print(kv.rank, out[0])
"""


def test_the_manifests_make_up_a_job():
    with socket.create_server(("127.0.0.1", 0)) as free:
        root = f"127.0.0.1:{free.getsockname()[1]}"
    library = {
        "KVSTORE_LIBRARY": str(PREFIX / "lib" / "libkvstore.so.0"),
        "PYTHONPATH": str(ROOT / "bindings" / "python"),
    }
    processes = []
    try:
        for manifest in pods():
            count = manifest["spec"].get("replicas") or manifest["spec"]["completions"]
            for index in range(count):
                container, variables = environment(manifest, index, root)
                command = container["command"]
                if command[0] == "kvstore":
                    command = [str(PREFIX / "bin" / "kvstore"), *command[1:]]
                else:
                    command = [sys.executable, "-c", PROGRAM]
                process = subprocess.Popen(
                    command, env={**os.environ, **library, **variables},
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )
                processes.append(process)
        said = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * 7, said
    # 1 + 2 + 3 + 4, under the ranks of the indexes.
    assert [text.split() for text in said[3:]] == [[str(rank), "10.0"] for rank in range(4)]
