package kvstore

import (
	"context"
	"math"
	"testing"
)

func TestPushesAreTakenBack(t *testing.T) {
	begin(t)
	ctx := context.Background()
	store := open(t, "local", nil)
	push := func(key Key, gradient float64) { ok(t, store.Push(ctx, key, Of([]float64{gradient}))) }
	is := func(key Key, wanted float64) {
		out := make([]float64, 1)
		ok(t, store.Pull(ctx, key, Of(out)))
		equal(t, out[0], wanted)
	}
	ok(t, store.InitList(ctx, []Pair{{1, Of([]float64{1})}, {2, Of([]float64{2})}}))
	ok(t, store.SetOptimizer("test", nil))
	fails(t, store.Rollback(), ErrInvalidArgument)
	ok(t, store.Begin())
	fails(t, store.Begin(), ErrInvalidArgument)
	fails(t, store.SetOptimizer("sgd", nil), ErrInvalidArgument)
	push(1, 5)
	is(1, 6)
	ok(t, store.Rollback())
	is(1, 1)
	ok(t, store.SetClipping(5.5, 0))
	for _, it := range []struct {
		gradient float64
		outcome  CommitOutcome
	}{{4, CommitKept}, {5, CommitExceeded}, {math.NaN(), CommitSkipped}} {
		ok(t, store.Begin())
		push(2, it.gradient)
		push(1, 3)
		outcome, err := store.Commit()
		ok(t, err)
		equal(t, outcome, it.outcome)
		is(1, 4)
		is(2, 6)
	}
}
