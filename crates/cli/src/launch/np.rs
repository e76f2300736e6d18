//! `-np N`, as mpirun has it: the parser of the command line reads it as `-n` with the value `p`.

use std::ffi::OsString;

use clap::{Arg, Command};

const OLD: &str = "-np";
const OURS: &str = "--num-workers";

/// Rewrites `-np` of a subcommand that has `--num-workers` to that option. Words after the program
/// are the program's own.
pub(crate) fn understood(
    words: impl Iterator<Item = OsString>,
    definition: &Command,
) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    let command = words.get(1).and_then(|name| definition.find_subcommand(name));
    // Where `-n` is a letter of it: servers know the number of workers by its long name alone.
    let is_ours =
        |arg: &Arg| arg.get_short() == Some('n') && arg.get_long() == OURS.strip_prefix("--");
    let command = command.filter(|command| command.get_arguments().any(is_ours));
    let Some(command) = command else { return words };
    let mut at = 2;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()) {
        if word == "--" || !word.starts_with('-') {
            break;
        }
        let takes_next = word == OLD || takes_next(command, word);
        if let Some(word) = replaced(word) {
            words[at] = word;
        }
        at += if takes_next { 2 } else { 1 };
    }
    words
}

/// `-np`, `-np=4` and `-np4` as `--num-workers`.
fn replaced(word: &str) -> Option<OsString> {
    let rest = word.strip_prefix(OLD)?;
    let count = rest.strip_prefix('=').unwrap_or(rest);
    if count.is_empty() {
        return Some(OURS.into());
    }
    count.bytes().all(|digit| digit.is_ascii_digit()).then(|| format!("{OURS}={count}").into())
}

/// Whether the word behind this one is the value of an option.
fn takes_next(command: &Command, word: &str) -> bool {
    let takes_value = |is_it: &dyn Fn(&Arg) -> bool| {
        command.get_arguments().any(|arg| is_it(arg) && arg.get_action().takes_values())
    };
    if let Some(name) = word.strip_prefix("--") {
        let aliases = |arg: &Arg| arg.get_all_aliases().unwrap_or_default().contains(&name);
        return takes_value(&|arg| arg.get_long() == Some(name) || aliases(arg));
    }
    let mut letters = word.chars().skip(1);
    let valued = letters.find(|letter| takes_value(&|arg| arg.get_short() == Some(*letter)));
    valued.is_some() && letters.next().is_none()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[track_caller]
    fn check(line: &str, expected: &str) {
        let words = line.split(' ').map(OsString::from);
        let understood = understood(words, &crate::definition());
        let text: Vec<&str> = understood.iter().filter_map(|word| OsStr::to_str(word)).collect();
        assert_eq!(text.join(" "), expected);
    }

    #[test]
    fn the_number_of_processes_is_understood_as_mpirun_does() {
        check("kvstore run -np 4 ./train", "kvstore run --num-workers 4 ./train");
        check("kvstore run -v -s 2 -np=4 -- x", "kvstore run -v -s 2 --num-workers=4 -- x");
        check("kvstore run -np4 x", "kvstore run --num-workers=4 x");
        check("kvstore bench -np 2", "kvstore bench --num-workers 2");
    }

    #[test]
    fn the_words_of_the_program_and_of_other_options_stay() {
        for line in [
            "kvstore run ./train -np 4",
            "kvstore run -n 2 mpirun -np 4",
            "kvstore run -- x -np 4",
            "kvstore run --ssh -np x",
            "kvstore run -npx x",
            "kvstore server -np 4",
            "kvstore",
        ] {
            check(line, line);
        }
    }
}
