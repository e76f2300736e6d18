package kvstore

import (
	"context"
	"math"
	"strings"
	"testing"
)

// value pulls a key of one float64.
func value(t *testing.T, store *Store, key Key) float64 {
	t.Helper()
	var number float64
	ok(t, store.Pull(context.Background(), key, Scalar(&number)))
	return number
}

// withOne opens a store whose keys are 1.
func withOne(t *testing.T, keys ...Key) *Store {
	t.Helper()
	store := open(t, "local", nil)
	one := 1.0
	for _, key := range keys {
		ok(t, store.Init(context.Background(), key, Scalar(&one)))
	}
	return store
}

func TestSingleKeysHaveRulesOfTheirOwn(t *testing.T) {
	store := withOne(t, 0, 1)
	half := 0.5
	ok(t, store.SetOptimizer("sgd", Params{"learning_rate": 0.25}))
	ok(t, store.SetOptimizerFor([]Key{1, 2}, "none", nil))
	for key := Key(0); key < 2; key++ {
		ok(t, store.Push(context.Background(), key, Scalar(&half)))
	}
	equal(t, value(t, store, 0), 0.875)
	equal(t, value(t, store, 1), 0.5)
	ok(t, store.SetOptimizerFor([]Key{1}, "sgd", Params{"learning_rate": 0.5}))
	ok(t, store.SetKeyHyperparameter(1, "learning_rate", 1))
	ok(t, store.Push(context.Background(), 1, Scalar(&half)))
	equal(t, value(t, store, 1), 0)
	ok(t, store.SetOptimizerFor(nil, "none", nil))
}

func TestOptimizerMergesTheSum(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := withOne(t, 0)
		half := 0.5
		ok(t, store.SetOptimizer("SGD", Params{"learning_rate": 0.25}))
		ok(t, store.Push(ctx, 0, Scalar(&half), Scalar(&half)))
		equal(t, value(t, store, 0), 0.75)
		ok(t, store.SetUpdater(nil))
		ok(t, store.Push(ctx, 0, Scalar(&half)))
		equal(t, value(t, store, 0), 0.5)
	})
}

func TestOptimizerKeepsItsStateOfEachKey(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := withOne(t, 1, 2)
		ok(t, store.SetOptimizer("adam", Params{"learning_rate": 0.1, "beta1": 0.8}))
		weight, m, v := 1.0, 0.0, 0.0
		for step := 1; step <= 10; step++ {
			gradient := float64(step) - 4.5
			ok(t, store.Push(ctx, 1, Scalar(&gradient)))
			m = 0.8*m + 0.2*gradient
			v = 0.999*v + 0.001*gradient*gradient
			correction := math.Sqrt(1-math.Pow(0.999, float64(step))) / (1 - math.Pow(0.8, float64(step)))
			weight -= 0.1 * correction * m / (math.Sqrt(v) + 1e-8)
			if got := value(t, store, 1); math.Abs(got-weight) > 1e-12 {
				t.Fatalf("step %d gives %v, want %v", step, got, weight)
			}
		}
		// The first push of another key has a state and a count of its own.
		one := 1.0
		ok(t, store.Push(ctx, 2, Scalar(&one)))
		if got := value(t, store, 2); math.Abs(got-0.9) > 1e-6 {
			t.Fatalf("the first step gives %v", got)
		}
	})
}

func TestParamsArriveUnchanged(t *testing.T) {
	begin(t)
	for _, rate := range []float64{0.1, 1.0 / 3, 5e-324, 1e22 / 7, 0, math.MaxFloat64} {
		store := open(t, "local", nil)
		zero, one := 0.0, 1.0
		ok(t, store.Init(context.Background(), 0, Scalar(&zero)))
		ok(t, store.SetOptimizer("sgd", Params{
			"learning_rate": rate, "multi_precision": 1, "clip_gradient": math.Inf(1),
		}))
		ok(t, store.Push(context.Background(), 0, Scalar(&one)))
		equal(t, value(t, store, 0), -rate)
	}
}

func TestHyperparametersCountFromTheNextPush(t *testing.T) {
	bothWays(t, func(t *testing.T, ctx context.Context) {
		store := withOne(t, 0)
		bias, err := store.Intern("bias")
		ok(t, err)
		one := 1.0
		ok(t, store.SetOptimizer("sgd", Params{"learning_rate": 0.5, "wd": 0.5}))
		ok(t, store.SetKeyHyperparameter(bias, "wd_mult", 0))
		ok(t, store.Init(ctx, bias, Scalar(&one)))
		ok(t, store.PushList(ctx, []Pair{{0, Scalar(&one)}, {bias, Scalar(&one)}}))
		equal(t, value(t, store, 0), 0.25)
		equal(t, value(t, store, bias), 0.5)
		ok(t, store.SetHyperparameter("learning_rate", 0.25))
		ok(t, store.SetKeyHyperparameter(bias, "lr_mult", 2))
		ok(t, store.Push(ctx, bias, Scalar(&one)))
		equal(t, value(t, store, bias), 0)
	})
}

func TestWrongOptimizersAreRefused(t *testing.T) {
	begin(t)
	store := withOne(t, 0)
	fails(t, store.SetHyperparameter("learning_rate", 1), ErrInvalidArgument)
	fails(t, store.SetKeyHyperparameter(0, "lr_mult", 1), ErrInvalidArgument)
	ok(t, store.SetOptimizer("sgd", Params{"learning_rate": 0.5}))
	for _, test := range []struct {
		err  error
		want Status
		text string
	}{
		{store.SetOptimizer("sdg", nil), ErrOption, "sgd"},
		{store.SetOptimizerFor([]Key{0}, "sdg", nil), ErrOption, "sgd"},
		{store.SetOptimizer("adam", Params{"learning": 1}), ErrOption, "learning_rate"},
		{store.SetOptimizer("adam", Params{"beta1": 1}), ErrOption, "beta1"},
		{store.SetOptimizer("adam", Params{"wd": math.NaN()}), ErrOption, "NaN"},
		{store.SetHyperparameter("momentun", 0.5), ErrOption, "momentum"},
		{store.SetHyperparameter("learning_rate", -1), ErrOption, "-1"},
		{store.SetKeyHyperparameter(0, "lr", 1), ErrOption, "lr_mult"},
		{store.SetOptimizer("sgd\x00", nil), ErrInvalidArgument, "zero byte"},
		{store.SetOptimizer("sgd", Params{"wd\x00": 1}), ErrInvalidArgument, "zero byte"},
		{store.SetHyperparameter("wd\x00", 1), ErrInvalidArgument, "zero byte"},
		{store.SetKeyHyperparameter(0, "\x00", 1), ErrInvalidArgument, "zero byte"},
	} {
		fails(t, test.err, test.want)
		if !strings.Contains(test.err.Error(), test.text) {
			t.Errorf("%v does not say %q", test.err, test.text)
		}
	}
	one := 1.0
	ok(t, store.Push(context.Background(), 0, Scalar(&one)))
	equal(t, value(t, store, 0), 0.5)
	ok(t, store.Close())
	fails(t, store.SetOptimizer("sgd", nil), ErrClosed)
	fails(t, store.SetHyperparameter("wd", 1), ErrClosed)
	fails(t, store.SetKeyHyperparameter(0, "wd_mult", 1), ErrClosed)
}

func TestOptimizersRefuseIntegers(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	number := int32(1)
	ok(t, store.Init(ctx, 0, Scalar(&number)))
	fails(t, store.SetOptimizer("sgd", nil), ErrDTypeMismatch)
	ok(t, store.Remove(ctx, 0))
	ok(t, store.SetOptimizer("sgd", nil))
	fails(t, store.Init(ctx, 0, Scalar(&number)), ErrDTypeMismatch)
	ok(t, store.SetUpdater(nil))
	ok(t, store.Init(ctx, 0, Scalar(&number)))
}
