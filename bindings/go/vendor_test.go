package kvstore

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const vendoredProgram = `package main

import (
	"context"
	"fmt"

	kvstore "github.com/libkvstore/libkvstore/bindings/go"
)

func main() {
	store, err := kvstore.Open("local", nil)
	if err != nil {
		panic(err)
	}
	defer store.Close()
	out := []float32{0}
	err = store.Broadcast(context.Background(), 1, kvstore.Of([]float32{42}), kvstore.Of(out))
	fmt.Println(out[0], err)
}
`

// The package must need nothing that "go mod vendor" leaves behind.
func TestProgramWithTheVendoredPackage(t *testing.T) {
	ctx := begin(t)
	source, err := os.Getwd()
	ok(t, err)
	folder := t.TempDir()
	module := "module program\n\ngo 1.21\n\nrequire github.com/libkvstore/libkvstore/bindings/go v0.0.0\n\n" +
		"replace github.com/libkvstore/libkvstore/bindings/go => " + source + "\n"
	ok(t, os.WriteFile(filepath.Join(folder, "go.mod"), []byte(module), 0o666))
	ok(t, os.WriteFile(filepath.Join(folder, "main.go"), []byte(vendoredProgram), 0o666))
	golang(t, ctx, folder, "mod", "vendor")
	if _, err := os.Stat(filepath.Join(folder, "vendor/github.com/libkvstore/libkvstore/bindings/go/shim.h")); err != nil {
		t.Error(err)
	}
	equal(t, golang(t, ctx, folder, "run", "-mod=vendor", "."), "42 <nil>\n")
}

// golang runs the go command and returns what it prints.
func golang(t *testing.T, ctx context.Context, folder string, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(ctx, "go", arguments...)
	command.Dir = folder
	command.Env = append(os.Environ(), "GOFLAGS=", "GOPROXY=off", "GOWORK=off")
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("go %v: %v\n%s", arguments, err, output)
	}
	return string(output)
}
