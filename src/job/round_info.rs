//! Weights, scales and numbers of values on the wire, and who took part in the last round of a slice.

use crate::error::{Result, fail};
use crate::key::KeyRound;

/// Who took part in the last round of a slice.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RoundInfo {
    pub(crate) contributors: u64,
    pub(crate) total_weight: f64,
}

/// The weight or the scale of a push as its message has it. 0 stands for none, so the number 0 is a negative zero.
pub(crate) fn bits_of(number: Option<f64>) -> u64 {
    number.map_or(0, |number| if number == 0.0 { (-0.0f64).to_bits() } else { number.to_bits() })
}

/// The weight or the scale in a message.
pub(crate) fn number_of(bits: u64) -> Option<f64> {
    (bits != 0).then(|| f64::from_bits(bits) + 0.0)
}

/// The part of a push in the tree of its round, as its message has it; a worker without a tree sends none.
pub(crate) fn part_of(rank: u32, leaves: u32) -> u64 {
    u64::from(leaves) << 32 | u64::from(rank.wrapping_mul(leaves))
}

/// The number of values of a push in a message; 0 if it does not say so.
pub(crate) fn leaves_of(part: u64) -> u32 {
    u32::try_from(part >> 32).unwrap_or(0)
}

impl RoundInfo {
    pub(crate) fn encode(self) -> [[u8; 8]; 2] {
        [self.contributors.to_le_bytes(), self.total_weight.to_le_bytes()]
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let ([contributors, weight], []) = bytes.as_chunks::<8>() else {
            return Err(fail!(Corrupt, "a server answered with what is no round"));
        };
        let contributors = u64::from_le_bytes(*contributors);
        Ok(Self { contributors, total_weight: f64::from_le_bytes(*weight) })
    }
}

/// The round of a key whose slices are all of one. After the loss of a worker they may differ in its push: the
/// fewest contributors count.
pub(crate) fn joined(round: u64, slices: &[Vec<u8>]) -> Result<KeyRound> {
    let mut fewest: Option<RoundInfo> = None;
    for slice in slices {
        let info = RoundInfo::decode(slice)?;
        fewest = fewest.filter(|it| it.contributors <= info.contributors).or(Some(info));
    }
    let RoundInfo { contributors, total_weight } = fewest.unwrap_or_default();
    Ok(KeyRound { round, contributors, total_weight })
}

#[cfg(test)]
mod tests {
    use super::{RoundInfo, bits_of, joined, number_of};
    use crate::ErrorKind;

    #[test]
    fn every_weight_differs_from_none_on_the_wire() {
        for weight in [0.0, 1.0, 32.0, 0.1] {
            assert_ne!(bits_of(Some(weight)), 0);
            let read = number_of(bits_of(Some(weight))).unwrap();
            assert_eq!(read.to_bits(), f64::to_bits(weight));
        }
        assert_eq!((bits_of(None), number_of(0)), (0, None));
    }

    #[test]
    fn the_slice_with_the_fewest_contributors_counts() {
        let slice =
            |contributors, total_weight| RoundInfo { contributors, total_weight }.encode().concat();
        let round = joined(7, &[slice(3, 9.0), slice(2, 5.0), slice(3, 9.0)]).unwrap();
        assert_eq!((round.round, round.contributors, round.total_weight), (7, 2, 5.0));
        for bad in [vec![], vec![0; 15], vec![0; 17], vec![0; 24]] {
            assert_eq!(joined(1, &[bad]).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
