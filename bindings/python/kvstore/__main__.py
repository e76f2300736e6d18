"""The program `kvstore`, which comes with this package.

`kvstore run -n 4 -- python train.py`, or `python -m kvstore run -n 4 -- python train.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("bin") / "kvstore"


def program() -> Path:
    """The program of this package; in a source tree that of KVSTORE_PROGRAM."""
    chosen = Path(os.environ.get("KVSTORE_PROGRAM") or PROGRAM)
    if os.access(chosen, os.X_OK) and chosen.is_file():
        return chosen
    sys.exit(
        f"kvstore: the program {chosen} is missing or cannot be executed; install the package "
        "libkvstore again, or set KVSTORE_PROGRAM to the path of the program"
    )


def main() -> None:
    """Becomes the program: its signals, output and exit status are the caller's."""
    path = str(program())
    try:
        os.execv(path, ["kvstore", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"kvstore: {path} cannot be executed: {error.strerror}")


if __name__ == "__main__":
    main()
