package kvstore

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"
)

func TestOfChecksTheShape(t *testing.T) {
	begin(t)
	slice := make([]float32, 6)
	huge := int(^uint(0) >> 1)
	for _, test := range []struct {
		shape []int
		fits  bool
	}{
		{nil, true}, {[]int{6}, true}, {[]int{2, 3}, true}, {[]int{3, 1, 2}, true},
		{[]int{5}, false}, {[]int{7}, false}, {[]int{2, 2}, false}, {[]int{0}, false},
		{[]int{-6}, false}, {[]int{-2, -3}, false}, {[]int{huge, huge}, false},
		{[]int{huge, 0}, false}, {[]int{6, huge}, false},
	} {
		if got := Of(slice, test.shape...).err == nil; got != test.fits {
			t.Errorf("shape %v fits: %v", test.shape, got)
		}
	}
	if Of(make([]float32, 4), 4, huge/2+2).err == nil {
		t.Error("a product that wraps around to the right size fits")
	}
	for _, shape := range [][]int{nil, {0}, {0, 5}, {huge, 0, huge}} {
		tensor := Of([]int8{}, shape...)
		if tensor.err != nil || tensor.Len() != 0 {
			t.Errorf("empty slice with shape %v: %v", shape, tensor.err)
		}
	}
}

func TestTensorKeepsItsOwnShape(t *testing.T) {
	begin(t)
	shape := []int{2, 3}
	tensor := Of(make([]float64, 6), shape...)
	shape[0] = 1000
	equals(t, tensor.Shape(), []int{2, 3})
	tensor.Shape()[0] = 1000
	equals(t, tensor.Shape(), []int{2, 3})
	equal(t, tensor.Len(), 6)
	equal(t, tensor.DType(), F64)
	equal(t, tensor.Device(), Device{CPU, 0})
	equal(t, tensor.On(Device{CPU, 3}).Device(), Device{CPU, 3})
	number := int64(7)
	scalar := Scalar(&number)
	equal(t, len(scalar.Shape()), 0)
	equals(t, Slice[int64](scalar), []int64{7})
}

// A view is right exactly if every element that can be reached is inside the slice.
func TestStridedAgreesWithAWalkOverAllElements(t *testing.T) {
	begin(t)
	random := rand.New(rand.NewSource(1))
	counts := map[bool]int{}
	for i := 0; i < 20000; i++ {
		size, ndim := random.Intn(20), random.Intn(4)
		shape, strides := make([]int, ndim), make([]int, ndim)
		for d := range shape {
			shape[d], strides[d] = random.Intn(5), random.Intn(13)-6
		}
		offset := random.Intn(size+3) - 1
		tensor := Strided(make([]uint8, size), offset, shape, strides)
		want := walkStaysInside(size, offset, shape, strides)
		if got := tensor.err == nil; got != want {
			t.Fatalf("size %d, offset %d, shape %v, strides %v: %v", size, offset, shape, strides, got)
		}
		counts[want]++
	}
	if counts[true] < 1000 || counts[false] < 1000 {
		t.Fatalf("one-sided: %v", counts)
	}
}

func walkStaysInside(size, offset int, shape, strides []int) bool {
	if len(shape) == 0 {
		return offset >= 0 && offset < size
	}
	for _, extent := range shape {
		if extent == 0 {
			return true
		}
	}
	for i := 0; i < shape[0]; i++ {
		if !walkStaysInside(size, offset+i*strides[0], shape[1:], strides[1:]) {
			return false
		}
	}
	return true
}

func TestStridedRefusesWhatOverflows(t *testing.T) {
	begin(t)
	huge := int(^uint(0) >> 1)
	slice := make([]float32, 8)
	for _, test := range []struct{ shape, strides []int }{
		{[]int{2}, []int{huge}}, {[]int{2}, []int{-huge - 1}}, {[]int{huge}, []int{huge}},
		{[]int{huge}, []int{1}}, {[]int{3, 3}, []int{huge / 2, huge / 2}},
		{[]int{2, 2}, []int{1}}, {[]int{-1}, []int{1}}, {[]int{2}, nil},
	} {
		if Strided(slice, 0, test.shape, test.strides).err == nil {
			t.Errorf("shape %v, strides %v fit", test.shape, test.strides)
		}
	}
}

func TestSlicePanicsWithAReason(t *testing.T) {
	begin(t)
	slice := make([]float32, 6)
	for _, test := range []struct {
		tensor Tensor
		reason string
	}{
		{Of(make([]float64, 6)), "float64, not float32"},
		{Strided(slice, 0, []int{3}, []int{2}), "strided"},
		{Of(slice, 5), "does not have"},
	} {
		func() {
			defer func() {
				if cause := fmt.Sprint(recover()); !strings.Contains(cause, test.reason) {
					t.Errorf("panic is %q, want %q", cause, test.reason)
				}
			}()
			Slice[float32](test.tensor)
		}()
	}
	Slice[float32](Of(slice, 2, 3))[5] = 1
	equal(t, slice[5], 1)
}

func TestDTypesHaveNamesAndSizes(t *testing.T) {
	begin(t)
	for _, test := range []struct {
		dtype DType
		name  string
		size  int
	}{
		{DTypeOf[int8](), "int8", 1}, {DTypeOf[uint8](), "uint8", 1},
		{DTypeOf[int32](), "int32", 4}, {DTypeOf[int64](), "int64", 8},
		{DTypeOf[Float16](), "float16", 2}, {DTypeOf[BFloat16](), "bfloat16", 2},
		{DTypeOf[float32](), "float32", 4}, {DTypeOf[float64](), "float64", 8},
		{DType(0x12003), "DType(0x12003)", 4},
	} {
		equal(t, test.dtype.String(), test.name)
		equal(t, test.dtype.size(), test.size)
	}
}
