package kvstore

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// withTable opens a store whose keys are tables of three rows.
func withTable(t *testing.T, keys ...Key) *Store {
	t.Helper()
	store := open(t, "local", nil)
	table := []float32{0, 1, 10, 11, 20, 21}
	for _, key := range keys {
		ok(t, store.Init(context.Background(), key, Of(table, 3, 2)))
	}
	return store
}

func pulledTable(t *testing.T, store *Store, key Key) [6]float32 {
	t.Helper()
	var out [6]float32
	ok(t, store.Pull(context.Background(), key, Of(out[:], 3, 2)))
	return out
}

func TestRowsAreReplacedAndCopiedOut(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := withTable(t, 4)
		ids := []int64{2, 0, 2}
		rows := []float32{1, 2, 3, 4, 5, 6}
		ok(t, store.PushRows(ctx, 4, ids, Of(rows, 3, 2)))
		equal(t, pulledTable(t, store, 4), [6]float32{3, 4, 10, 11, 6, 8})
		var out [6]float32
		ok(t, store.PullRows(ctx, 4, ids, Of(out[:], 3, 2)))
		equal(t, out, [6]float32{6, 8, 3, 4, 6, 8})
		ok(t, store.PushRows(ctx, 4, nil, Of([]float32{}, 0, 2)))
	})
}

func TestRowsOfManyKeys(t *testing.T) {
	store := withTable(t, 1, 2)
	first, second := []int64{0}, []int64{0, 1}
	one, two := []float32{1, 1}, []float32{2, 2, 3, 3}
	ok(t, store.PushRowsList(context.Background(), []Rows{
		{1, Of(first), Of(one, 1, 2)}, {2, Of(second), Of(two, 2, 2)}, {1, Of(second), Of(two, 2, 2)},
	}))
	equal(t, pulledTable(t, store, 1), [6]float32{3, 3, 3, 3, 20, 21})
	equal(t, pulledTable(t, store, 2), [6]float32{2, 2, 3, 3, 20, 21})
}

func TestRowsInTheBackground(t *testing.T) {
	store := withTable(t, 1)
	ids, row := []int64{1}, []float32{7, 8}
	var out [2]float32
	push, err := store.PushRowsAsync([]Rows{{1, Of(ids), Of(row, 1, 2)}}, 0)
	ok(t, err)
	pull, err := store.PullRowsAsync([]Rows{{1, Of(ids), Of(out[:], 1, 2)}}, 3)
	ok(t, err)
	ok(t, pull.Wait(context.Background()))
	ok(t, push.Wait(context.Background()))
	equal(t, out, [2]float32{7, 8})
}

func TestRowsOutOfRangeAreNamed(t *testing.T) {
	store := withTable(t, 1)
	err := store.PullRows(context.Background(), 1, []int64{0, 3}, Of(make([]float32, 4), 2, 2))
	if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), "row id 3") {
		t.Fatal(err)
	}
}
