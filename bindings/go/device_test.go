package kvstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/libkvstore/libkvstore/bindings/go/internal/gpu"
)

// gpuFloats is an array of one number in the memory of a GPU, written and read on a stream.
type gpuFloats struct {
	stream  Stream
	address uintptr
}

const gpuCount = 6

func newGPUFloats(stream Stream, value float32) gpuFloats {
	floats := gpuFloats{stream, gpu.Allocate(stream.Device, 4*gpuCount)}
	floats.set(value)
	return floats
}

// set queues a write, as a kernel does that computes a gradient.
func (f gpuFloats) set(value float32) {
	gpu.Write(f.stream.Device, f.address, filled(gpuCount, value), f.stream.Handle)
}

// get waits for the stream.
func (f gpuFloats) get(t testing.TB) float32 {
	t.Helper()
	values := make([]float32, gpuCount)
	gpu.Read(f.stream.Device, values, f.address, f.stream.Handle)
	equals(t, values, filled(gpuCount, values[0]))
	return values[0]
}

func (f gpuFloats) tensor() Tensor { return f.stream.Tensor(f.address, F32, 2, 3) }

// withGPUs skips a test without the stand-in driver.
func withGPUs(t *testing.T) {
	t.Helper()
	_ = withoutDriver(t)
	if !gpu.Open() {
		t.Skip("KV_CUDA names no stand-in driver")
	}
}

// withoutDriver opens a store whose driver does not exist; it skips a test if the library has no CUDA.
func withoutDriver(t *testing.T) *Store {
	t.Helper()
	store := open(t, "device", Config{"cuda": "/no/such/driver.so"})
	if errors.Is(store.Init(noContext, 9, Stream{}.Tensor(64, F32)), ErrUnsupported) {
		t.Skip("the library has no CUDA")
	}
	return store
}

func TestWithoutADriverGPUsAreAnErrorOfTheirOwn(t *testing.T) {
	ctx := begin(t)
	store := withoutDriver(t)
	fails(t, store.Init(ctx, 1, Stream{}.Tensor(64, F32)), ErrDevice)
	ok(t, store.Init(ctx, 1, Of([]float32{1})))
	device, err := store.KeyDevice(1)
	ok(t, err)
	equal(t, device, Device{CPU, 0})
	_, err = store.KeyDevice(2)
	fails(t, err, ErrKeyNotFound)
}

func TestTensorsOfAGPUAreValuesAndOuts(t *testing.T) {
	withGPUs(t)
	for storeType, home := range map[string]Device{"local": {CPU, 0}, "device": GPU(0)} {
		t.Run(storeType, func(t *testing.T) {
			bothWays(t, func(t *testing.T, ctx context.Context) {
				store := open(t, storeType, nil)
				stream := Stream{0, gpu.NewStream(0)}
				first, value := newGPUFloats(stream, 2), newGPUFloats(stream, 3)
				out := newGPUFloats(stream, 0)
				ok(t, store.Init(ctx, 1, first.tensor()))
				device, err := store.KeyDevice(1)
				ok(t, err)
				equal(t, device, home)
				ok(t, store.SetOptimizer("sgd", Params{"learning_rate": 0.5}))
				ok(t, store.PushPull(ctx, 1, []Tensor{value.tensor(), value.tensor()},
					[]Tensor{out.tensor()}))
				equal(t, out.get(t), -1)
				host := filled[float32](gpuCount, 4)
				ok(t, store.Push(ctx, 1, Of(host, 2, 3), value.tensor()))
				ok(t, store.Pull(ctx, 1, Of(host, 2, 3), out.tensor()))
				equals(t, host, filled[float32](gpuCount, -4.5))
				equal(t, out.get(t), -4.5)
				ok(t, store.Pull(ctx, 1, Of(host, 2, 3)))
				ok(t, store.Remove(ctx, 1))
			})
		})
	}
}

// pushedFrom queues a gradient, pushes it in tensors of a stream, and queues the next one into the
// same memory. It returns what is pulled.
func pushedFrom(t *testing.T, store *Store, side, of Stream) float32 {
	gradient, out := newGPUFloats(side, 1), newGPUFloats(side, 7)
	gpu.Wait(side.Device, side.Handle)
	gradient.set(5)
	ok(t, store.Push(context.Background(), 1, of.Tensor(gradient.address, F32, 2, 3)))
	ok(t, store.Pull(context.Background(), 1, of.Tensor(out.address, F32, 2, 3)))
	gradient.set(9)
	value := out.get(t)
	gpu.Wait(0, 0)
	return value
}

func TestACallIsQueuedOnTheStreamOfItsTensors(t *testing.T) {
	begin(t)
	withGPUs(t)
	store := open(t, "device", nil)
	legacy, side := Stream{}, Stream{0, gpu.NewStream(0)}
	ok(t, store.Init(context.Background(), 1, newGPUFloats(legacy, 0).tensor()))
	// Both kinds of calls on one thread: none leaves its stream to the next one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	unordered := 0
	for seed := uint64(1); seed <= 30; seed++ {
		gpu.Seed(0, seed)
		equal(t, pushedFrom(t, store, side, side), 5)
		equal(t, pushedFrom(t, store, legacy, legacy), 5)
		if pushedFrom(t, store, side, legacy) != 5 {
			unordered++
		}
	}
	if unordered == 0 {
		t.Error("the driver shows no wrong order")
	}
}

func TestNoThreadKeepsTheStreamOfACall(t *testing.T) {
	begin(t)
	withGPUs(t)
	store := open(t, "device", nil)
	side := Stream{0, gpu.NewStream(0)}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ok(t, store.Init(noContext, 1, newGPUFloats(side, 4).tensor()))
	gpu.Wait(0, side.Handle)
	gpu.Destroy(0, side.Handle)
	out := filled[float32](gpuCount, 0)
	ok(t, store.Pull(noContext, 1, Of(out, 2, 3)))
	equals(t, out, filled[float32](gpuCount, 4))
}

func TestACallInAnUpdaterHasItsOwnStream(t *testing.T) {
	begin(t)
	withGPUs(t)
	outer, inner := open(t, "device", nil), open(t, "device", nil)
	legacy, side := Stream{}, Stream{0, gpu.NewStream(0)}
	for _, store := range []*Store{outer, inner} {
		ok(t, store.Init(context.Background(), 1, newGPUFloats(legacy, 0).tensor()))
	}
	calls := 0
	ok(t, outer.SetUpdater(func(Key, Tensor, Tensor) error {
		calls++
		if value := pushedFrom(t, inner, legacy, legacy); value != 5 {
			return fmt.Errorf("pulled %v", value)
		}
		return nil
	}))
	for seed := uint64(1); seed <= 30; seed++ {
		gpu.Seed(0, seed)
		ok(t, outer.Push(context.Background(), 1, newGPUFloats(side, 1).tensor()))
	}
	equal(t, calls, 30)
}

// halve makes the first half of the sum that of the value, in the memory of the GPU.
func halve(_ Key, input, stored Tensor) error {
	if input.Device() != GPU(0) || stored.Device() != GPU(0) || stored.Len() != gpuCount {
		return fmt.Errorf("arrays on %v and %v", input.Device(), stored.Device())
	}
	stream := stored.Stream()
	gpu.Copy(0, stored.Address(), input.Address(), 4*gpuCount/2, stream.Handle)
	return nil
}

// halves reads an array of which an updater has changed the first half.
func (f gpuFloats) halves() (first, rest float32) {
	values := make([]float32, gpuCount)
	gpu.Read(f.stream.Device, values, f.address, f.stream.Handle)
	return values[0], values[gpuCount-1]
}

func TestAnUpdaterMayGetTheArraysOnTheGPU(t *testing.T) {
	withGPUs(t)
	for seed := uint64(1); seed <= 30; seed++ {
		gpu.Seed(0, seed)
		bothWays(t, func(t *testing.T, ctx context.Context) {
			store := open(t, "device", Config{"updater_memory": "device"})
			stream := Stream{0, gpu.NewStream(0)}
			ok(t, store.Init(ctx, 1, newGPUFloats(stream, 1).tensor()))
			var streams []Stream
			ok(t, store.SetUpdater(func(key Key, input, stored Tensor) error {
				if input.Stream() != stored.Stream() {
					return errors.New("two streams")
				}
				streams = append(streams, stored.Stream())
				return halve(key, input, stored)
			}))
			two, three, out := newGPUFloats(stream, 2), newGPUFloats(stream, 3), newGPUFloats(stream, 0)
			ok(t, store.PushPull(ctx, 1, []Tensor{two.tensor(), three.tensor()},
				[]Tensor{out.tensor()}))
			two.set(100)
			first, rest := out.halves()
			equals(t, []float32{first, rest}, []float32{5, 1})
			equal(t, len(streams), 1)
			// A ticket runs on a stream of the library.
			equal(t, streams[0] == stream, ctx.Done() == nil)
		})
	}
}

func TestAnUpdaterOnTheGPUThatFails(t *testing.T) {
	withGPUs(t)
	for undo, wanted := range map[string]float32{"no": 5, "yes": 1} {
		bothWays(t, func(t *testing.T, ctx context.Context) {
			store := open(t, "device", Config{"updater_memory": "device", "updater_undo": undo})
			ok(t, store.Init(ctx, 1, newGPUFloats(Stream{}, 1).tensor()))
			ok(t, store.SetUpdater(func(key Key, input, stored Tensor) error {
				return errors.Join(halve(key, input, stored), errors.New("no such rule"))
			}))
			err := store.Push(ctx, 1, newGPUFloats(Stream{}, 5).tensor())
			fails(t, err, ErrCallback)
			if !strings.Contains(err.Error(), "no such rule") || strings.Contains(err.Error(), "arrays on") {
				t.Errorf("error: %v", err)
			}
			out := newGPUFloats(Stream{}, 0)
			ok(t, store.Pull(ctx, 1, out.tensor()))
			first, rest := out.halves()
			equals(t, []float32{first, rest}, []float32{wanted, 1})
		})
	}
}

func TestSliceOfAnUpdatersArrayOnTheGPUPanics(t *testing.T) {
	begin(t)
	withGPUs(t)
	store := open(t, "device", Config{"updater_memory": "device"})
	ok(t, store.Init(noContext, 1, newGPUFloats(Stream{}, 1).tensor()))
	ok(t, store.SetUpdater(addTo))
	err := store.Push(noContext, 1, newGPUFloats(Stream{}, 5).tensor())
	fails(t, err, ErrCallback)
	if !strings.Contains(err.Error(), "memory of GPU 0") {
		t.Errorf("error: %v", err)
	}
}

func TestGoroutinesWithStreamsOfTheirOwnShareAKey(t *testing.T) {
	const workers, pushes = 4, 25
	begin(t)
	withGPUs(t)
	store := open(t, "device", nil)
	ok(t, store.Init(context.Background(), 1, newGPUFloats(Stream{}, 0).tensor()))
	ok(t, store.SetOptimizer("test", nil)) // adds the sum
	gpu.Wait(0, 0)
	var group sync.WaitGroup
	failures := make(chan error, workers)
	for worker := 0; worker < workers; worker++ {
		stream := Stream{0, gpu.NewStream(0)}
		group.Add(1)
		go func() {
			defer group.Done()
			gradient := newGPUFloats(stream, 0)
			for push := 0; push < pushes; push++ {
				gradient.set(1)
				runtime.Gosched() // mostly to another thread
				if err := store.Push(context.Background(), 1, gradient.tensor()); err != nil {
					failures <- err
					return
				}
				gradient.set(100)
			}
		}()
	}
	group.Wait()
	close(failures)
	for err := range failures {
		t.Error(err)
	}
	out := newGPUFloats(Stream{0, gpu.NewStream(0)}, 0)
	ok(t, store.Pull(context.Background(), 1, out.tensor()))
	equal(t, out.get(t), workers*pushes)
}

func TestATicketIsDoneWhenTheGPUIs(t *testing.T) {
	ctx := begin(t)
	withGPUs(t)
	store := open(t, "device", nil)
	stream := Stream{0, gpu.NewStream(0)}
	value, out := newGPUFloats(stream, 3), newGPUFloats(stream, 0)
	ok(t, store.Init(ctx, 1, newGPUFloats(stream, 0).tensor()))
	pushed, err := store.PushAsync(Pairs(1, value.tensor(), value.tensor()), 0)
	ok(t, err)
	pulled, err := store.PullAsync(Pairs(1, out.tensor()), 5)
	ok(t, err)
	ok(t, pulled.Wait(ctx))
	ok(t, pushed.Wait(ctx))
	equal(t, out.get(t), 6)
}

func TestStridesInGPUMemory(t *testing.T) {
	ctx := begin(t)
	withGPUs(t)
	store := open(t, "device", nil)
	address := gpu.Allocate(0, 24)
	gpu.Write(0, address, []float32{0, 1, 2, 3, 4, 5}, 0)
	ok(t, store.Init(ctx, 1, Stream{}.Tensor(address, F32, 2, 3)))
	turned := Stream{}.Strided(address, F32, []int{2, 3}, []int{1, 2})
	ok(t, store.Push(ctx, 1, turned))
	out := make([]float32, 6)
	ok(t, store.Pull(ctx, 1, Of(out, 2, 3)))
	equals(t, out, []float32{0, 2, 4, 1, 3, 5})
}

func TestTensorsOfGPUMemoryAreChecked(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	one, other := Stream{0, 0x1000}, Stream{0, 0x2000}
	tensor := one.Tensor(0x4000, F32, 2, 3)
	equal(t, tensor.Stream(), one)
	equal(t, tensor.Device(), GPU(0))
	equal(t, tensor.Len(), 6)
	equal(t, Stream{3, 1}.Tensor(0x4000, F32).Stream(), Stream{3, 0}) // two names of one stream
	equal(t, Of([]float32{1}).Stream(), Stream{})
	for text, pairs := range map[string][]Pair{
		"0x1000 and 0x2000": Pairs(1, tensor, other.Tensor(0x8000, F32, 2, 3)),
		"negative extent":   Pairs(1, one.Tensor(0x4000, F32, -1)),
		"differ in length":  Pairs(1, one.Strided(0x4000, F32, []int{2}, []int{1, 1})),
		"change threads":    Pairs(1, Stream{0, 2}.Tensor(0x4000, F32)),
		"memory of GPU 0":   Pairs(1, tensor.On(Device{CPU, 0})),
	} {
		err := store.PushList(ctx, pairs)
		fails(t, err, ErrInvalidArgument)
		if !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "key 1") {
			t.Errorf("%q is not in %q", text, err)
		}
	}
	equal(t, tensor.On(GPU(0)).err, nil)
	defer func() {
		if cause := fmt.Sprint(recover()); !strings.Contains(cause, "memory of GPU 0") {
			t.Errorf("panic: %v", cause)
		}
	}()
	Slice[float32](tensor)
}

func TestAStreamThatDoesNotExistIsRefused(t *testing.T) {
	ctx := begin(t)
	withGPUs(t)
	store := open(t, "device", nil)
	floats := newGPUFloats(Stream{}, 1)
	err := store.Init(ctx, 1, Stream{0, 0xABC0}.Tensor(floats.address, F32, 2, 3))
	fails(t, err, ErrInvalidArgument)
	fails(t, store.Init(ctx, 1, Stream{9, 0x1000}.Tensor(floats.address, F32)), ErrInvalidArgument)
	ok(t, store.Init(ctx, 1, floats.tensor()))
}

// The tutorial on four GPUs prints what it prints in host memory. "Device" i of
// examples/go/tutorial is GPU i here, with a stream of its own.
func TestTheTutorialOnFourGPUs(t *testing.T) {
	begin(t)
	withGPUs(t)
	golden, err := os.ReadFile("../../tests/golden/tutorial.txt")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("the package is outside of its repository")
	}
	ok(t, err)
	page := &gpuPage{T: t}
	for device := 0; device < 4; device++ {
		page.streams = append(page.streams, Stream{device, gpu.NewStream(device)})
	}
	page.first()
	page.second()
	equal(t, page.text.String(), string(golden))
}

type gpuPage struct {
	*testing.T
	streams []Stream
	text    strings.Builder
}

func (p *gpuPage) line(name string, value any) { fmt.Fprintf(&p.text, "%s: %v\n", name, value) }

// full makes an array on each of some GPUs.
func (p *gpuPage) full(devices int, value float32) []gpuFloats {
	var arrays []gpuFloats
	for _, stream := range p.streams[:devices] {
		arrays = append(arrays, newGPUFloats(stream, value))
	}
	return arrays
}

// show prints the value that all elements of all arrays have.
func (p *gpuPage) show(name string, arrays ...gpuFloats) {
	p.Helper()
	value := arrays[0].get(p)
	for _, array := range arrays {
		equal(p, array.get(p), value)
	}
	p.line(name, fmt.Sprintf("%.6g", value))
}

func tensorsOf(arrays []gpuFloats) []Tensor {
	var tensors []Tensor
	for _, array := range arrays {
		tensors = append(tensors, array.tensor())
	}
	return tensors
}

// each makes a pair of each array with the key of its place.
func each(keys []Key, arrays []gpuFloats) []Pair {
	var pairs []Pair
	for i, key := range keys {
		pairs = append(pairs, Pair{key, arrays[i].tensor()})
	}
	return pairs
}

// all makes a pair of each array with each key.
func all(keys []Key, arrays []gpuFloats) []Pair {
	var pairs []Pair
	for _, key := range keys {
		pairs = append(pairs, Pairs(key, tensorsOf(arrays)...)...)
	}
	return pairs
}

var noContext = context.Background()

func (p *gpuPage) push(store *Store, devices int, value float32) {
	ok(p, store.Push(noContext, 3, tensorsOf(p.full(devices, value))...))
}

func (p *gpuPage) pull(name string, store *Store, devices int) {
	out := p.full(devices, 0)
	ok(p, store.Pull(noContext, 3, tensorsOf(out)...))
	p.show(name, out...)
}

func (p *gpuPage) setUpdater(store *Store, factor float32) *[]Key {
	calls := new([]Key)
	ok(p, store.SetUpdater(func(key Key, input, stored Tensor) error {
		*calls = append(*calls, key)
		value := Slice[float32](stored)
		for i, x := range Slice[float32](input) {
			value[i] += factor * x
		}
		return nil
	}))
	return calls
}

func (p *gpuPage) first() {
	store := open(p, "local", nil)
	ok(p, store.Init(noContext, 3, p.full(1, 2)[0].tensor()))
	p.pull("init", store, 1)
	p.push(store, 1, 8)
	p.pull("push", store, 1)
	p.push(store, 4, 1)
	p.pull("four devices", store, 1)
	calls := p.setUpdater(store, 2)
	p.pull("updater set", store, 1)
	p.push(store, 1, 1)
	p.pull("updater push", store, 1)
	p.line("updater calls", len(*calls))
	p.line("updater key", (*calls)[0])
	p.pull("four outs", store, 4)

	keys := []Key{5, 7, 9}
	arrays := p.full(3, 1)
	*calls = nil
	ok(p, store.InitList(noContext, each(keys, arrays)))
	ok(p, store.PushList(noContext, each(keys, arrays)))
	ok(p, store.PullList(noContext, each(keys, arrays)))
	p.show("keys 5 7 9", arrays...)
	p.line("updater order", strings.Trim(fmt.Sprint(*calls), "[]"))
	out := p.full(1, 0)
	ok(p, store.PullList(noContext, all(keys, out)))
	p.show("one out of three keys", out...)
	results := p.full(4, 0)
	ok(p, store.PushList(noContext, all(keys, p.full(4, 1))))
	ok(p, store.PullList(noContext, all(keys, results)))
	p.show("list of lists", results...)
}

func (p *gpuPage) second() {
	store := open(p, "device", nil)
	ok(p, store.Init(noContext, 3, p.full(1, -2)[0].tensor()))
	p.pull("device init", store, 1)
	p.push(store, 1, -7)
	p.pull("device push", store, 1)
	p.push(store, 3, 1)
	p.pull("device three ones", store, 1)

	keys := []Key{7, 11, 13, 17}
	arrays := p.full(4, -3)
	ok(p, store.InitList(noContext, each(keys, arrays)))
	for i, key := range keys {
		device, err := store.KeyDevice(key)
		ok(p, err)
		equal(p, device, GPU(i))
	}
	ok(p, store.PullList(noContext, each(keys, arrays)))
	p.show("device keys", arrays...)
	ok(p, store.PushList(noContext, all(keys, p.full(3, -0.1))))
	ok(p, store.PullList(noContext, each(keys, arrays)))
	p.show("device multi push", arrays...)
	p.setUpdater(store, 0.01)
	p.pull("device updater set", store, 1)
	p.push(store, 1, 5)
	p.pull("device updater push", store, 1)
}
