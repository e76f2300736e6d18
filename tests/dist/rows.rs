//! Rows of keys that are spread over slices whose borders cut rows.

use kvstore::Key;

use super::job::Job;

/// The rows that a rank pushes in a round: some twice, some that others push too.
fn ids(rank: usize, round: usize, rows: i64) -> Vec<i64> {
    let next = |i: usize| ((rank * 5 + round * 7 + i * 3) as i64) % rows;
    (0..6).map(next).chain([next(2)]).collect()
}

fn number(rank: usize, round: usize, i: usize, column: usize) -> f32 {
    let mixed = (rank * 31 + round * 17 + i * 7 + column) as f32;
    (mixed * 0.37).sin() * 3.0
}

/// What the servers must have, by a loop: each worker sums its rows in order, then the workers by
/// rank; `merge` changes a row that was pushed.
fn expected(
    workers: usize,
    rounds: usize,
    rows: usize,
    length: usize,
    merge: fn(stored: &mut f32, sum: f32),
) -> Vec<f32> {
    let mut stored: Vec<f32> = (0..rows * length).map(|i| i as f32 * 0.01).collect();
    for round in 0..rounds {
        let mut sums: Vec<Option<Vec<f32>>> = vec![None; rows];
        for rank in 0..workers {
            let mut own: Vec<Option<Vec<f32>>> = vec![None; rows];
            for (i, id) in ids(rank, round, rows as i64).into_iter().enumerate() {
                let row = (0..length).map(|column| number(rank, round, i, column));
                let place = &mut own[id as usize];
                *place = Some(match place.take() {
                    None => row.collect(),
                    Some(sum) => sum.iter().zip(row).map(|(sum, value)| sum + value).collect(),
                });
            }
            for (sum, own) in sums.iter_mut().zip(own) {
                let Some(own) = own else { continue };
                *sum = Some(match sum.take() {
                    None => own,
                    Some(sum) => sum.iter().zip(own).map(|(sum, value)| sum + value).collect(),
                });
            }
        }
        for (row, sum) in sums.into_iter().enumerate() {
            for (column, value) in sum.into_iter().flatten().enumerate() {
                merge(&mut stored[row * length + column], value);
            }
        }
    }
    stored
}

fn run(optimizer: Option<(&'static str, &'static str)>, merge: fn(&mut f32, f32)) {
    let (workers, rounds) = (3, 4);
    // Rows of 300 elements in slices of 2,048; rows of 2,500 over two slices; one slice.
    for (rows, length, servers) in [(40usize, 300usize, 2), (9, 2_500, 3), (11, 10, 1)] {
        let job = Job::new(workers, servers).with("slice_bytes", 8192);
        let results = job.run(move |store, rank| {
            let key = Key::from(4u64);
            let shape = [rows as i64, length as i64];
            let first: Vec<f32> = (0..rows * length).map(|i| i as f32 * 0.01).collect();
            store.init(key, kvstore::Tensor::new(&first, &shape).unwrap()).unwrap();
            if let Some((name, params)) = optimizer {
                store.set_optimizer(name, params).unwrap();
            }
            for round in 0..rounds {
                let ids = ids(rank, round, rows as i64);
                let value: Vec<f32> = (0..ids.len())
                    .flat_map(|i| (0..length).map(move |column| number(rank, round, i, column)))
                    .collect();
                let shape = [ids.len() as i64, length as i64];
                let value = kvstore::Tensor::new(&value, &shape).unwrap();
                store.push_rows(key, &ids[..], value).unwrap();
            }
            let mut all = vec![0.0f32; rows * length];
            store.pull(key, kvstore::TensorMut::new(&mut all, &shape).unwrap()).unwrap();
            let wanted = [8i64, 0, 8, rows as i64 - 1];
            let mut some = vec![0.0f32; wanted.len() * length];
            let shape = [wanted.len() as i64, length as i64];
            let out = kvstore::TensorMut::new(&mut some, &shape).unwrap();
            store.pull_rows(key, &wanted[..], out).unwrap();
            for (row, id) in some.chunks(length).zip(wanted) {
                let start = id as usize * length;
                assert!(row == &all[start..start + length], "row {id}");
            }
            all
        });
        let expected = expected(workers, rounds, rows, length, merge);
        for all in results {
            let bits = |values: &[f32]| values.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
            assert!(bits(&all) == bits(&expected), "{rows} rows of {length}");
        }
    }
}

#[test]
fn pushed_rows_are_replaced_by_their_sums_in_the_order_of_ranks() {
    run(None, |stored, sum| *stored = sum);
}

#[test]
fn a_rule_changes_the_pushed_rows() {
    run(Some(("test", "")), |stored, sum| *stored += sum);
}
