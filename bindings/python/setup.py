"""Puts the C library and the program into the wheel, named after the systems that load them.

They are $KVSTORE_PREFIX/lib/libkvstore.so.0 and $KVSTORE_PREFIX/bin/kvstore, or else those in
build/stage of the project.
The extension, the native half of the package, lies beside the package's sources. `make python`
builds both.
"""

import os
import platform
import re
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SONAME = "libkvstore.so.0"
EXTENSION = "_native.abi3.so"
HERE = Path(__file__).resolve().parent


def built(path: Path) -> Path:
    if not path.exists():
        raise SystemExit(f"{path} is missing: run `make python`, or set KVSTORE_PREFIX")
    return path


def prefix() -> Path:
    return Path(os.environ.get("KVSTORE_PREFIX") or HERE.parents[1] / "build" / "stage")


def library() -> Path:
    return built(prefix() / "lib" / SONAME)


def program() -> Path:
    return built(prefix() / "bin" / "kvstore")


def extension() -> Path:
    return built(HERE / "kvstore" / EXTENSION)


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # type: ignore[attr-defined]
            return
        package = Path(self.build_lib) / "kvstore"
        shutil.copyfile(extension(), package / EXTENSION)
        (package / "lib").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library(), package / "lib" / SONAME)
        (package / "bin").mkdir(parents=True, exist_ok=True)
        # With its permissions: an installer makes executable what is so in the wheel.
        shutil.copy(program(), package / "bin" / "kvstore")


class WheelOfTheStableAbi(bdist_wheel):
    """One wheel for a system: the extension keeps to the stable ABI of Python 3.9."""

    def get_tag(self) -> tuple[str, str, str]:
        files = (library(), extension(), program())
        code = b"".join(file.read_bytes() for file in files)
        # The least that any tag of manylinux names for a wheel of Python 3.9 is 17.
        glibc = max(17, *(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", code)))
        return "cp39", "abi3", f"manylinux_2_{glibc}_{platform.machine()}"


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelOfTheStableAbi},
    distclass=BinaryDistribution,
)
