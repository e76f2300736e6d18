#!/usr/bin/env bash
# Builds and runs a Go program, in a module of its own, through pkg-config. Usage: go.sh PREFIX
set -euo pipefail
. "$(dirname "$0")/common.sh"

package=$(cd "$here/../../bindings/go" && pwd)
module=$(sed -n 's/^module //p' "$package/go.mod")
cp "$here/go/main.go" "$work"
cd "$work"
go mod init consumer
go mod edit -require "$module@v0.0.0" -replace "$module=$package"

PKG_CONFIG_PATH=$prefix/lib/pkgconfig go build -o consumer .
expect_kind shared consumer
LD_LIBRARY_PATH=$prefix/lib expect_output ./consumer
