"""The crates as they are published: each builds from its own files alone, and so does a program of a user's."""

import os
import shutil
import time

import pytest
from artefacts import ROOT, VERSION, run

CRATES = ("libkvstore-checksum", "libkvstore-protocol", "libkvstore", "libkvstore-cli")

PROGRAM = """
use kvstore::{Config, Store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Store::open("dist_sync", &Config::new())?;
    let rank = store.rank();
    let mut value = [1.0f32, 2.0];
    store.init(7u64, &value)?;
    store.push(7u64, &[rank as f32 + 1.0; 2])?;
    store.pull(7u64, &mut value)?;
    println!("rank {rank}: {value:?}");
    store.close(std::time::Duration::from_secs(30))?;
    Ok(())
}
"""


def cargo(*arguments, cwd):
    # Neither the network, nor the settings of the tree.
    environment = {"CARGO_NET_OFFLINE": "true", **os.environ}
    for name in ("CARGO_TARGET_DIR", "RUSTFLAGS"):
        environment.pop(name, None)
    run("cargo", *arguments, cwd=cwd, env=environment)


@pytest.fixture(scope="module")
def consumer(tmp_path_factory):
    """A workspace of the four crates, unpacked, and of a program that takes one by its name."""
    names = [f"-p{name}" for name in CRATES]
    cargo("package", "--quiet", "--no-verify", "--allow-dirty", *names, cwd=ROOT)
    folder = tmp_path_factory.mktemp("consumer")
    patches = []
    for name in CRATES:
        package = f"{name}-{VERSION}"
        # As new files: cargo compares dates, and those of packages are all the same.
        archive = ROOT / "target" / "package" / f"{package}.crate"
        run("tar", "--extract", "--touch", "--file", archive, cwd=folder)
        patches.append(f'{name} = {{ path = "{package}" }}')
    (folder / "Cargo.toml").write_text(
        "[workspace]\nresolver = '3'\nmembers = ['program', 'libkvstore*']\n"
        "[profile.dev]\ndebug = false\n"
        "[patch.crates-io]\n" + "\n".join(patches) + "\n"
    )
    # The versions of the crates that are here.
    shutil.copy(ROOT / "Cargo.lock", folder)
    (folder / "program" / "src").mkdir(parents=True)
    (folder / "program" / "src" / "main.rs").write_text(PROGRAM)
    (folder / "program" / "Cargo.toml").write_text(
        "[package]\nname = 'program'\nversion = '1.0.0'\nedition = '2024'\n"
    )
    cargo("add", "--quiet", "--package", "program", "libkvstore", cwd=folder)
    return folder


def test_a_program_that_adds_the_crate_runs_as_a_job(consumer):
    start = time.monotonic()
    # What the crates need is compiled once for all runs of this test.
    target = ROOT / "target" / "crates"
    cargo("build", "--quiet", "--workspace", "--target-dir", target, cwd=consumer)
    built = target / "debug"
    said = run(built / "kvstore", "run", "-n", "2", "--", built / "program", cwd=consumer)
    lines = sorted(line.split("| ")[-1] for line in said.splitlines())
    assert lines == ["rank 0: [3.0, 3.0]", "rank 1: [3.0, 3.0]"]
    print(f"built and run in {time.monotonic() - start:.0f} s")
