"""Puts the C library into the wheel, and names the wheel after the systems that can load it.

The library is $KVSTORE_PREFIX/lib/libkvstore.so.0, or else the one in build/stage of the project.
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


def library() -> Path:
    prefix = os.environ.get("KVSTORE_PREFIX") or HERE.parents[1] / "build" / "stage"
    return built(Path(prefix) / "lib" / SONAME)


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


class WheelOfTheStableAbi(bdist_wheel):
    """One wheel for a system: the extension keeps to the stable ABI of Python 3.9."""

    def get_tag(self) -> tuple[str, str, str]:
        code = library().read_bytes() + extension().read_bytes()
        glibc = max(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", code))
        return "cp39", "abi3", f"manylinux_2_{glibc}_{platform.machine()}"


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelOfTheStableAbi},
    distclass=BinaryDistribution,
)
