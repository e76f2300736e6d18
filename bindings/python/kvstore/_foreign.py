"""Another project has the name `kvstore` on the package index, and its files in the same folder."""

from __future__ import annotations

import os
import warnings
from pathlib import Path


def warn_of_foreign(package: Path) -> None:
    """Warns where a distribution `kvstore` that is not this one is installed beside `package`."""
    try:
        names = [entry.name for entry in os.scandir(package.parent)]
    except OSError:
        return
    is_of_it = (
        name.startswith("kvstore-") and name.endswith((".dist-info", ".egg-info"))
        for name in names
    )
    if any(is_of_it):
        warnings.warn(
            f"the package kvstore of another project is installed in {package.parent}, and its "
            "files and those of libkvstore overwrite each other: run `pip uninstall kvstore`, then "
            "`pip install --force-reinstall --no-deps libkvstore`",
            stacklevel=3,
        )
