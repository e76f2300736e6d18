//! Hints for misspelt names.

/// What to say after "there is no ... X;": the known names that it may be a slip of, else all.
pub(crate) fn near<'a>(name: &str, what: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    let distance = |known: &str| strsim::damerau_levenshtein(known, &name.to_lowercase());
    let mut near: Vec<(usize, &str)> = known
        .iter()
        .map(|known| (distance(known), *known))
        .filter(|&(distance, known)| distance <= 1 + known.len() / 3)
        .collect();
    near.sort_unstable();
    let near: Vec<&str> = near.into_iter().take(3).map(|(_, known)| known).collect();
    if near.is_empty() {
        return format!("the {what} are {}", known.join(", "));
    }
    format!("did you mean {}?", near.join(" or "))
}
