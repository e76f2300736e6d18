// Package kvstore is the Go face of libkvstore, the key-value store of data-parallel training.
//
// A store keeps one tensor per key. Workers push gradients, the store adds up the values of each
// key and merges the sum into the stored value, and workers pull the result:
//
//	store, err := kvstore.Open("local", kvstore.Config{"threads": "4"})
//	if err != nil {
//		return err
//	}
//	defer store.Close()
//
//	weights := make([]float32, 6)
//	gradA, gradB := make([]float32, 6), make([]float32, 6)
//	err = store.Init(ctx, 3, kvstore.Of(weights, 2, 3))
//	err = store.Push(ctx, 3, kvstore.Of(gradA, 2, 3), kvstore.Of(gradB, 2, 3))
//	err = store.Pull(ctx, 3, kvstore.Of(weights, 2, 3))
//
// # Keys
//
// A [Key] is an integer from 0 to 2^63-1, or stands for a name: see [Int] and [Store.Intern].
// Constants can be used as they are; a negative one does not compile.
//
// # Tensors
//
// A [Tensor] is a view of a slice of yours, made by [Of], [Scalar] or [Strided]. Nothing is copied:
// values are read from, and outs are written to, your memory. A tensor that does not fit its slice
// is reported by the call that it is given to.
//
// # GPU memory
//
// A [Stream] makes tensors of GPU memory from addresses:
//
//	stream := kvstore.Stream{Device: 0, Handle: handle} // a CUstream or cudaStream_t
//	gradient := stream.Tensor(address, kvstore.F32, 2, 3)
//	err = store.Push(context.Background(), 3, gradient)
//
// The stream is part of the tensor, and so of each call: there is none to be named for a thread,
// since goroutines change threads. [Store.KeyDevice] says where a value is. With a context that
// cannot end, a call of such tensors alone returns when its work is queued on their stream, and what
// the program queues there afterwards comes behind it. With any other context it returns when the
// GPU is done.
//
// # Lists
//
// Push and Pull take one key and any number of tensors, one per device. The calls that end in List
// take pairs of key and tensor, in any order; equal keys are added up, or filled all. [Pairs] makes
// the pairs of one key.
//
// # Merging
//
// The sum of a push replaces the stored value, goes through a rule of the library
// ([Store.SetOptimizer]), or through a function of yours ([Store.SetUpdater]):
//
//	err = store.SetOptimizer("sgd", kvstore.Params{"learning_rate": 0.1, "momentum": 0.9})
//
// Before they are added up, values can go through a codec, as on their way through a network:
//
//	err = store.SetCompression("2bit", kvstore.Params{"threshold": 0.5})
//
// # Contexts and memory
//
// Every call that may block takes a context first. Memory given to an operation is lent, and stays
// pinned, until the operation has ended:
//
//   - A call whose context ends cancels its operation, and returns an error that matches
//     ctx.Err() once the memory is yours again. If an updater holds the operation up for more than
//     a second, the error matches [ErrLent] too: the memory is then in use until the operation ends.
//   - Calls that end in Async return a [Ticket]. A context that ends during [Ticket.Wait] ends the
//     wait only; [Ticket.Cancel] ends the operation. [Ticket.Done] is a channel for select: the
//     library closes it, and no thread waits, however many operations are in flight.
//
// A context that can never end (context.Background) costs least: the call then runs on the calling
// thread, for as long as the option timeout_ms allows. With any other context it runs on a thread
// of the library.
//
// # Order
//
// Operations of one goroutine that share a key take effect in the order in which they were started,
// whatever their priority and on whichever thread: a Pull sees the PushAsync before it.
//
// # Roles
//
// A process of a distributed job is a worker, a server or the scheduler: [Store.Role] says which.
// Workers do what this page describes; the others call [Store.Serve], so that one program serves all:
//
//	role, err := store.Role()
//	if role != kvstore.RoleWorker {
//		return store.Serve(ctx) // until the job ends
//	}
//
// # Errors
//
// An error of the library is an [*Error] with a [Status] and a message that names the key, the
// shapes and what to do. Each status is an error value of its own for errors.Is:
//
//	if errors.Is(err, kvstore.ErrShapeMismatch) { ... }
//
// # The library
//
// The package finds libkvstore with pkg-config, under the name kvstore.
package kvstore
