package kvstore

import "context"

// Rows is some rows of a key: which, and a tensor of them. A row is what one index of the first
// axis selects.
type Rows struct {
	Key Key
	// IDs has int64 of any shape, each from 0 to below the key's first extent, in any order, also
	// repeated. It is copied.
	IDs Tensor
	// Tensor has the shape of IDs, followed by that of a row.
	Tensor Tensor
}

// PushRows merges values into some rows of a key. What is pushed to one row is added up. Without
// updater and optimizer exactly these rows are replaced. An updater gets the dense sum, and so does
// an optimizer, unless its option lazy_update is set: then it changes these rows alone.
func (s *Store) PushRows(ctx context.Context, key Key, ids []int64, rows Tensor) error {
	return s.PushRowsList(ctx, []Rows{{key, Of(ids), rows}})
}

// PushRowsList pushes rows of many keys; those of equal keys are added up.
func (s *Store) PushRowsList(ctx context.Context, values []Rows) error {
	ids, rows := split(values)
	return s.run(ctx, pushRows, ids, rows)
}

// PushRowsAsync starts a push of rows. Larger priorities run earlier among the operations that wait.
func (s *Store) PushRowsAsync(values []Rows, priority int32) (*Ticket, error) {
	ids, rows := split(values)
	return s.start(pushRows, ids, rows, priority)
}

// PullRows copies rows of the stored value out: row i of out gets row ids[i].
func (s *Store) PullRows(ctx context.Context, key Key, ids []int64, out Tensor) error {
	return s.PullRowsList(ctx, []Rows{{key, Of(ids), out}})
}

// PullRowsList pulls rows of many keys.
func (s *Store) PullRowsList(ctx context.Context, outs []Rows) error {
	ids, rows := split(outs)
	return s.run(ctx, pullRows, ids, rows)
}

// PullRowsAsync starts a pull of rows. Larger priorities run earlier among the operations that wait.
func (s *Store) PullRowsAsync(outs []Rows, priority int32) (*Ticket, error) {
	ids, rows := split(outs)
	return s.start(pullRows, ids, rows, priority)
}

// split gives the pairs of ids and the pairs of rows.
func split(all []Rows) (ids, rows []Pair) {
	ids, rows = make([]Pair, len(all)), make([]Pair, len(all))
	for i, each := range all {
		ids[i] = Pair{each.Key, each.IDs}
		rows[i] = Pair{each.Key, each.Tensor}
	}
	return ids, rows
}
