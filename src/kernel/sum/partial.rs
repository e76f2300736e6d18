//! A binary tree over positions that is added up from left to right, with a stack of partial sums
//! (also called: cascade summation, a binary counter).

use std::convert::Infallible;

/// A leaf of the tree: leaves are added by ascending positions, and some may be missing.
pub(crate) type Position = u128;

/// The partial sums of a tree, from the left. Each but the last is the left half of a node above
/// all sums behind it, so there is at most one for each bit of a position, and the last.
pub(crate) struct PartialSums<T>(Vec<(Position, T)>);

impl<T> Default for PartialSums<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> PartialSums<T> {
    /// Forgets the sums; their list keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a leaf behind all others, once the halves that are complete then are joined. After an
    /// error of `join` the sums are of no use.
    pub(crate) fn add<E>(
        &mut self,
        position: Position,
        leaf: T,
        mut join: impl FnMut(T, T) -> Result<T, E>,
    ) -> Result<(), E> {
        while let [.., (left, _), (right, _)] = &*self.0
            && is_one_half(*left, *right, position)
        {
            self.join(&mut join)?;
        }
        self.0.push((position, leaf));
        Ok(())
    }

    /// Joins the sums, from the right, until at most so many are left.
    #[cfg(any(test, feature = "dist"))]
    pub(crate) fn join_to<E>(
        &mut self,
        most: usize,
        mut join: impl FnMut(T, T) -> Result<T, E>,
    ) -> Result<(), E> {
        while self.0.len() > most.max(1) {
            self.join(&mut join)?;
        }
        Ok(())
    }

    fn join<E>(&mut self, join: &mut impl FnMut(T, T) -> Result<T, E>) -> Result<(), E> {
        if let Some((_, right)) = self.0.pop()
            && let Some((position, left)) = self.0.pop()
        {
            self.0.push((position, join(left, right)?));
        }
        Ok(())
    }

    /// Takes the sums, from the left, each with the position of its first leaf.
    #[cfg(any(test, feature = "dist"))]
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (Position, T)> {
        self.0.drain(..)
    }

    #[cfg(feature = "dist")]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl PartialSums<()> {
    /// Gives for each of these positions but the last how many sums are joined before the next leaf
    /// is added.
    pub(crate) fn list_joins(
        &mut self,
        positions: impl Iterator<Item = Position>,
        mut joins: impl FnMut(u8),
    ) {
        self.clear();
        for (index, position) in positions.enumerate() {
            let mut count = 0;
            let Ok(()) = self.add(position, (), |(), ()| {
                count += 1;
                Ok::<_, Infallible>(())
            });
            if index > 0 {
                joins(count);
            }
        }
    }
}

/// Whether two leaves are in one half of the smallest node that has the second and the next leaf.
fn is_one_half(first: Position, second: Position, next: Position) -> bool {
    let half = (second ^ next).checked_ilog2().unwrap_or(0);
    first >> half == second >> half
}

#[cfg(test)]
mod tests {
    use super::PartialSums;
    use kvstore_protocol::testing::Random;

    /// The tree over some positions of a range of a power of two, as a text.
    fn tree(positions: &[u128], start: u128, size: u128) -> String {
        let inside: Vec<u128> =
            positions.iter().copied().filter(|it| (start..start + size).contains(it)).collect();
        match inside[..] {
            [] => String::new(),
            [only] => only.to_string(),
            _ => {
                let (left, right) =
                    (tree(positions, start, size / 2), tree(positions, start + size / 2, size / 2));
                match (&*left, &*right) {
                    ("", only) | (only, "") => only.into(),
                    _ => format!("({left}+{right})"),
                }
            }
        }
    }

    #[test]
    fn partial_sums_of_any_positions_are_the_tree_over_them() {
        let mut random = Random::new(64);
        for bits in 0..8 {
            for _ in 0..200 {
                let size = 1u128 << bits;
                let share = 1 + random.below(4);
                let mut positions: Vec<u128> =
                    (0..size).filter(|_| random.below(4) < share).collect();
                positions.truncate(40);
                if positions.is_empty() {
                    continue;
                }
                let mut sums = PartialSums::default();
                let mut most = 0;
                let join = |left: String, right: String| Ok::<_, ()>(format!("({left}+{right})"));
                for &position in &positions {
                    sums.add(position, position.to_string(), join).unwrap();
                    most = most.max(sums.0.len());
                }
                assert!(most <= bits + 1, "{most} sums at a time for {bits} bits");
                sums.join_to(1, join).unwrap();
                let found: Vec<String> = sums.drain().map(|(_, sum)| sum).collect();
                assert_eq!(found, [tree(&positions, 0, size)], "{positions:?}");
            }
        }
    }
}
