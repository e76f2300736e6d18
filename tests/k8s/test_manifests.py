"""The manifests of examples/k8s: against the schemas of Kubernetes, among themselves, and as a job.

The job runs on this machine, each process with the environment that its container would have.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

kubernetes_validate = pytest.importorskip("kubernetes_validate")
from manifests import FILES, FOLDER, KUSTOMIZATION, MANIFESTS, ROOT, container_of, find, pods
from manifests import run_pods, yaml

PREFIX = Path(os.environ.get("KVSTORE_PREFIX") or ROOT / "build" / "stage")
LIMIT_SECONDS = 60
# Label pod-index came with 1.28.
VERSIONS = [v for v in kubernetes_validate.utils.all_versions() if re.match(r"1\.(2[89]|3\d)", v)]


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
        sources = {it["name"]: it.get("valueFrom") for it in container_of(manifest)["env"]}
        secret = {"secretKeyRef": {"name": "kvstore-job", "key": "token"}}
        assert sources["KV_TOKEN"] == secret
    assert "KV_INSECURE" not in (FOLDER / "settings.yaml").read_text()


def test_all_pods_have_the_image_of_the_dockerfile():
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    name = f"libkvstore/kvstore:{version}"
    assert f"docker build -t {name} ." in (ROOT / "Dockerfile").read_text()
    assert {container_of(manifest)["image"] for manifest in pods()} == {name}
    [image] = KUSTOMIZATION["images"]
    assert f"{image['name']}:{image['newTag']}" == name


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl not installed")
def test_kubectl_makes_the_manifests_with_an_image_of_a_users(tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "k8s")
    file = folder / "kustomization.yaml"
    file.write_text(file.read_text().replace("newTag:", "newName: example.org/train\n    newTag:"))
    command = ["kubectl", "kustomize", str(folder)]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True
    )
    made = [item for item in yaml.safe_load_all(result.stdout)]
    assert len(made) == len(MANIFESTS)
    images = {container_of(item)["image"] for item in made if "template" in item.get("spec", {})}
    [image] = KUSTOMIZATION["images"]
    assert images == {f"example.org/train:{image['newTag']}"}


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
    library = {
        "KVSTORE_LIBRARY": str(PREFIX / "lib" / "libkvstore.so.0"),
        "PYTHONPATH": str(ROOT / "bindings" / "python"),
    }

    def start(container, variables):
        command = [sys.executable, "-c", PROGRAM]
        if container["name"] != "worker":
            command = [str(PREFIX / "bin" / "kvstore"), *container["command"][1:]]
        return command, {**os.environ, **library, **variables}

    said = run_pods(start)
    # 1 + 2 + 3 + 4, under the ranks of the indexes.
    assert [text.split() for text in said[3:]] == [[str(rank), "10.0"] for rank in range(4)]
