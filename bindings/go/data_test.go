package kvstore

import (
	"context"
	"fmt"
	"math"
	"math/rand"
	"strings"
	"testing"
)

// number turns test input into an element; add is the sum of two in the arithmetic of their sums,
// and round brings such a sum back.
type arithmetic[T Element, S any] struct {
	number func(random *rand.Rand) T
	widen  func(T) S
	add    func(S, S) S
	round  func(S) T
}

func floats(random *rand.Rand) float64 {
	return (random.Float64() - 0.5) * math.Ldexp(1, random.Intn(20)-10)
}

type number interface {
	int8 | uint8 | int16 | uint16 | int32 | uint32 | int64 | uint64 | float32 | float64
}

func own[T number](number func(*rand.Rand) T) arithmetic[T, T] {
	same := func(x T) T { return x }
	return arithmetic[T, T]{number, same, func(a, b T) T { return a + b }, same}
}

func TestSumsEqualPlainLoops(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		sums(t, ctx, own(func(r *rand.Rand) int8 { return int8(r.Int()) }))
		sums(t, ctx, own(func(r *rand.Rand) uint8 { return uint8(r.Int()) }))
		sums(t, ctx, own(func(r *rand.Rand) int16 { return int16(r.Uint64()) }))
		sums(t, ctx, own(func(r *rand.Rand) uint16 { return uint16(r.Uint64()) }))
		sums(t, ctx, own(func(r *rand.Rand) uint32 { return uint32(r.Uint64()) }))
		sums(t, ctx, own(func(r *rand.Rand) uint64 { return r.Uint64() }))
		sums(t, ctx, own(func(r *rand.Rand) int32 { return int32(r.Uint64()) }))
		sums(t, ctx, own(func(r *rand.Rand) int64 { return int64(r.Uint64()) }))
		sums(t, ctx, own(func(r *rand.Rand) float32 { return float32(floats(r)) }))
		sums(t, ctx, own(floats))
		add := func(a, b float32) float32 { return a + b }
		sums(t, ctx, arithmetic[Float16, float32]{
			func(r *rand.Rand) Float16 { return ToFloat16(float32(floats(r))) },
			Float16.Float32, add, ToFloat16})
		sums(t, ctx, arithmetic[BFloat16, float32]{
			func(r *rand.Rand) BFloat16 { return ToBFloat16(float32(floats(r))) },
			BFloat16.Float32, add, ToBFloat16})
	})
}

func sums[T Element, S any](t *testing.T, ctx context.Context, a arithmetic[T, S]) {
	for _, storeType := range []string{"local", "device"} {
		t.Run(fmt.Sprint(DTypeOf[T](), " ", storeType), func(t *testing.T) {
			store := open(t, storeType, nil)
			random := rand.New(rand.NewSource(7))
			for key, size := range []int{0, 1, 2, 7, 8, 31, 64, 100, 1000, 4099} {
				ok(t, store.Init(ctx, Key(key), Of(make([]T, size))))
				for devices := 1; devices <= 5; devices++ {
					values := make([][]T, devices)
					for i := range values {
						values[i] = make([]T, size)
						for j := range values[i] {
							values[i][j] = a.number(random)
						}
					}
					checkSum(t, ctx, store, Key(key), values, a)
				}
			}
		})
	}
}

func checkSum[T Element, S any](t *testing.T, ctx context.Context, store *Store, key Key,
	values [][]T, a arithmetic[T, S]) {
	t.Helper()
	size := len(values[0])
	tensors := make([]Tensor, len(values))
	want := make([]T, size)
	for i := range values {
		tensors[i] = Of(values[i]).On(Device{CPU, int32(i)})
	}
	for j := range want {
		sum := a.widen(values[0][j])
		for _, value := range values[1:] {
			sum = a.add(sum, a.widen(value[j]))
		}
		want[j] = a.round(sum)
	}
	ok(t, store.Push(ctx, key, tensors...))
	got := make([]T, size)
	ok(t, store.Pull(ctx, key, Of(got)))
	equals(t, got, want)
}

func TestShapesOfEveryRank(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "local", nil)
		value, out := 3.5, 0.0
		ok(t, store.Init(ctx, 1, Scalar(&value)))
		ok(t, store.Push(ctx, 1, Scalar(&value), Scalar(&value)))
		ok(t, store.Pull(ctx, 1, Scalar(&out)))
		equal(t, out, 7)
		for key, shape := range [][]int{{0}, {1}, {3, 0, 2}, {2, 3, 4}, {1, 1, 2, 1, 3, 1, 1, 1, 2}} {
			key, size := Key(key+10), 1
			for _, extent := range shape {
				size *= extent
			}
			ok(t, store.Init(ctx, key, Of(make([]int64, size), shape...)))
			ok(t, store.Push(ctx, key, Of(filled(size, int64(5)), shape...)))
			got := make([]int64, size)
			ok(t, store.Pull(ctx, key, Of(got, shape...)))
			equals(t, got, filled(size, int64(5)))
		}
	})
}

func TestStridedViews(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "local", nil)
		source := []float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
		transposed := Strided(source, 0, []int{3, 2}, []int{1, 3})
		backwards := Strided(source, 11, []int{3, 2}, []int{-4, -1})
		same := Strided(source, 2, []int{3, 2}, []int{0, 0})
		ok(t, store.Init(ctx, 1, transposed))
		out := make([]float32, 6)
		ok(t, store.Pull(ctx, 1, Of(out, 3, 2)))
		equals(t, out, []float32{0, 3, 1, 4, 2, 5})
		ok(t, store.Push(ctx, 1, backwards, same))
		ok(t, store.Pull(ctx, 1, Of(out, 3, 2)))
		equals(t, out, []float32{13, 12, 9, 8, 5, 4})

		target := filled(12, float32(-1))
		ok(t, store.Pull(ctx, 1, Strided(target, 10, []int{3, 2}, []int{-4, 1})))
		equals(t, target, []float32{-1, -1, 5, 4, -1, -1, 9, 8, -1, -1, 13, 12})
		fails(t, store.Pull(ctx, 1, Strided(target, 0, []int{3, 2}, []int{0, 1})), ErrOverlap)
	})
}

func TestFloatsAreConverted(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "local", nil)
		ok(t, store.Init(ctx, 1, Of(make([]float32, 2))))
		ok(t, store.Push(ctx, 1, Of([]float64{0.1, 1e300})))
		single, double := make([]float32, 2), make([]float64, 2)
		half, brain := make([]Float16, 2), make([]BFloat16, 2)
		ok(t, store.Pull(ctx, 1, Of(single), Of(double), Of(half), Of(brain)))
		infinity := float32(math.Inf(1))
		equals(t, single, []float32{0.1, infinity})
		equals(t, double, []float64{float64(float32(0.1)), math.Inf(1)})
		equals(t, half, []Float16{ToFloat16(0.1), ToFloat16(infinity)})
		equals(t, brain, []BFloat16{ToBFloat16(0.1), ToBFloat16(infinity)})
	})
}

func TestListsOfKeysAndDevices(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "device", nil)
		ones, fours := Of(filled(6, float32(1)), 2, 3), Of(filled(6, float32(4)), 2, 3)
		keys := []Key{5, 7, 9}
		var values, lists, outs []Pair
		for _, key := range keys {
			values = append(values, Pair{key, ones})
			lists = append(lists, Pairs(key, fours, fours, fours, fours)...)
		}
		ok(t, store.InitList(ctx, values))
		// Equal keys need not be neighbours.
		lists[0], lists[5], lists[11] = lists[5], lists[11], lists[0]
		ok(t, store.PushList(ctx, lists))
		got := make([][]float32, 3)
		for i := range got {
			got[i] = make([]float32, 6)
			outs = append(outs, Pair{keys[i], Of(got[i], 2, 3)})
		}
		ok(t, store.PullList(ctx, outs))
		for i := range got {
			equals(t, got[i], filled(6, float32(16)))
		}
		ok(t, store.InitList(ctx, nil))
		ok(t, store.PushList(ctx, nil))
		ok(t, store.Pull(ctx, 5))
		ok(t, store.Remove(ctx))
	})
}

func TestOneTensorMayBeTheOutOfSeveralKeys(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "local", nil)
		ok(t, store.InitList(ctx, []Pair{
			{1, Of([]int32{1, 1})}, {2, Of([]int32{2, 2})}, {3, Of([]int32{3, 3})}}))
		shared := make([]int32, 2)
		out := Of(shared)
		ok(t, store.PullList(ctx, []Pair{{3, out}, {1, out}, {2, out}}))
		equals(t, shared, []int32{3, 3})
	})
}

func TestPushPullAndBroadcast(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "local", nil)
		a, b, c := []float32{1, 2}, []float32{10, 20}, []float32{0, 0}
		ok(t, store.Broadcast(ctx, 1, Of(a), Of(b), Of(c)))
		equals(t, b, a)
		equals(t, c, a)
		ok(t, store.PushPull(ctx, 1, []Tensor{Of(a), Of(b)}, []Tensor{Of(a), Of(c)}))
		equals(t, a, []float32{2, 4})
		equals(t, b, []float32{1, 2})
		equals(t, c, []float32{2, 4})
		ok(t, store.BroadcastList(ctx, Pairs(2, Of([]float32{7, 7})), []Pair{{1, Of(b)}, {2, Of(c)}}))
		equals(t, b, []float32{2, 4})
		equals(t, c, []float32{7, 7})
		ok(t, store.PushPullList(ctx, []Pair{{2, Of(b)}, {2, Of(b)}}, []Pair{{1, Of(a)}, {2, Of(c)}}))
		equals(t, a, []float32{2, 4})
		equals(t, c, []float32{4, 8})
	})
}

func TestRemovedKeysMayBeMadeAnew(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "local", nil)
		ok(t, store.Init(ctx, 1, Of([]float32{1, 2})))
		ok(t, store.Init(ctx, 2, Of([]float32{1, 2})))
		ok(t, store.Remove(ctx, 1))
		fails(t, store.Pull(ctx, 1, Of(make([]float32, 2))), ErrKeyNotFound)
		fails(t, store.Remove(ctx, 2, 1), ErrKeyNotFound)
		fails(t, store.Remove(ctx, 2, 2), ErrKeyNotFound)
		ok(t, store.Init(ctx, 1, Of([]int8{7}, 1, 1)))
		keys, err := store.Keys()
		ok(t, err)
		equals(t, keys, []Key{1, 2})
	})
}

func TestPushedMemoryIsNotChangedOrKept(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "local", nil)
		ok(t, store.Init(ctx, 1, Of(make([]float64, 100))))
		ok(t, store.SetUpdater(func(_ Key, input, stored Tensor) error {
			copy(Slice[float64](stored), Slice[float64](input))
			return nil
		}))
		value := filled(100, 3.0)
		ok(t, store.Push(ctx, 1, Of(value)))
		equals(t, value, filled(100, 3.0))
		for i := range value {
			value[i] = 5
		}
		out := make([]float64, 100)
		ok(t, store.Pull(ctx, 1, Of(out)))
		equals(t, out, filled(100, 3.0))
	})
}

func TestEveryMistakeHasItsStatusAndChangesNothing(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := open(t, "local", nil)
		six := func() Tensor { return Of(filled(6, float32(9)), 2, 3) }
		name, err := store.Intern("weight")
		ok(t, err)
		ok(t, store.Init(ctx, 1, Of(filled(6, float32(1)), 2, 3)))
		ok(t, store.Init(ctx, name, Of(filled(6, float32(1)), 2, 3)))
		overlapping := make([]float32, 9)
		for what, test := range map[string]struct {
			err  error
			want Status
			text string
		}{
			"push to no key": {store.PushList(ctx, []Pair{{1, six()}, {2, six()}}), ErrKeyNotFound, "2"},
			"pull of no key": {store.Pull(ctx, 2, six()), ErrKeyNotFound, "2"},
			"no such name":   {store.Init(ctx, nameBit|5, six()), ErrKeyNotFound, ""},
			"second init":    {store.InitList(ctx, []Pair{{2, six()}, {1, six()}}), ErrKeyExists, "1"},
			"double init":    {store.InitList(ctx, []Pair{{3, six()}, {3, six()}}), ErrKeyExists, "3"},
			"push of a shape": {store.Push(ctx, 1, six(), Of(make([]float32, 6), 3, 2)),
				ErrShapeMismatch, "[3,2]"},
			"pull of a shape": {store.Pull(ctx, name, Of(make([]float32, 5))), ErrShapeMismatch, "weight"},
			"push of a dtype": {store.Push(ctx, 1, Of(make([]int32, 6), 2, 3)), ErrDTypeMismatch, "int32"},
			"pull of a dtype": {store.Pull(ctx, 1, Of(make([]int8, 6), 2, 3)), ErrDTypeMismatch, "int8"},
			"outs that overlap": {store.Pull(ctx, 1, Of(overlapping[:6], 2, 3), Of(overlapping[3:], 2, 3)),
				ErrOverlap, ""},
			"out on a value": {store.PushPull(ctx, 1, []Tensor{Of(overlapping[:6], 2, 3)},
				[]Tensor{Of(overlapping[3:], 2, 3)}), ErrOverlap, ""},
			"ROCm":              {store.Push(ctx, 1, six().On(Device{10, 0})), ErrUnsupported, ""},
			"no such place":     {store.Push(ctx, 1, six().On(Device{77, 0})), 0, ""},
			"tensor of nothing": {store.Push(ctx, 1, Tensor{}), ErrInvalidArgument, ""},
			"slice too short":   {store.Push(ctx, 1, Of(make([]float32, 5), 2, 3)), ErrInvalidArgument, "[2 3]"},
			"out too short":     {store.Pull(ctx, 1, Of(make([]float32, 5), 2, 3)), ErrInvalidArgument, "key 1"},
		} {
			switch {
			case test.err == nil:
				t.Errorf("%s: no error", what)
			case test.want != 0:
				fails(t, test.err, test.want)
			}
			if test.err != nil && !strings.Contains(test.err.Error(), test.text) {
				t.Errorf("%s: %v does not say %q", what, test.err, test.text)
			}
		}
		for _, key := range []Key{1, name} {
			out := make([]float32, 6)
			ok(t, store.Pull(ctx, key, Of(out, 2, 3)))
			equals(t, out, filled(6, float32(1)))
		}
	})
}

// The memory of a slice from an updater, or of C, is not the garbage collector's.
func TestMemoryThatIsNotGoMemory(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store, mirror := open(t, "local", nil), open(t, "local", nil)
		ok(t, store.Init(ctx, 1, Of(make([]float32, 50))))
		ok(t, mirror.Init(ctx, 1, Of(make([]float32, 50))))
		ok(t, store.SetUpdater(func(key Key, input, stored Tensor) error {
			if err := addTo(key, input, stored); err != nil {
				return err
			}
			return mirror.Push(ctx, key, stored)
		}))
		for i := 0; i < 3; i++ {
			ok(t, store.Push(ctx, 1, Of(filled(50, float32(2))), Of(filled(50, float32(1)))))
		}
		out := make([]float32, 50)
		ok(t, mirror.Pull(ctx, 1, Of(out)))
		equals(t, out, filled(50, float32(9)))
	})
}

func TestNothingHappensWhenTheContextIsOver(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	one := Of([]float32{1})
	ok(t, store.Init(ctx, 1, one))
	over, stop := context.WithCancel(ctx)
	stop()
	two := Of([]float32{2})
	for _, err := range []error{
		store.Init(over, 2, two), store.Push(over, 1, two), store.Pull(over, 1, two),
		store.PushPull(over, 1, []Tensor{two}, nil), store.Broadcast(over, 2, two),
		store.Remove(over, 1), store.Barrier(over), store.WaitAll(over), store.Shutdown(over),
	} {
		fails(t, err, context.Canceled)
	}
	keys, err := store.Keys()
	ok(t, err)
	equals(t, keys, []Key{1})
	out := []float32{0}
	ok(t, store.Pull(ctx, 1, Of(out)))
	equal(t, out[0], 1)
}
