//! Completions and manual pages.

use std::fs;
use std::process::Command;

use super::launcher::PROGRAM;

#[test]
fn bash_completes_commands_and_options() {
    for (words, expected) in [
        ("ru", "run"),
        ("run --num-s", "--num-servers"),
        ("run --format j", "json"),
        ("inspect --j", "--json"),
        ("kee", ""),
    ] {
        let count = words.split(' ').count();
        let last = words.rsplit(' ').next().unwrap();
        let script = format!(
            "source <({PROGRAM} completions bash); COMP_WORDS=(kvstore {words}); COMP_CWORD={count}; \
             _kvstore kvstore {last} ${{COMP_WORDS[COMP_CWORD-1]}}; echo ${{COMPREPLY[@]}}"
        );
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.trim(), expected, "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = std::env::temp_dir().join(format!("kvstore-man-{}", std::process::id()));
    assert!(Command::new(PROGRAM).arg("man").arg(&folder).status().unwrap().success());
    let help = Command::new(PROGRAM).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = commands.lines().filter_map(|line| line.split_whitespace().next());
    let mut pages: Vec<String> =
        names.filter(|name| *name != "help").map(|name| format!("kvstore-{name}.1")).collect();
    assert!(pages.len() >= 5, "{help}");
    pages.push("kvstore.1".into());
    for page in &pages {
        let text = fs::read_to_string(folder.join(page)).unwrap();
        assert!(text.contains(".SH SYNOPSIS") && text.contains(".SH OPTIONS"), "{page}");
    }
    // The others are those of commands of commands.
    for file in fs::read_dir(&folder).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let of = |page: &String| name.starts_with(page.trim_end_matches(".1"));
        assert!(pages.iter().any(of), "{name}");
    }
    fs::remove_dir_all(folder).unwrap();
}
