//! Options of the library on a command line.

use kvstore::{Config, Result};

/// The option that is refused on a command line, which every user of a machine can read.
const SECRET: &str = "token";

/// A value of `--set`, if the library takes it.
pub(crate) fn assignment(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    if name == SECRET {
        // An invalid value is shown; this option's must not be.
        return Ok((name.to_owned(), String::new()));
    }
    Config::new().set(name, value).map_err(|error| error.message().to_owned())?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Why some options must not be on a command line, if so.
pub(crate) fn check(set: &[(String, String)]) -> std::result::Result<(), &'static str> {
    if set.iter().any(|(name, _)| name == SECRET) {
        return Err("everybody on this machine can read a command line; use token_file, or \
                    KV_TOKEN in the environment");
    }
    Ok(())
}

/// The options of `--set`, then those with an option of their own that are given.
pub(crate) fn config(set: &[(String, String)], named: &[(&str, Option<String>)]) -> Result<Config> {
    let mut config = Config::new();
    let named = named.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?)));
    for (name, value) in set.iter().map(|(name, value)| (&**name, &**value)).chain(named) {
        config.set(name, value)?;
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::assignment;

    #[test]
    fn an_assignment_is_checked_as_the_library_does() {
        assert_eq!(assignment("threads=2").unwrap(), ("threads".into(), "2".into()));
        assert!(assignment("threads").unwrap_err().contains("NAME=VALUE"));
        assert!(assignment("thread=2").unwrap_err().contains("did you mean threads?"));
        assert!(assignment("threads=none").unwrap_err().contains("must be a number"));
    }
}
