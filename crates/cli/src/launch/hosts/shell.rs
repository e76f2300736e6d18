//! Quoting and splitting of words by the rules of a POSIX shell.

/// A word quoted so that a shell reads it back unchanged.
pub(crate) fn quote(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./:=,@%+".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Splits a command line with quotes and backslashes, without any other shell syntax.
pub(crate) fn split(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        let is_escape = letter == '\\' && quote != Some('\'');
        let letter_or_next = if is_escape { letters.next().unwrap_or('\\') } else { letter };
        match (letter, quote) {
            ('\'' | '"', None) => {
                word.get_or_insert_default();
                quote = Some(letter);
            }
            (_, Some(open)) if letter == open => quote = None,
            (_, None) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter_or_next),
        }
    }
    words.extend(word);
    match (quote, words.is_empty()) {
        (Some(_), _) => Err(format!("a quote of {text:?} is not closed")),
        (None, true) => Err("a command is empty".into()),
        (None, false) => Ok(words),
    }
}

#[cfg(test)]
mod tests {
    use super::{quote, split};

    #[test]
    fn quoted_words_come_back_as_they_were() {
        for word in ["", "a", "a b", "it's", "$HOME `x` \"y\" \\", "a\nb", "*", "\u{e9}"] {
            assert_eq!(split(&quote(word)).unwrap(), [word], "{word:?}");
        }
        assert_eq!(quote("KV_ROOT=10.0.0.1:9091"), "KV_ROOT=10.0.0.1:9091");
    }

    #[test]
    fn commands_are_split_as_a_shell_does() {
        assert_eq!(split(" ssh  -p 2222 ").unwrap(), ["ssh", "-p", "2222"]);
        assert_eq!(split(r#"a 'b c'"d e"f\ g ''"#).unwrap(), ["a", "b cd ef g", ""]);
        assert!(split("a 'b").is_err() && split("  ").is_err());
    }
}
