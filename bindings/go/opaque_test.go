package kvstore

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"
)

func TestOpaqueValuesAreReplacedAndNotAdded(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		opaque(t, ctx, Bool, "bool", []bool{true, false, true}, []bool{false, false, true})
		opaque(t, ctx, C64, "complex64", []complex64{1 + 2i, -3i}, []complex64{5, 7i})
		opaque(t, ctx, C128, "complex128", []complex128{1 + 2i, -3i}, []complex128{5, 7i})
		opaque(t, ctx, F8E4M3FN, "float8_e4m3fn", []Float8E4M3FN{1, 255}, []Float8E4M3FN{127, 0})
		opaque(t, ctx, F8E4M3FNUZ, "float8_e4m3fnuz", []Float8E4M3FNUZ{1, 255}, []Float8E4M3FNUZ{127, 0})
		opaque(t, ctx, F8E5M2, "float8_e5m2", []Float8E5M2{1, 255}, []Float8E5M2{127, 0})
		opaque(t, ctx, F8E5M2FNUZ, "float8_e5m2fnuz", []Float8E5M2FNUZ{1, 255}, []Float8E5M2FNUZ{127, 0})
		opaque(t, ctx, F8E8M0FNU, "float8_e8m0fnu", []Float8E8M0FNU{1, 255}, []Float8E8M0FNU{127, 0})
	})
}

func opaque[T interface {
	Element
	comparable
}](t *testing.T, ctx context.Context, dtype DType, name string, first, second []T) {
	t.Helper()
	equal(t, DTypeOf[T](), dtype)
	equal(t, dtype.String(), name)
	equal(t, dtype.size(), int(unsafe.Sizeof(first[0])))
	store := open(t, "local", nil)
	ok(t, store.Init(ctx, 1, Of(first)))
	ok(t, store.Push(ctx, 1, Of(second)))
	out := make([]T, len(first))
	ok(t, store.Pull(ctx, 1, Of(out)))
	equals(t, out, second)
	err := store.Push(ctx, 1, Of(first), Of(first))
	fails(t, err, ErrUnsupported)
	if text := err.Error(); !strings.Contains(text, name) || !strings.Contains(text, "push one") {
		t.Errorf("the error is %q", text)
	}
	path := filepath.Join(t.TempDir(), "opaque")
	ok(t, store.Save(ctx, path))
	ok(t, store.Push(ctx, 1, Of(first)))
	ok(t, store.Load(ctx, path))
	ok(t, store.Pull(ctx, 1, Of(out)))
	equals(t, out, second)
}
