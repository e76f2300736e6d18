"""What `make dist` makes: equal in two folders; installed into a new Debian, run as its users do, removed.

In `make test-long`; or of the folder KV_TEST_DIST, in which `make dist` has made a release, or of two such,
with a colon between them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from artefacts import ROOT, copied_tree, made, named_places
from debian import PATH, Debian, codename, missing
from image import Image

MADE = [ROOT / folder for folder in os.environ.get("KV_TEST_DIST", "").split(":") if folder]
if not MADE and "KV_TEST_OPERATIONS" not in os.environ:
    pytest.skip("only in make test-long", allow_module_level=True)

MOST_BYTES = {"*.whl": 8_400_000, "libkvstore0_*.deb": 3_100_000}
MOST_IMAGE_BYTES = 40_000_000
LIMIT_SECONDS = 120
EXAMPLES = ROOT / "examples"
MODULE = "github.com/libkvstore/libkvstore/bindings/go"

in_debian = pytest.mark.skipif(missing() != "", reason=missing())


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What `make dist` has made in two copies of the tree, whose paths differ in length."""
    if MADE:
        yield MADE
        return
    trees = [copied_tree(tmp_path_factory.mktemp("tree") / name) for name in ("a", "another")]
    yield [made(tree) for tree in trees]
    for tree in trees:
        shutil.rmtree(tree)


@pytest.fixture(scope="module")
def dist(both):
    return both[0]


def files(folder):
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def test_two_builds_of_one_commit_have_the_same_bytes(both):
    if len(both) < 2:
        pytest.skip("KV_TEST_DIST is one build")
    first, second = both
    assert files(first) == files(second)
    differing = [
        str(name)
        for name in sorted(files(first))
        if (first / name).read_bytes() != (second / name).read_bytes()
    ]
    assert differing == []


def test_nothing_is_missing_and_the_checksums_are_of_all_files(dist):
    command = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(command, cwd=dist, check=True, timeout=LIMIT_SECONDS)
    lines = (dist / "SHA256SUMS").read_text().splitlines()
    assert {Path(line.split()[1]) for line in lines} == files(dist) - {Path("SHA256SUMS")}
    kinds = ["*.whl", "*.cdx.json", "go/**/*.zip", "*-linux-*.tar.xz", "*-site.tar.xz"]
    kinds += [f"{name}_*.deb" for name in ("libkvstore0", "libkvstore-dev", "kvstore")]
    kinds += [f"libkvstore{part}-[0-9]*.crate" for part in ("", "-checksum", "-protocol", "-cli")]
    for kind in kinds:
        assert len([*dist.glob(kind)]) == 1, kind
    assert len([*dist.glob("*.tar.xz")]) == 3


def test_no_artefact_names_a_folder_of_this_machine(dist):
    named = [line for name in files(dist) for line in named_places(dist / name, dist.parent)]
    assert named == []


@pytest.mark.parametrize("kind", MOST_BYTES)
def test_no_artefact_has_become_too_large(dist, kind):
    [path] = dist.glob(kind)
    print(path.name, path.stat().st_size)
    assert path.stat().st_size <= MOST_BYTES[kind]


@pytest.fixture(scope="module")
def debian(tmp_path_factory):
    system = Debian.new(tmp_path_factory.mktemp("debian") / "small", codename())
    yield system
    shutil.rmtree(system.root)


@pytest.fixture(scope="module")
def with_tools(debian, tmp_path_factory):
    """With compilers and interpreters, as those have who write programs; without cargo."""
    system = debian.copy(tmp_path_factory.mktemp("debian") / "with_tools")
    system.install("gcc", "libc6-dev", "pkg-config", "python3-venv", "python3-numpy")
    yield system
    shutil.rmtree(system.root)


@pytest.fixture
def system(request, tmp_path):
    """A copy of one of both, for one test."""
    system = request.getfixturevalue(request.param).copy(tmp_path / "system")
    yield system
    shutil.rmtree(system.root)


def within(name):
    return pytest.mark.parametrize("system", [name], indirect=True)


def packages(dist, *names):
    return [next(dist.glob(f"{name}_*.deb")) for name in names]


def purge(system, *names):
    """Removes packages; their files, and what ldconfig knows of them, are gone."""
    system.run("dpkg", "--purge", *names)
    assert "kvstore" not in system.run("ldconfig", "-p")


def check_rounds(said):
    """What the examples print in a job of two workers: each round adds 1 + 2."""
    assert [line.split("| ")[-1] for line in said.splitlines() if "after round" in line] == [
        f"after round {round}: {1 + 3 * round}.0" for round in range(1, 6)
    ]


@in_debian
@within("debian")
def test_the_debian_packages_need_no_tools_and_leave_nothing(dist, system):
    before = system.files()
    names = ("libkvstore0", "kvstore")
    system.install(*system.put(*packages(dist, *names)))
    # No compiler, no cargo, no Python: a job of shells, whose server is the program.
    said = system.run("kvstore", "run", "-n", "2", "--", "sh", "-c", "echo worker $KV_RANK")
    assert {"worker 0", "worker 1"} <= {line.split("| ")[-1] for line in said.splitlines()}
    assert "libkvstore.so.0" in system.run("ldconfig", "-p")
    purge(system, *names)
    assert system.files() == before


def compile_and_run(system, prefix="", **variables):
    """The first page's program, and the example of a job, by C's usual line."""
    headers = [*EXAMPLES.glob("c/*.h")]
    system.put(EXAMPLES / "c" / "hello.c", EXAMPLES / "c" / "rounds.c", *headers)
    line = "cc /tmp/{0}.c $(pkg-config --cflags --libs kvstore) -o /tmp/{0}"
    for program in ("hello", "rounds"):
        system.run("sh", "-c", line.format(program), **variables)
    assert system.run("/tmp/hello", **variables) == "6 7 8 9\n"
    job = (f"{prefix}kvstore", "run", "-n", "2", "--", "/tmp/rounds", "dist_sync")
    check_rounds(system.run(*job, **variables))


@in_debian
@within("with_tools")
def test_a_c_program_is_built_from_the_debian_packages(dist, system):
    before = system.files()
    names = ("libkvstore0", "libkvstore-dev", "kvstore")
    system.install(*system.put(*packages(dist, *names)))
    compile_and_run(system)
    purge(system, *names)
    assert system.files() == before


@in_debian
@within("with_tools")
def test_a_c_program_is_built_from_the_archive(dist, system):
    [archive] = dist.glob("*-linux-*.tar.xz")
    command = ["tar", "--extract", "--file", archive, "--directory", system.root / "opt"]
    subprocess.run(command, check=True, timeout=LIMIT_SECONDS)
    prefix = f"/opt/{archive.name.removesuffix('.tar.xz')}"
    assert (system.root / f".{prefix}" / "THIRD-PARTY-LICENSES.txt").exists()
    compile_and_run(
        system,
        f"{prefix}/bin/",
        PKG_CONFIG_PATH=f"{prefix}/lib/pkgconfig",
        LD_LIBRARY_PATH=f"{prefix}/lib",
    )


@in_debian
@within("with_tools")
def test_the_wheel_is_installed_into_a_new_environment_and_leaves_nothing(dist, system):
    [wheel] = system.put(*dist.glob("*.whl"))
    system.put(EXAMPLES / "python" / "rounds.py")
    system.run("python3", "-m", "venv", "--system-site-packages", "/opt/venv")
    before = system.files()
    path = {"PATH": f"/opt/venv/bin:{PATH}"}
    system.run("pip", "install", "--no-index", wheel, **path)
    job = ("kvstore", "run", "-n", "2", "--", "python", "/tmp/rounds.py", "dist_sync")
    check_rounds(system.run(*job, **path))
    system.run("pip", "uninstall", "--yes", "libkvstore", **path)
    assert system.files() == before


@in_debian
@within("with_tools")
def test_go_get_takes_the_module_from_a_folder(dist, system):
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("Go not installed")
    home = Path(go).resolve().parents[1]
    shutil.copytree(home, system.root / "usr/local/go", symlinks=True)
    system.install(*system.put(*packages(dist, "libkvstore0", "libkvstore-dev", "kvstore")))
    shutil.copytree(dist / "go", system.root / "tmp/proxy")
    system.put(EXAMPLES / "go" / "rounds" / "main.go", folder="tmp/consumer")
    settings = {
        "PATH": f"/usr/local/go/bin:{PATH}",
        "GOPROXY": "file:///tmp/proxy",
        "GONOSUMDB": "*",
        "GOTOOLCHAIN": "local",
    }
    [version] = (dist / "go" / MODULE / "@v" / "list").read_text().split()
    line = f"cd /tmp/consumer && go mod init consumer && go get {MODULE}@{version} && go build"
    system.run("sh", "-c", line, **settings)
    job = ("kvstore", "run", "-n", "2", "--", "/tmp/consumer/consumer", "dist_sync")
    check_rounds(system.run(*job))


@in_debian
def test_the_image_runs_the_processes_of_kubernetes(dist, debian, tmp_path):
    pytest.importorskip("yaml", reason="kubernetes-validate not installed")
    sys.path.insert(0, str(ROOT / "tests" / "k8s"))
    from manifests import container_of, pods, run_pods

    image = Image(ROOT / "Dockerfile", dist.parent, tmp_path / "image", debian)
    print(f"{image.bytes} bytes over the base")
    assert image.bytes <= MOST_IMAGE_BYTES
    for manifest in pods():
        context = manifest["spec"]["template"]["spec"]["securityContext"]
        assert context["runAsUser"] == image.user != 0

    def start(container, variables):
        command = container.get("command", image.entry_point) + container.get("args", [])
        return image.system.command(*command, user=image.user), {"PATH": PATH, **variables}

    assert container_of(pods()[-1])["args"][0] == "bench"
    said = run_pods(start)
    assert "dist_sync, 4 workers, 2 servers" in said[3]
    shutil.rmtree(image.system.root)
