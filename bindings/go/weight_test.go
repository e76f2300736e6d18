package kvstore

import (
	"context"
	"math"
	"testing"
)

func TestWeightsMakeMeans(t *testing.T) {
	begin(t)
	ctx := context.Background()
	store := open(t, "local", nil)
	out := make([]float32, 2)
	ok(t, store.Init(ctx, 1, Of(make([]float32, 2))))
	ok(t, store.SetWeight(4))
	ok(t, store.Push(ctx, 1, Of([]float32{2, 6})))
	ok(t, store.Pull(ctx, 1, Of(out)))
	equal(t, out[0], 0.5)
	equal(t, out[1], 1.5)
	round, err := store.LastRound(ctx, 1)
	ok(t, err)
	equal(t, round, Round{Number: 1, Contributors: 1, TotalWeight: 4})
	fails(t, store.SetWeight(math.NaN()), ErrInvalidArgument)
	ok(t, store.ClearWeight())
	ok(t, store.Push(ctx, 1, Of([]float32{2, 6})))
	ok(t, store.Pull(ctx, 1, Of(out)))
	equal(t, out[1], 6)
	_, err = store.LastRound(ctx, 404)
	fails(t, err, ErrKeyNotFound)
}
