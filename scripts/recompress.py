#!/usr/bin/env python3
"""Compresses the files of a zip archive, such as a wheel, by zopfli: 4 % smaller than by zlib.

    recompress.py ARCHIVE FOLDER

The archive in FOLDER has the same name, and the same files in the same order. Needs zopflipy.
"""

import sys
import zipfile
from pathlib import Path

import zopfli


def main():
    archive, folder = Path(sys.argv[1]), Path(sys.argv[2])
    with zipfile.ZipFile(archive) as old, zopfli.ZipFile(folder / archive.name, "w") as new:
        for entry in old.infolist():
            new.writestr(entry, old.read(entry))


if __name__ == "__main__":
    main()
