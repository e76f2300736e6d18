package kvstore

import (
	"context"
	"math"
	"testing"
)

func TestEveryHalfSurvivesTheRoundTrip(t *testing.T) {
	begin(t)
	for bits := 0; bits < 1<<16; bits++ {
		half, brain := Float16(bits), BFloat16(bits)
		if x := half.Float32(); x != x {
			if back := ToFloat16(x); back.Float32() == back.Float32() {
				t.Fatalf("float16 NaN %#x became %#x", bits, back)
			}
		} else if back := ToFloat16(x); back != half {
			t.Fatalf("float16 %#x became %#x", bits, back)
		}
		if x := brain.Float32(); x != x {
			if back := ToBFloat16(x); back.Float32() == back.Float32() {
				t.Fatalf("bfloat16 NaN %#x became %#x", bits, back)
			}
		} else if back := ToBFloat16(x); back != brain {
			t.Fatalf("bfloat16 %#x became %#x", bits, back)
		}
	}
}

// Between two neighbours everything below the middle goes down, everything above goes up, and the
// middle goes to the even one.
func TestHalvesRoundToNearestEven(t *testing.T) {
	begin(t)
	for bits := 0; bits < 0x7c00; bits++ {
		checkRounding(t, bits, 0x7c00, 65536, func(b int) float32 { return Float16(b).Float32() },
			func(x float32) int { return int(ToFloat16(x)) })
	}
	for bits := 0; bits < 0x7f80; bits++ {
		checkRounding(t, bits, 0x7f80, 0x1p128, func(b int) float32 { return BFloat16(b).Float32() },
			func(x float32) int { return int(ToBFloat16(x)) })
	}
}

// checkRounding looks at the numbers around the middle between `bits` and `bits + 1`; infinity
// stands where the next finite number, `end`, would be.
func checkRounding(t *testing.T, bits, infinity int, end float64, number func(int) float32,
	round func(float32) int) {
	t.Helper()
	upper := end
	if bits+1 < infinity {
		upper = float64(number(bits + 1))
	}
	middle := float32((float64(number(bits)) + upper) / 2)
	even := bits + bits&1
	for _, test := range []struct {
		x    float32
		want int
	}{
		{math.Nextafter32(middle, 0), bits},
		{middle, even},
		{math.Nextafter32(middle, math.MaxFloat32), bits + 1},
	} {
		if test.x > math.MaxFloat32 || test.x == math.MaxFloat32 && middle == test.x {
			continue
		}
		if got := round(test.x); got != test.want {
			t.Fatalf("%g became %#x, want %#x", test.x, got, test.want)
		}
		if got := round(-test.x); got&0x7fff != test.want {
			t.Fatalf("%g became %#x, want %#x and a sign", -test.x, got, test.want)
		}
	}
}

func TestHalvesAgreeWithTheLibrary(t *testing.T) {
	begin(t)
	ctx := context.Background()
	store := open(t, "local", nil)
	const size = 1 << 16
	halves, brains := make([]Float16, size), make([]BFloat16, size)
	numbers, expected := make([]float32, size), make([]float32, size)
	random := uint32(1)
	for i := range halves {
		halves[i], brains[i] = Float16(i), BFloat16(i)
		random = random*1664525 + 1013904223
		numbers[i] = math.Float32frombits(random)
	}
	ok(t, store.InitList(ctx, []Pair{{1, Of(halves)}, {2, Of(brains)}}))

	ok(t, store.Pull(ctx, 1, Of(expected)))
	for i := range expected {
		same(t, halves[i].Float32(), expected[i])
	}
	ok(t, store.Pull(ctx, 2, Of(expected)))
	for i := range expected {
		same(t, brains[i].Float32(), expected[i])
	}

	ok(t, store.PushList(ctx, []Pair{{1, Of(numbers)}, {2, Of(numbers)}}))
	ok(t, store.PullList(ctx, []Pair{{1, Of(halves)}, {2, Of(brains)}}))
	for i, x := range numbers {
		same(t, ToFloat16(x).Float32(), halves[i].Float32())
		same(t, ToBFloat16(x).Float32(), brains[i].Float32())
	}
}

// same takes any NaN for any other.
func same(t *testing.T, got, want float32) {
	t.Helper()
	if got != want && (got == got || want == want) {
		t.Fatalf("got %g, want %g", got, want)
	}
}
