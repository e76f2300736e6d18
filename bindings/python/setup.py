"""Puts the C library into the wheel, and names the wheel after the systems that can load it.

The library is $KVSTORE_PREFIX/lib/libkvstore.so.0, or else the one in build/stage of the project.
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
HERE = Path(__file__).resolve().parent


def library() -> Path:
    prefix = os.environ.get("KVSTORE_PREFIX") or HERE.parents[1] / "build" / "stage"
    path = Path(prefix) / "lib" / SONAME
    if not path.exists():
        raise SystemExit(f"{path} is missing: run `make stage`, or set KVSTORE_PREFIX")
    return path


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # type: ignore[attr-defined]
            return
        folder = Path(self.build_lib) / "kvstore" / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library(), folder / SONAME)


class WheelForAnyPython(bdist_wheel):
    """The library depends on the system, and on no version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        minors = re.findall(rb"GLIBC_2\.(\d+)", library().read_bytes())
        glibc = max(int(minor) for minor in minors)
        return "py3", "none", f"manylinux_2_{glibc}_{platform.machine()}"


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelForAnyPython},
    distclass=BinaryDistribution,
)
