package kvstore

import (
	"context"
	"math"
	"strings"
	"testing"
)

// twoBit is the arithmetic of 2bit, as docs/use/compression.md has it.
func twoBit(value, threshold float32, residual *float32) float32 {
	*residual += value
	switch {
	case *residual >= threshold:
		*residual -= threshold
		return threshold
	case *residual <= -threshold:
		*residual += threshold
		return -threshold
	}
	return 0
}

// zeros opens a store whose key 0 is zeros.
func zeros(t *testing.T, count int) *Store {
	t.Helper()
	store := open(t, "local", nil)
	ok(t, store.Init(context.Background(), 0, Of(make([]float32, count))))
	return store
}

func TestCompressionSendsEachValueWithItsResidual(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		const count, threshold = 50, 0.75
		store := zeros(t, count)
		ok(t, store.SetCompression("2Bit", Params{"threshold": threshold}))
		values, residuals := [2][]float32{}, [2][]float32{}
		for device := range values {
			values[device] = make([]float32, count)
			residuals[device] = make([]float32, count)
		}
		out := make([]float32, count)
		for round := 0; round < 10; round++ {
			for device, value := range values {
				for i := range value {
					value[i] = float32((i*37+round*53+device*11)%101)/25 - 2
				}
			}
			ok(t, store.Push(ctx, 0, Of(values[0]), Of(values[1])))
			ok(t, store.Pull(ctx, 0, Of(out)))
			for i := range out {
				sum := twoBit(values[0][i], threshold, &residuals[0][i])
				sum += twoBit(values[1][i], threshold, &residuals[1][i])
				equal(t, out[i], sum)
			}
		}
	})
}

func TestEveryCodecIsKnownAndNoneEndsIt(t *testing.T) {
	ctx := begin(t)
	for _, name := range []string{"1bit", "2bit", "fp16", "bf16", "int8", "topk", "randomk"} {
		store := zeros(t, 300)
		value, out := make([]float32, 300), make([]float32, 300)
		for i := range value {
			value[i] = float32(math.Sin(float64(i)))
		}
		arrives := func() int {
			ok(t, store.Push(ctx, 0, Of(value)))
			ok(t, store.Pull(ctx, 0, Of(out)))
			same := 0
			for i := range out {
				if out[i] == value[i] {
					same++
				}
			}
			return same
		}
		ok(t, store.SetCompression(name, nil))
		if same := arrives(); same == len(value) {
			t.Errorf("%s changes nothing", name)
		}
		ok(t, store.SetCompression("none", nil))
		equal(t, arrives(), len(value))
	}
}

func TestWrongCodecsAreRefused(t *testing.T) {
	ctx := begin(t)
	store := zeros(t, 1)
	ok(t, store.SetCompression("2bit", Params{"threshold": 2}))
	for _, test := range []struct {
		err  error
		want Status
		text string
	}{
		{store.SetCompression("2bits", nil), ErrOption, "did you mean"},
		{store.SetCompression("2bit", Params{"treshold": 1}), ErrOption, "threshold"},
		{store.SetCompression("2bit", Params{"threshold": 0}), ErrOption, "above 0"},
		{store.SetCompression("topk", Params{"ratio": math.NaN()}), ErrOption, "NaN"},
		{store.SetCompression("2bit\x00", nil), ErrInvalidArgument, "zero byte"},
		{store.SetCompression("2bit", Params{"\x00": 1}), ErrInvalidArgument, "zero byte"},
	} {
		fails(t, test.err, test.want)
		if !strings.Contains(test.err.Error(), test.text) {
			t.Errorf("%v does not say %q", test.err, test.text)
		}
	}
	stats, err := store.Stats()
	ok(t, err)
	equal(t, stats.Compression+" "+stats.CompressionParams, "2bit threshold=2")
	out := []float32{9}
	ok(t, store.Push(ctx, 0, Of([]float32{3})))
	ok(t, store.Pull(ctx, 0, Of(out)))
	equal(t, out[0], 2)
	number, integer := 1.0, int32(7)
	fails(t, store.Init(ctx, 1, Scalar(&number)), ErrDTypeMismatch)
	ok(t, store.Init(ctx, 1, Scalar(&integer)))
	ok(t, store.Close())
	fails(t, store.SetCompression("none", nil), ErrClosed)
}
