//! Norms of gradients and their clipping by the words of docs/use/semantics.md.

/// The sum of the squares of a gradient: blocks of 2,048, eight sums in each, which are added in pairs.
pub fn squares(gradient: &[f64]) -> f64 {
    gradient.chunks(2048).fold(0.0, |all, block| {
        let mut sums = [0.0; 8];
        block.iter().enumerate().for_each(|(at, number)| sums[at % 8] += number * number);
        for half in [4, 2, 1] {
            (0..half).for_each(|at| sums[at] += sums[at + half]);
        }
        all + sums[0]
    })
}

/// What gradients of a norm are multiplied by.
pub fn factor(max_norm: f64, norm: f64) -> f64 {
    (max_norm / (norm + 1e-6)).min(1.0)
}
