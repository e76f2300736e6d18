//! Digests of a slice on the wire: those of its value, and of the arrays of its state.

use crate::digest::{KeyDigest, RunDigest};
use crate::error::{Result, fail};

/// Bytes of one digest: the sum, and the length of what it is of.
const ENTRY: usize = 16;

/// Encodes the digest of a value, and those of the arrays of its state.
pub(crate) fn encode(runs: impl IntoIterator<Item = RunDigest>) -> Vec<u8> {
    let fields = |run: RunDigest| [run.sum.to_le_bytes(), run.len.to_le_bytes()];
    runs.into_iter().flat_map(fields).flatten().collect()
}

/// Digests of a key of this many bytes, from those of all its slices in order.
pub(crate) fn joined(round: u64, bytes: u64, slices: &[Vec<u8>]) -> Result<KeyDigest> {
    let unfit = || fail!(Corrupt, "a server answered with digests that do not fit the key");
    let mut arrays: Vec<RunDigest> = Vec::new();
    for slice in slices {
        let (entries, rest) = slice.as_chunks::<ENTRY>();
        if !rest.is_empty() || entries.is_empty() {
            return Err(unfit());
        }
        if arrays.is_empty() {
            arrays.resize(entries.len(), RunDigest::default());
        }
        if arrays.len() != entries.len() {
            return Err(unfit());
        }
        for (array, entry) in arrays.iter_mut().zip(entries) {
            let ([sum, len], _) = entry.as_chunks::<8>() else { return Err(unfit()) };
            let next = RunDigest { sum: u64::from_le_bytes(*sum), len: u64::from_le_bytes(*len) };
            *array = array.then(next);
        }
    }
    match arrays.split_first() {
        Some((value, states)) if value.len == bytes => {
            let state = RunDigest::joined(states.iter().copied()).sum;
            Ok(KeyDigest { round, value: value.sum, state })
        }
        _ => Err(unfit()),
    }
}

#[cfg(test)]
mod tests {
    use super::{encode, joined};
    use crate::ErrorKind;
    use crate::digest::RunDigest;

    #[test]
    fn digests_of_slices_are_those_of_the_key() {
        let value: Vec<u8> = (0..100).collect();
        let state: Vec<u8> = (100..200).collect();
        let whole = RunDigest::of(&value);
        for cut in [0, 1, 40, 99, 100] {
            let slice = |from: usize, to: usize| {
                encode([&value[from..to], &state[from..to], &value[from..to]].map(RunDigest::of))
            };
            let key = joined(7, 100, &[slice(0, cut), slice(cut, 100)]).unwrap();
            let states = RunDigest::joined([&state, &value].map(|it| RunDigest::of(it)));
            assert_eq!((key.round, key.value, key.state), (7, whole.sum, states.sum), "{cut}");
        }
        assert_eq!(joined(1, 0, &[encode([RunDigest::of(&[])])]).unwrap().state, 0);
    }

    #[test]
    fn an_answer_that_does_not_fit_is_an_error() {
        let (one, two) = (encode([RunDigest::of(&[1; 8])]), encode([RunDigest::of(&[1; 8]); 2]));
        for slices in [
            vec![],
            vec![vec![]],
            vec![one[..15].to_vec()],
            vec![one.clone(), two.clone()],
            vec![two.clone(), one.clone()],
            vec![one.clone(), one.clone(), vec![0; 17]],
        ] {
            let error = joined(1, 16, &slices).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{slices:?}");
        }
        assert!(joined(1, 16, &[one.clone(), one.clone()]).is_ok());
        assert!(joined(1, 17, &[one.clone(), one]).is_err());
        // Lengths near the end of the range do not overflow.
        let huge = encode([RunDigest { sum: 5, len: u64::MAX }]);
        assert!(joined(1, 16, &[huge.clone(), huge]).is_err());
    }
}
