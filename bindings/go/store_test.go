package kvstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestOpenKnowsTheTypes(t *testing.T) {
	begin(t)
	for name, want := range map[string]string{
		"local": "local", "LOCAL": "local", "local_update_cpu": "local",
		"local_allreduce_cpu": "local", "device": "device", "local_allreduce_device": "device",
	} {
		got, err := open(t, name, nil).Type()
		ok(t, err)
		equal(t, got, want)
	}
	_, err := Open("lokal", nil)
	fails(t, err, ErrInvalidArgument)
	if !strings.Contains(err.Error(), "local") {
		t.Errorf("%v does not list the types", err)
	}
	// A library with the distributed stores misses an option, one without them says so.
	_, err = Open("dist_sync", nil)
	if !errors.Is(err, ErrOption) && !errors.Is(err, ErrUnsupported) {
		t.Errorf("a distributed store without options: %v", err)
	}
	_, err = Open("local\x00", nil)
	fails(t, err, ErrInvalidArgument)
}

func TestOpenChecksTheOptions(t *testing.T) {
	begin(t)
	for _, config := range []Config{
		{"thread": "1"}, {"threads": "many"}, {"isa": "abacus"}, {"threads": "1", "updater_undo": "x"},
	} {
		_, err := Open("local", config)
		fails(t, err, ErrOption)
	}
	_, err := Open("local", Config{"thre\x00ads": "1"})
	fails(t, err, ErrInvalidArgument)
	_, err = Open("local", Config{"threads": "1\x00"})
	fails(t, err, ErrInvalidArgument)
	stats, err := open(t, "local", Config{"threads": "3", "isa": "scalar"}).Stats()
	ok(t, err)
	equal(t, stats.Threads, 3)
	equal(t, stats.ISA, "scalar")
}

func TestLocalStoresAreAJobOfOneWorker(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	role, err := store.Role()
	ok(t, err)
	equal(t, role, RoleWorker)
	equal(t, role.String(), "worker")
	equal(t, RoleServer.String(), "server")
	equal(t, RoleScheduler.String(), "scheduler")
	equal(t, Role(9).String(), "Role(9)")
	rank, err := store.Rank()
	ok(t, err)
	equal(t, rank, 0)
	workers, err := store.NumWorkers()
	ok(t, err)
	equal(t, workers, 1)
	lost, err := store.NumLost()
	ok(t, err)
	equal(t, lost, 0)
	ok(t, store.Barrier(ctx))
	ok(t, store.Barrier(context.Background()))
	ok(t, store.Done())
}

func TestVersions(t *testing.T) {
	begin(t)
	equal(t, Capable("optimizer"), true)
	equal(t, Capable("teleport"), false)
	equal(t, strings.Count(Version(), "."), 2)
	equal(t, ABIVersion(), 0)
}

// The test runs itself with a library in front that says another number.
func TestAnotherBinaryInterfaceIsRefused(t *testing.T) {
	if os.Getenv("KV_TEST_OTHER_ABI") != "" {
		_, err := Open("local", nil)
		fails(t, err, ErrUnsupported)
		fmt.Println(err)
		return
	}
	source, library := filepath.Join(t.TempDir(), "other.c"), filepath.Join(t.TempDir(), "libother.so")
	ok(t, os.WriteFile(source, []byte("unsigned kv_abi_version(void) { return 99; }\n"), 0o600))
	ok(t, exec.Command("cc", "-shared", "-fPIC", "-o", library, source).Run())
	again := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	again.Env = append(os.Environ(), "KV_TEST_OTHER_ABI=yes", "LD_PRELOAD="+library)
	said, err := again.CombinedOutput()
	if err != nil || !strings.Contains(string(said), "has binary interface 99, this program was built for 0") {
		t.Errorf("%v: %s", err, said)
	}
}

func TestStatsCount(t *testing.T) {
	begin(t)
	ctx := context.Background()
	store := open(t, "local", nil)
	ok(t, store.Init(ctx, 1, Of(make([]float32, 10))))
	ok(t, store.SetUpdater(addTo))
	ok(t, store.Push(ctx, 1, Of(make([]float32, 10))))
	ok(t, store.Pull(ctx, 1, Of(make([]float32, 10))))
	ok(t, store.Pull(ctx, 1, Of(make([]float32, 10))))
	stats, err := store.Stats()
	ok(t, err)
	equal(t, stats.Type, "local")
	equal(t, stats.Keys, 1)
	equal(t, stats.Bytes, 40)
	equal(t, stats.Pushes, 1)
	equal(t, stats.Pulls, 2)
	equal(t, stats.PushBytes, 40)
	equal(t, stats.PullBytes, 80)
	equal(t, stats.UpdaterCalls, 1)
	equal(t, stats.Pending, 0)
	equal(t, stats.Failed, 0)
	long, err := store.stats(1024)
	ok(t, err)
	short, err := store.stats(1)
	ok(t, err)
	equal(t, string(short), string(long))
}

func TestEveryMethodAnswersErrClosedAfterClose(t *testing.T) {
	ctx := begin(t)
	one := Of([]float32{1})
	pairs := Pairs(1, one)
	closed, err := Open("local", nil)
	ok(t, err)
	ok(t, closed.Close())
	ok(t, closed.Close())
	ok(t, closed.Shutdown(ctx))
	closed.Abort()
	for _, store := range []*Store{closed, new(Store)} {
		for name, err := range afterClose(store, ctx, one, pairs) {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestAnAbortedStoreAnswersQuestionsButDoesNoWork(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	out := Of([]float32{1})
	ok(t, store.Init(ctx, 1, out))
	store.Abort()
	store.Abort()
	for _, err := range []error{
		store.Init(ctx, 2, out), store.Push(ctx, 1, out), store.Pull(ctx, 1, out),
		store.Pull(context.Background(), 1, out), store.Remove(ctx, 1), store.SetUpdater(addTo),
	} {
		fails(t, err, ErrClosed)
	}
	dtype, _, err := store.KeyInfo(1)
	ok(t, err)
	equal(t, dtype, F32)
}

func afterClose(store *Store, ctx context.Context, one Tensor, pairs []Pair) map[string]error {
	_, errPushAsync := store.PushAsync(pairs, 0)
	_, errPullAsync := store.PullAsync(pairs, 0)
	_, errPushPullAsync := store.PushPullAsync(pairs, pairs, 0)
	_, errBroadcastAsync := store.BroadcastAsync(pairs, pairs, 0)
	_, errIntern := store.Intern("x")
	_, errKeys := store.Keys()
	_, _, errKeyInfo := store.KeyInfo(1)
	_, errKeyName := store.KeyName(nameBit)
	_, errStats := store.Stats()
	_, errType := store.Type()
	_, errRole := store.Role()
	_, errRank := store.Rank()
	_, errNumWorkers := store.NumWorkers()
	_, errNumLost := store.NumLost()
	return map[string]error{
		"Init":          store.Init(ctx, 1, one),
		"Push":          store.Push(ctx, 1, one),
		"PushDirect":    store.Push(context.Background(), 1, one),
		"Pull":          store.Pull(ctx, 1, one),
		"PushPull":      store.PushPull(ctx, 1, []Tensor{one}, []Tensor{one}),
		"Broadcast":     store.Broadcast(ctx, 1, one, one),
		"Remove":        store.Remove(ctx, 1),
		"WaitAll":       store.WaitAll(ctx),
		"Barrier":       store.Barrier(ctx),
		"Done":          store.Done(),
		"Serve":         store.Serve(ctx),
		"SetUpdater":    store.SetUpdater(addTo),
		"SetUpdaterNil": store.SetUpdater(nil),
		"PushAsync":     errPushAsync, "PullAsync": errPullAsync,
		"PushPullAsync": errPushPullAsync, "BroadcastAsync": errBroadcastAsync,
		"Intern": errIntern, "Keys": errKeys, "KeyInfo": errKeyInfo, "KeyName": errKeyName,
		"Stats": errStats, "Type": errType, "Role": errRole, "Rank": errRank,
		"NumWorkers": errNumWorkers, "NumLost": errNumLost,
	}
}

func TestManyMayCloseWhileManyPush(t *testing.T) {
	begin(t)
	for round := 0; round < 20; round++ {
		store, err := Open("local", nil)
		ok(t, err)
		ok(t, store.Init(context.Background(), 1, Of(make([]float32, 100))))
		var group sync.WaitGroup
		for i := 0; i < 8; i++ {
			group.Add(1)
			go func(closer bool) {
				defer group.Done()
				value := Of(make([]float32, 100))
				for store.Push(context.Background(), 1, value) == nil {
					if closer {
						if err := store.Close(); err != nil {
							t.Errorf("close: %v", err)
						}
					}
				}
			}(i%2 == 0)
		}
		group.Wait()
	}
}

func TestShutdownLeavesTheStoreOpenWhenTimeIsUp(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	ok(t, store.Init(ctx, 1, Of([]float32{1})))
	gate := newGate()
	ok(t, store.SetUpdater(gate.update))
	ticket, err := store.PushAsync(Pairs(1, Of([]float32{1})), 0)
	ok(t, err)
	<-gate.entered
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	fails(t, store.Shutdown(short), context.DeadlineExceeded)
	close(gate.open)
	ok(t, ticket.Wait(ctx))
	out := make([]float32, 1)
	ok(t, store.Pull(ctx, 1, Of(out)))
	equal(t, out[0], 2)
	ok(t, store.Shutdown(ctx))
	fails(t, store.Pull(ctx, 1, Of(out)), ErrClosed)
}

func TestCloseFinishesWhatIsInFlight(t *testing.T) {
	ctx := begin(t)
	store, err := Open("local", nil)
	ok(t, err)
	ok(t, store.Init(ctx, 1, Of(make([]float32, 1000))))
	var calls int
	ok(t, store.SetUpdater(func(Key, Tensor, Tensor) error { calls++; return nil }))
	var tickets []*Ticket
	for i := 0; i < 50; i++ {
		ticket, err := store.PushAsync(Pairs(1, Of(make([]float32, 1000))), 0)
		ok(t, err)
		tickets = append(tickets, ticket)
	}
	ok(t, store.Close())
	equal(t, calls, 50)
	for _, ticket := range tickets {
		<-ticket.Done()
		ok(t, ticket.Wait(ctx))
		ok(t, ticket.Cancel(ctx))
	}
}

func TestAbortEndsWaiters(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	ok(t, store.Init(ctx, 1, Of([]float32{1})))
	gate := newGate()
	ok(t, store.SetUpdater(gate.update))
	first, err := store.PushAsync(Pairs(1, Of([]float32{1})), 0)
	ok(t, err)
	<-gate.entered
	second, err := store.PushAsync(Pairs(1, Of([]float32{1})), 0)
	ok(t, err)
	waited := make(chan error, 1)
	go func() { waited <- second.Wait(context.Background()) }()
	store.Abort()
	fails(t, <-waited, ErrClosed)
	close(gate.open)
	<-first.Done()
}

// The updater stands for one that never returns; the library gives up what it holds.
func TestCloseDoesNotWaitForEver(t *testing.T) {
	for _, async := range []bool{false, true} {
		ctx := begin(t)
		store, err := Open("local", Config{"timeout_ms": "100"})
		ok(t, err)
		ok(t, store.Init(ctx, 1, Of([]float32{1})))
		gate := newGate()
		ok(t, store.SetUpdater(gate.update))
		ended := make(chan error, 1)
		if async {
			ticket, err := store.PushAsync(Pairs(1, Of([]float32{1})), 0)
			ok(t, err)
			<-gate.entered
			fails(t, store.closeWithin(50*time.Millisecond), context.DeadlineExceeded)
			ended <- ticket.Wait(ctx)
			<-ticket.Done()
		} else {
			go func() { ended <- store.Push(context.Background(), 1, Of([]float32{1})) }()
			<-gate.entered
			store.Abort()
			_ = store.Close()
		}
		fails(t, store.Done(), ErrClosed)
		ok(t, store.Close())
		close(gate.open)
		if err := <-ended; async {
			fails(t, err, ErrClosed)
		}
	}
}

func TestAbortFromInsideAnUpdater(t *testing.T) {
	ctx := begin(t)
	store := open(t, "local", nil)
	ok(t, store.Init(ctx, 1, Of([]float32{1})))
	ok(t, store.SetUpdater(func(Key, Tensor, Tensor) error { store.Abort(); return nil }))
	_ = store.Push(context.Background(), 1, Of([]float32{1}))
	fails(t, store.Push(ctx, 1, Of([]float32{1})), ErrClosed)
}
