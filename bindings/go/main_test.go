package kvstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain checks in the end that nothing was left behind: no goroutine, no store.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		code = leftBehind()
	}
	os.Exit(code)
}

func leftBehind() int {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		stores := 0
		unclosed.Range(func(any, any) bool { stores++; return true })
		goroutines := ours()
		if len(goroutines) == 0 && stores == 0 {
			return 0
		}
		if time.Now().After(end) {
			fmt.Printf("%d stores are left, and these goroutines:\n%s\n", stores,
				strings.Join(goroutines, "\n\n"))
			return 1
		}
	}
}

// ours returns the goroutines that run code of this package, apart from the one that asks. Threads
// of the library that have called an updater have goroutines too, which are the runtime's.
func ours() []string {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	var found []string
	for _, stack := range strings.Split(string(stacks), "\n\n")[1:] {
		if strings.Contains(stack, "libkvstore/bindings/go.") {
			found = append(found, stack)
		}
	}
	return found
}

const testTimeout = time.Minute

// begin gives a test its deadline. A call that ignores the context ends the test run.
func begin(t testing.TB) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), testTimeout)
	watchdog := time.AfterFunc(testTimeout+10*time.Second, func() {
		panic(t.Name() + " takes too long")
	})
	t.Cleanup(func() {
		stop()
		watchdog.Stop()
	})
	return ctx
}

// open opens a store that is closed with the test.
func open(t testing.TB, storeType string, config Config) *Store {
	t.Helper()
	store, err := Open(storeType, config)
	ok(t, err)
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return store
}

// bothWays runs a test on the calling thread (a context without end) and through a ticket.
func bothWays(t *testing.T, test func(t *testing.T, ctx context.Context)) {
	t.Run("direct", func(t *testing.T) {
		begin(t)
		test(t, context.Background())
	})
	t.Run("ticket", func(t *testing.T) { test(t, begin(t)) })
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("error: %v", err)
	}
}

// fails wants an error that matches, and that has a text of its own beside the name of the status.
func fails(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
	var detail *Error
	if errors.As(err, &detail) && detail.Message == "" {
		t.Fatalf("error %v has no message", err)
	}
}

func equal[T comparable](t testing.TB, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func equals[T comparable](t testing.TB, got, want []T) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("element %d is %v, want %v", i, got[i], want[i])
		}
	}
}

// filled makes a slice of one number.
func filled[T any](size int, number T) []T {
	slice := make([]T, size)
	for i := range slice {
		slice[i] = number
	}
	return slice
}

// addTo is the updater stored += input of a float32 key.
func addTo(_ Key, input, stored Tensor) error {
	sum := Slice[float32](stored)
	for i, x := range Slice[float32](input) {
		sum[i] += x
	}
	return nil
}

// gate is an updater that waits to be let through; entered says that it waits.
type gate struct {
	entered chan Key
	open    chan struct{}
}

func newGate() *gate { return &gate{make(chan Key, 16), make(chan struct{})} }

func (g *gate) update(key Key, input, stored Tensor) error {
	g.entered <- key
	<-g.open
	return addTo(key, input, stored)
}
