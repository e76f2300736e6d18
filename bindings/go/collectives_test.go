package kvstore

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestCollectivesOfALocalStore(t *testing.T) {
	store := open(t, "local", nil)
	a, b, out := []float32{1, 5}, []float32{10, 2}, make([]float32, 2)
	values := []Tensor{Of(a), Of(b)}
	own := []Tensor{Of(a)}
	for _, it := range []struct {
		call   Collective
		wanted []float32
	}{
		{AllReduce(Sum, values, Of(out)), []float32{11, 7}},
		{AllReduce(Mean, values, Of(out)), []float32{5.5, 3.5}},
		{Reduce(Max, 0, values, Of(out)), []float32{10, 5}},
		{Reduce(Min, 0, values, Of(out)), []float32{1, 2}},
		{ReduceScatter(Sum, own, Of(out)), a},
		{BroadcastFrom(0, Of(a), Of(out)), a},
		{AllGather(Of(a), Of(out)), a},
		{Gather(0, Of(a), Of(out)), a},
		{Scatter(0, own, Of(out)), a},
		{AllToAll(own, []Tensor{Of(out)}), a},
	} {
		for _, ctx := range contexts(t) {
			clear(out)
			if err := store.Exchange(ctx, it.call); err != nil || !slices.Equal(out, it.wanted) {
				t.Fatalf("%s gives %v, %v", it.call.name, out, err)
			}
		}
		clear(out)
		ticket, err := store.ExchangeAsync(it.call)
		if err != nil {
			t.Fatal(err)
		}
		if err := ticket.Wait(context.Background()); err != nil || !slices.Equal(out, it.wanted) {
			t.Fatalf("%s gives %v, %v", it.call.name, out, err)
		}
	}
}

// contexts gives one that never ends, and one that could.
func contexts(t *testing.T) []context.Context {
	limited, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return []context.Context{context.Background(), limited}
}

func TestCollectivesRefuse(t *testing.T) {
	store := open(t, "local", nil)
	a, longer := []float32{1, 5}, make([]float32, 3)
	own := []Tensor{Of(a)}
	for _, it := range []struct {
		call   Collective
		wanted error
	}{
		{AllReduce(Sum, own, Of(longer)), ErrShapeMismatch},
		{AllReduce(Sum, own, Of([]int32{1, 2})), ErrDTypeMismatch},
		{AllReduce(Mean, []Tensor{Of([]int32{1})}), ErrUnsupported},
		{Reduce(Sum, 1, own), ErrInvalidArgument},
		{AllGather(Of(a)), ErrInvalidArgument},
	} {
		if err := store.Exchange(context.Background(), it.call); !errors.Is(err, it.wanted) {
			t.Errorf("%s gives %v", it.call.name, err)
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := store.Exchange(ended, AllReduce(Sum, own)); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context: %v", err)
	}
}

func TestGroupsOfALocalStore(t *testing.T) {
	store := open(t, "local", nil)
	for _, it := range []struct {
		name  string
		ranks []int
	}{{"", []int{0}}, {"g", nil}, {"g", []int{1}}, {"g", []int{-1}}, {"g", []int{1 << 40}}, {"a\x00b", []int{0}}} {
		if _, err := store.Group(it.name, it.ranks...); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("%q of %v gives %v", it.name, it.ranks, err)
		}
	}
	group, err := store.Group("alone", 0)
	if err != nil {
		t.Fatal(err)
	}
	rank, err := group.Rank()
	if rank != 0 || err != nil {
		t.Fatal(rank, err)
	}
	ctx, out := context.Background(), make([]float32, 2)
	for i, each := range []*Store{store, group} {
		if err := each.Init(ctx, 1, Of([]float32{float32(i), 7})); err != nil {
			t.Fatal(err)
		}
	}
	if err := group.Pull(ctx, 1, Of(out)); err != nil || !slices.Equal(out, []float32{1, 7}) {
		t.Fatal(out, err)
	}
	if err := store.Pull(ctx, 1, Of(out)); err != nil || !slices.Equal(out, []float32{0, 7}) {
		t.Fatal(out, err)
	}
	if err := group.Close(); err != nil {
		t.Fatal(err)
	}
	if err := group.Push(ctx, 1, Of(out)); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

// jobOfTwo opens the stores of two workers, whose processes serve the job, in this one.
func jobOfTwo(t *testing.T, options Config) [2]*Store {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	root := free.Addr().String()
	free.Close()
	var stores [2]*Store
	var opened sync.WaitGroup
	for rank := range stores {
		own := Config{"servers": "embedded", "root": root, "num_workers": "2", "rank": strconv.Itoa(rank)}
		maps.Copy(own, options)
		opened.Add(1)
		go func(rank int) {
			defer opened.Done()
			store, err := Open("dist_sync", own)
			if err != nil {
				t.Error(err)
				return
			}
			stores[rank] = store
			t.Cleanup(func() {
				store.Abort()
				_ = store.Close()
			})
		}(rank)
	}
	opened.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return stores
}

func TestACollectiveWhoseTimeIsOverHasFailed(t *testing.T) {
	stores := jobOfTwo(t, Config{"timeout_ms": "1500"})
	own := []float32{1, 2}
	sum := AllReduce(Sum, []Tensor{Of(own)}, Of(make([]float32, 2)))
	first := make(chan error)
	go func() {
		first <- stores[1].Exchange(context.Background(), AllReduce(Sum, []Tensor{Of(own)}))
	}()
	if err := errors.Join(stores[0].Exchange(context.Background(), sum), <-first); err != nil {
		t.Fatal(err)
	}
	for _, ctx := range contexts(t) {
		err := stores[0].Exchange(ctx, sum)
		if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "worker 1") {
			t.Fatalf("without its other worker: %v", err)
		}
	}
	ticket, err := stores[0].ExchangeAsync(sum)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-ticket.Done():
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
	if err := ticket.Wait(context.Background()); !errors.Is(err, ErrExpired) {
		t.Fatalf("an operation without its other worker: %v", err)
	}
}
