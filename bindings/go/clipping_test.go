package kvstore

import (
	"context"
	"math"
	"testing"
)

func TestGradientsAreClippedByTheNormOfAllKeys(t *testing.T) {
	begin(t)
	ctx := context.Background()
	store := open(t, "local", nil)
	pairs := func(one, two float64) []Pair {
		return []Pair{{1, Of([]float64{one})}, {2, Of([]float64{two})}}
	}
	push := func(one, two float64) error { return store.PushList(ctx, pairs(one, two)) }
	out := make([]float64, 1)
	ok(t, store.InitList(ctx, pairs(0, 0)))
	ok(t, store.SetOptimizer("test", nil))
	norm, skips, err := store.LastNorm()
	ok(t, err)
	equal(t, math.IsNaN(norm), true)
	equal(t, skips, 0)
	ok(t, store.SetClipping(2.5, 0))
	ok(t, push(3, 4))
	norm, _, err = store.LastNorm()
	ok(t, err)
	equal(t, norm, 5)
	factor := 2.5 / (5 + 1e-6)
	ok(t, store.Pull(ctx, 2, Of(out)))
	equal(t, out[0], factor*4)
	ok(t, push(math.Inf(1), 4))
	norm, skips, err = store.LastNorm()
	ok(t, err)
	equal(t, math.IsInf(norm, 1), true)
	equal(t, skips, 1)
	ok(t, store.SetClipping(2.5, ClipFail))
	fails(t, push(3, math.NaN()), ErrInvalidArgument)
	ok(t, store.Pull(ctx, 2, Of(out)))
	equal(t, out[0], factor*4)
	fails(t, store.SetClipping(-1, 0), ErrInvalidArgument)
	fails(t, store.SetClipping(1, 2), ErrInvalidArgument)
}
