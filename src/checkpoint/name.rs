//! Names of tensors in a file. A key's value has the key's own name; all other names begin with
//! `#`, which names of keys may not.

use std::fmt;

/// A key as a file names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum KeyName<'a> {
    /// `#7`
    Number(u64),
    /// The text itself, with one more `#` in front if it begins with one.
    Text(&'a str),
}

/// The one name reserved by the format, and its replacement for a key of this name.
const TAKEN: &str = "__metadata__";
const INSTEAD: &str = "#name:__metadata__";

impl<'a> KeyName<'a> {
    /// None for a name that is not a key's.
    pub(crate) fn parse(name: &'a str) -> Option<Self> {
        let Some(rest) = name.strip_prefix('#') else {
            return (name != TAKEN).then_some(Self::Text(name));
        };
        if rest.starts_with('#') {
            return Some(Self::Text(rest));
        }
        if name == INSTEAD {
            return Some(Self::Text(TAKEN));
        }
        // One number has one spelling.
        let number = rest.parse().ok().map(Self::Number)?;
        (number.to_string() == name).then_some(number)
    }
}

impl fmt::Display for KeyName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Number(number) => write!(f, "#{number}"),
            Self::Text(TAKEN) => f.write_str(INSTEAD),
            Self::Text(text) if text.starts_with('#') => write!(f, "#{text}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// The name of a part of a key: `#state.0:NAME`.
pub(crate) fn part_name(part: &str, key: KeyName<'_>) -> String {
    format!("#{part}:{key}")
}

/// The part and the key of a name, if it was made by [`part_name`].
pub(crate) fn split_part(name: &str) -> Option<(&str, KeyName<'_>)> {
    let (part, key) = name.strip_prefix('#')?.split_once(':')?;
    Some((part, KeyName::parse(key)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: &[&str] =
        &["", "w", "fc1.weight", "#", "#7", "##7", "#checksum", "#state.0:w", "__metadata__", ":"];

    #[test]
    fn every_key_comes_back_from_its_name() {
        let numbers = [0, 7, u64::MAX].map(KeyName::Number);
        let texts = TEXTS.iter().map(|text| KeyName::Text(text));
        let keys: Vec<KeyName<'_>> = numbers.into_iter().chain(texts).collect();
        let mut names: Vec<String> = keys.iter().map(ToString::to_string).collect();
        for (key, name) in keys.iter().zip(&names) {
            assert_eq!(KeyName::parse(name), Some(*key));
            let part = part_name("state.0", *key);
            assert_eq!(split_part(&part), Some(("state.0", *key)));
            assert_eq!(KeyName::parse(&part), None);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), keys.len());
        assert!(!names.iter().any(|name| name == TAKEN));
    }

    #[test]
    fn names_that_no_key_has_are_refused() {
        for name in ["#", "#07", "#+7", "#7 ", "#x", "#checksum", "#18446744073709551616", TAKEN] {
            assert_eq!(KeyName::parse(name), None, "{name}");
        }
    }
}
