package kvstore

// #include "shim.h"
import "C"

import (
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"
)

// GPU is the CUDA device of a number.
func GPU(id int) Device { return Device{Type: CUDA, ID: int32(id)} }

// Stream is a CUDA stream of a GPU, on which a program uses the GPU's memory. It makes tensors of
// this memory, which carry it into each call: the call begins after everything that has been queued
// on the stream before it. No thread names a stream, as threads do in C, since goroutines change
// threads.
//
// All tensors of one GPU in one call must be of one stream. A call without tensors of a GPU uses the
// legacy default stream for keys there. The stream must exist during the call.
type Stream struct {
	Device int // the number of the GPU
	// Handle is a CUstream or cudaStream_t of the GPU's primary context, 0 the legacy default stream.
	// The default stream of a thread (2, CU_STREAM_PER_THREAD) is refused.
	Handle uintptr
}

// The other name of the legacy default stream, and the default stream of a thread.
const (
	legacyStream    = 1
	perThreadStream = 2
)

// gpuMemory is where the elements of a tensor in GPU memory are.
type gpuMemory struct {
	address uintptr
	stream  Stream
}

// Tensor views GPU memory from an address on in row-major order, without a copy; without extents one
// number. The package does not touch the memory. It must stay allocated until the work on it is done:
// after a call that has returned, a free in the order of the stream is late enough.
func (s Stream) Tensor(address uintptr, dtype DType, shape ...int) Tensor {
	return s.view(address, dtype, shape, nil)
}

// Strided views GPU memory with the first element at an address; strides, in elements, lead to its
// neighbours.
func (s Stream) Strided(address uintptr, dtype DType, shape, strides []int) Tensor {
	t := s.view(address, dtype, shape, slices.Clone(strides))
	if t.err == nil && len(shape) != len(strides) {
		t.err = failf(ErrInvalidArgument, "shape %v and strides %v differ in length", shape, strides)
	}
	return t
}

func (s Stream) view(address uintptr, dtype DType, shape, strides []int) Tensor {
	if s.Handle == legacyStream {
		s.Handle = 0
	}
	t := Tensor{
		memory:  &gpuMemory{address, s},
		dtype:   dtype,
		device:  GPU(s.Device),
		shape:   slices.Clone(shape),
		strides: strides,
	}
	if s.Handle == perThreadStream {
		t.err = failf(ErrInvalidArgument, "stream 2 of GPU %d is one of a thread, and goroutines "+
			"change threads; use a stream of your own", s.Device)
	}
	for _, extent := range shape {
		if extent < 0 {
			t.err = failf(ErrInvalidArgument, "shape %v has a negative extent", shape)
		}
	}
	return t
}

// Stream returns the stream of a tensor in GPU memory; of another tensor, the zero Stream.
func (t Tensor) Stream() Stream {
	if t.memory == nil {
		return Stream{}
	}
	return t.memory.stream
}

// Address returns the address of the first element of a tensor in GPU memory; of another tensor, 0.
func (t Tensor) Address() uintptr {
	if t.memory == nil {
		return 0
	}
	return t.memory.address
}

// lentMemory is where the elements are that the library lends to an updater, with the stream of the
// push, which this thread has named.
func lentMemory(tensor *C.kv_tensor) *gpuMemory {
	var stream unsafe.Pointer
	C.kv_stream(tensor.device, &stream)
	view := Stream{Device: int(tensor.device.id), Handle: uintptr(stream)}
	if view.Handle == legacyStream {
		view.Handle = 0
	}
	return &gpuMemory{uintptr(tensor.data), view}
}

// KeyDevice tells on which device the value of a key is: in a store of the type device on that of the
// tensor that initialised it, or to which it moved at its first call with a tensor of a GPU; everywhere
// else in host memory.
func (s *Store) KeyDevice(key Key) (Device, error) {
	var device C.kv_device
	err := s.use(func(store *C.kv_store) C.kv_status {
		return C.kv_key_device(store, C.kv_key(key), &device)
	})
	if err != nil {
		return Device{}, err
	}
	return Device{Type: DeviceType(device._type), ID: int32(device.id)}, nil
}

// sideStreams says that a call has named a stream. Before that the stream of every thread is the
// legacy one; afterwards it may be that of a call around an updater in which a call is made.
var sideStreams atomic.Bool

// addStream notes the stream of a tensor for the call.
func (f *flat) addStream(op operation, key Key, stream Stream) error {
	id, handle := C.int64_t(stream.Device), C.int64_t(stream.Handle)
	for i := 0; i < len(f.streams); i += C.KVSTORE_GO_STREAM {
		if f.streams[i] == id && f.streams[i+1] != handle {
			return failf(ErrInvalidArgument, "%s: key %v: the tensors of GPU %d are of the streams %#x "+
				"and %#x; use one", op.name, key, stream.Device, int64(f.streams[i+1]), stream.Handle)
		}
		if f.streams[i] == id {
			return nil
		}
	}
	f.streams = append(f.streams, id, handle, 0)
	return nil
}

// onStreams does some work on one OS thread, for which streams are named as long as it takes.
func onStreams(streams []C.int64_t, work func() error) error {
	if len(streams) == 0 {
		return work()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var named C.size_t
	defer func() { C.kvstore_go_restore_streams(unsafe.SliceData(streams), named) }()
	err := call(func() C.kv_status {
		count := C.size_t(len(streams) / C.KVSTORE_GO_STREAM)
		return C.kvstore_go_name_streams(unsafe.SliceData(streams), count, &named)
	})
	if err != nil {
		return err
	}
	return work()
}

// named gives the streams that have to be named: none as long as all are legacy.
func (f *flat) named() []C.int64_t {
	for i := 1; i < len(f.streams); i += C.KVSTORE_GO_STREAM {
		if f.streams[i] != 0 {
			sideStreams.Store(true)
		}
	}
	if sideStreams.Load() {
		return f.streams
	}
	return nil
}
