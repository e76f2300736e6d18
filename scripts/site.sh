#!/usr/bin/env bash
# Makes the documentation site in build/site from docs/ and the comments of the sources.
# Usage: scripts/site.sh
#
# It loads nothing from elsewhere, and works from a folder as from a server. Sphinx refuses links between
# pages that lead nowhere; tests/site reads the pages that it has written.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

bash scripts/bootstrap.sh build go site
find_go
tools=$root/build/site-venv/bin
"$tools/python" -B scripts/site/sources.py build/site-source
"$tools/sphinx-build" --quiet --fail-on-warning --keep-going --nitpicky -E -d build/site-doctrees \
  -c scripts/site build/site-source build/site.new
# Of this crate alone: `cargo doc` puts all that it has ever made into one folder.
doc=${CARGO_TARGET_DIR:-target}/doc
rm -rf "$doc"
RUSTDOCFLAGS='-D warnings' cargo doc --quiet --no-deps --lib -p libkvstore
rm -f build/site.new/.buildinfo "$doc/.lock"
find build/site.new -type d -empty -delete
rm -rf build/site.new/api/rust
cp -r "$doc" build/site.new/api/rust
rm -rf build/site
mv build/site.new build/site
