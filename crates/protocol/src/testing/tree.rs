//! Sums by a binary tree, by their definition.

/// The binary tree over leaves at ascending positions: the halves of the smallest range of a power of two that has
/// all of them, each added up by itself.
pub fn tree_of<P: Copy + Into<u128>, T: Copy>(
    leaves: &[(P, T)],
    add: impl Fn(T, T) -> T + Copy,
) -> T {
    let place = |at: usize| -> u128 { leaves[at].0.into() };
    let (first, last) = (place(0), place(leaves.len() - 1));
    let (mut start, mut size) = (first, 1);
    while last >= start + size {
        size *= 2;
        start = first / size * size;
    }
    if size == 1 {
        return leaves[0].1;
    }
    // Both halves have leaves, as the range is the smallest one.
    let middle = leaves.partition_point(|&(at, _)| at.into() < start + size / 2);
    let (left, right) = leaves.split_at(middle);
    add(tree_of(left, add), tree_of(right, add))
}
