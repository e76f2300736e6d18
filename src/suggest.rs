//! Hints for misspelt names.

/// The rest of "there is no ... X;": the known names within a few typing errors, else all.
pub(crate) fn near<'a>(name: &str, what: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    let most = |known: &str| 1 + known.len() / 3;
    let distance = |known: &str| strsim::damerau_levenshtein(known, &name.to_lowercase());
    let mut near: Vec<(usize, &str)> = known
        .iter()
        // The memory of a comparison is the product of both lengths, and a name may come from the
        // network.
        .filter(|known| name.chars().take(100).count() <= known.len() + most(known))
        .map(|known| (distance(known), *known))
        .filter(|&(distance, known)| distance <= most(known))
        .collect();
    near.sort_unstable();
    let near: Vec<&str> = near.into_iter().take(3).map(|(_, known)| known).collect();
    if near.is_empty() {
        return format!("the {what} are {}", known.join(", "));
    }
    format!("did you mean {}?", near.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::near;

    #[test]
    fn slips_are_told_from_other_names_of_any_length() {
        let hint = |name: &str| near(name, "rules", ["adam", "nadam"].into_iter());
        assert_eq!(hint("ADM"), "did you mean adam or nadam?");
        assert_eq!(hint("nadaam"), "did you mean nadam or adam?");
        // Compared with the others it would take more memory than there is.
        for name in ["stochastic".to_owned(), "adam".repeat(1 << 26)] {
            assert_eq!(hint(&name), "the rules are adam, nadam");
        }
    }
}
