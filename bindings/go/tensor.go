package kvstore

// #include "shim.h"
import "C"

import (
	"fmt"
	"slices"
	"unsafe"
)

// DType is an element type.
type DType uint32

// The element types.
const (
	I8   DType = C.KV_I8
	I16  DType = C.KV_I16
	I32  DType = C.KV_I32
	I64  DType = C.KV_I64
	U8   DType = C.KV_U8
	U16  DType = C.KV_U16
	U32  DType = C.KV_U32
	U64  DType = C.KV_U64
	F16  DType = C.KV_F16
	F32  DType = C.KV_F32
	F64  DType = C.KV_F64
	BF16 DType = C.KV_BF16

	// Opaque: stored and copied, never added.
	Bool       DType = C.KV_BOOL
	C64        DType = C.KV_C64
	C128       DType = C.KV_C128
	F8E4M3FN   DType = C.KV_F8_E4M3FN
	F8E4M3FNUZ DType = C.KV_F8_E4M3FNUZ
	F8E5M2     DType = C.KV_F8_E5M2
	F8E5M2FNUZ DType = C.KV_F8_E5M2FNUZ
	F8E8M0FNU  DType = C.KV_F8_E8M0FNU
)

// Element lists the Go types of the elements.
type Element interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 |
		Float16 | BFloat16 | float32 | float64 | bool | complex64 | complex128 |
		Float8E4M3FN | Float8E4M3FNUZ | Float8E5M2 | Float8E5M2FNUZ | Float8E8M0FNU
}

// Floats of 8 bits, which store only. Their names say how many bits exponent and mantissa have.
type (
	Float8E4M3FN   uint8 // no infinities
	Float8E4M3FNUZ uint8 // no infinities, one zero, another bias
	Float8E5M2     uint8
	Float8E5M2FNUZ uint8 // no infinities, one zero, another bias
	Float8E8M0FNU  uint8 // a power of two, a scale
)

// DTypeOf returns the dtype of a Go type.
func DTypeOf[T Element]() DType {
	switch any(*new(T)).(type) {
	case int8:
		return I8
	case int16:
		return I16
	case int32:
		return I32
	case int64:
		return I64
	case uint8:
		return U8
	case uint16:
		return U16
	case uint32:
		return U32
	case uint64:
		return U64
	case bool:
		return Bool
	case complex64:
		return C64
	case complex128:
		return C128
	case Float8E4M3FN:
		return F8E4M3FN
	case Float8E4M3FNUZ:
		return F8E4M3FNUZ
	case Float8E5M2:
		return F8E5M2
	case Float8E5M2FNUZ:
		return F8E5M2FNUZ
	case Float8E8M0FNU:
		return F8E8M0FNU
	case Float16:
		return F16
	case BFloat16:
		return BF16
	case float32:
		return F32
	default:
		return F64
	}
}

var dtypeNames = map[DType]string{
	I8: "int8", I16: "int16", I32: "int32", I64: "int64",
	U8: "uint8", U16: "uint16", U32: "uint32", U64: "uint64",
	F16: "float16", F32: "float32", F64: "float64", BF16: "bfloat16",
	Bool: "bool", C64: "complex64", C128: "complex128",
	F8E4M3FN: "float8_e4m3fn", F8E4M3FNUZ: "float8_e4m3fnuz",
	F8E5M2: "float8_e5m2", F8E5M2FNUZ: "float8_e5m2fnuz", F8E8M0FNU: "float8_e8m0fnu",
}

// String returns the name of the type, such as float32.
func (d DType) String() string {
	if name, ok := dtypeNames[d]; ok {
		return name
	}
	return fmt.Sprintf("DType(%#x)", uint32(d))
}

// size returns the bytes of one element.
func (d DType) size() int { return int(d>>8&0xff) / 8 }

// DeviceType is a kind of memory, numbered as in DLPack.
type DeviceType int32

// The kinds of memory.
const (
	CPU      DeviceType = C.KV_CPU       // ordinary memory
	CUDA     DeviceType = C.KV_CUDA      // memory of a GPU, see [Stream]
	CUDAHost DeviceType = C.KV_CUDA_HOST // pinned by CUDA, used like CPU
)

// Device says where a tensor lives. The ID of a CPU has no effect.
type Device struct {
	Type DeviceType
	ID   int32
}

// Tensor is a view of memory that somebody else owns: your slice, or in an updater the library.
type Tensor struct {
	data    unsafe.Pointer // nil if there are no elements, or in GPU memory
	memory  *gpuMemory     // nil if not in GPU memory
	offset  int            // of the first element, in elements
	dtype   DType
	device  Device
	shape   []int
	strides []int // in elements; nil means row-major without gaps
	err     *Error
}

// Of views a slice in row-major order. Without a shape the tensor has one dimension.
//
// The number of elements must be the length of the slice; if it is not, the call that the tensor is
// given to says so.
func Of[T Element](slice []T, shape ...int) Tensor {
	if len(shape) == 0 {
		shape = []int{len(slice)}
	}
	t := view(slice, shape, nil)
	if t.err == nil && !sizeIs(shape, len(slice)) {
		t.err = failf(ErrInvalidArgument, "shape %v does not have the %d elements of the slice",
			shape, len(slice))
	}
	return t
}

// Scalar views a single number, a tensor without dimensions.
func Scalar[T Element](number *T) Tensor {
	return view(unsafe.Slice(number, 1), nil, nil)
}

// Strided views some elements of a slice: slice[offset] comes first, and strides, in elements, lead
// to its neighbours. Strides may be negative. All elements must lie within the slice.
func Strided[T Element](slice []T, offset int, shape, strides []int) Tensor {
	t := view(slice, shape, strides)
	t.offset = offset
	switch {
	case t.err != nil:
	case len(shape) != len(strides):
		t.err = failf(ErrInvalidArgument, "shape %v and strides %v differ in length", shape, strides)
	case slices.Contains(shape, 0):
		t.data, t.offset = nil, 0
	case !inside(len(slice), offset, shape, strides):
		t.err = failf(ErrInvalidArgument, "offset %d, shape %v and strides %v leave the slice of %d",
			offset, shape, strides, len(slice))
	}
	return t
}

// view copies shape and strides: what has been checked must not change.
func view[T Element](slice []T, shape, strides []int) Tensor {
	t := Tensor{
		dtype:   DTypeOf[T](),
		device:  Device{Type: CPU},
		shape:   slices.Clone(shape),
		strides: slices.Clone(strides),
	}
	if len(slice) > 0 {
		t.data = unsafe.Pointer(unsafe.SliceData(slice))
	}
	for _, extent := range shape {
		if extent < 0 {
			t.err = failf(ErrInvalidArgument, "shape %v has a negative extent", shape)
		}
	}
	return t
}

// sizeIs reports whether a shape without negative extents has so many elements.
func sizeIs(shape []int, size int) bool {
	if slices.Contains(shape, 0) {
		return size == 0
	}
	product := 1
	for _, extent := range shape {
		if product > size/extent { // also keeps the product from overflowing
			return false
		}
		product *= extent
	}
	return product == size
}

// inside reports whether all elements of a shape without zeros lie in a slice of `size`.
func inside(size, offset int, shape, strides []int) bool {
	if offset < 0 || offset >= size {
		return false
	}
	below, above := offset, size-1-offset
	for i, extent := range shape {
		if extent == 1 {
			continue
		}
		stride, room := strides[i], &above
		if stride < 0 {
			stride, room = -stride, &below
		}
		// The smallest integer stays negative.
		if stride < 0 || stride > *room/(extent-1) {
			return false
		}
		*room -= stride * (extent - 1)
	}
	return true
}

// On returns the same view, said to live on a device. One of GPU memory stays where it is.
func (t Tensor) On(device Device) Tensor {
	if t.memory != nil && device != t.device && t.err == nil {
		t.err = failf(ErrInvalidArgument, "the tensor is in the memory of GPU %d, not on %v",
			t.device.ID, device)
		return t
	}
	t.device = device
	return t
}

// DType returns the element type.
func (t Tensor) DType() DType { return t.dtype }

// Shape returns the extents; a tensor without dimensions has none.
func (t Tensor) Shape() []int { return slices.Clone(t.shape) }

// Device returns where the tensor lives.
func (t Tensor) Device() Device { return t.device }

// Len returns the number of elements.
func (t Tensor) Len() int {
	size := 1
	for _, extent := range t.shape {
		size *= extent
	}
	return size
}

// Slice returns the elements in row-major order, without a copy. It panics if T is not the element
// type, or if the tensor is strided or in GPU memory; in an updater the panic becomes the error of
// the push.
func Slice[T Element](t Tensor) []T {
	switch {
	case t.err != nil:
		panic(t.err)
	case t.dtype != DTypeOf[T]():
		panic(fmt.Sprintf("kvstore: the tensor is %v, not %v", t.dtype, DTypeOf[T]()))
	case t.memory != nil:
		panic(fmt.Sprintf("kvstore: the tensor is in the memory of GPU %d", t.device.ID))
	case t.strides != nil:
		panic("kvstore: the tensor is strided; it has no slice")
	}
	return unsafe.Slice((*T)(t.data), t.Len())
}

// fromC views what the library lends to an updater: row-major, without an offset.
func fromC(tensor *C.kv_tensor) Tensor {
	view := Tensor{
		dtype:  DType(tensor.dtype),
		device: Device{Type: DeviceType(tensor.device._type), ID: int32(tensor.device.id)},
		shape:  ints(unsafe.Slice(tensor.shape, tensor.ndim)),
	}
	if view.device.Type == CUDA {
		view.memory = lentMemory(tensor)
	} else {
		view.data = tensor.data
	}
	return view
}
