//! docs/use/optimizers.md names every rule and every option, with the defaults and values they have.

use std::collections::BTreeSet;

use super::{RULES, open};

/// A row of a table: option, default, values.
struct Row {
    name: String,
    default: Option<String>,
    values: String,
}

/// What stands between the first backquotes of a cell.
fn code(cell: &str) -> Option<String> {
    cell.split('`').nth(1).map(str::to_owned)
}

/// The options in the tables of a text.
fn rows(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.split('|').map(str::trim).collect();
        let (name, values) =
            (cells[0].trim_end_matches('`').to_owned(), (*cells.get(2)?).to_owned());
        Some(Row { name, default: code(cells[1]), values })
    };
    // The kinds of schedules have a table with two columns.
    text.lines().filter(|line| line.matches('|').count() > 3).filter_map(row).collect()
}

/// The options of all rules, and the section of each.
fn page() -> (Vec<Row>, Vec<(String, Vec<Row>)>) {
    let text = include_str!("../../docs/use/optimizers.md");
    let mut parts = text.split("\n### `");
    let common = rows(parts.next().unwrap());
    let section = |part: &str| (part.split('`').next().unwrap().to_owned(), rows(part));
    (common, parts.map(section).collect())
}

/// What three pushes of a rule make of a key.
fn train(rule: &str, options: &str) -> Vec<f32> {
    let store = open();
    let mut value: Vec<f32> = (0..9).map(|i| 1.0 - i as f32 / 4.0).collect();
    store.init(1u64, &value).unwrap();
    store.set_optimizer(rule, options).unwrap_or_else(|error| panic!("{options}: {error}"));
    for n in 0..3 {
        let pushed: Vec<f32> = (0..9).map(|i| ((i * 5 + n * 7) % 9) as f32 / 2.0 - 2.0).collect();
        store.push(1u64, &pushed).unwrap();
    }
    store.pull(1u64, &mut value).unwrap();
    value
}

#[test]
fn every_rule_has_a_section_with_its_options_and_no_others() {
    let (common, sections) = page();
    let names: Vec<&str> = sections.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, RULES);
    for (rule, own) in &sections {
        let error = open().set_optimizer(rule, "zzzzzzzzzzzzzzzzzzzzzzzz=1").unwrap_err();
        let known = error.message().split("the options are ").nth(1).unwrap();
        let known: BTreeSet<&str> = known.split(", ").collect();
        let documented = common.iter().chain(own).map(|row| row.name.as_str());
        assert_eq!(known, documented.collect(), "{rule}");
    }
}

#[test]
fn defaults_are_what_is_documented() {
    let (common, sections) = page();
    let mut checked = 0;
    for (rule, own) in &sections {
        let expected = train(rule, "");
        for row in common.iter().chain(own) {
            let Some(default) = &row.default else { continue };
            // Options of one schedule have tests of their own.
            if ["factor", "stop_factor_lr", "final_lr", "pwr"].contains(&row.name.as_str()) {
                continue;
            }
            let option = format!("{}={default}", row.name);
            assert_eq!(train(rule, &option), expected, "{rule} {option}");
            checked += 1;
        }
    }
    assert!(checked > 10 * RULES.len(), "{checked}");
}

#[test]
fn values_are_what_is_documented() {
    let (common, sections) = page();
    for (rule, own) in &sections {
        for Row { name, values, .. } in common.iter().chain(own) {
            let accepts =
                |value: &str| open().set_optimizer(rule, &format!("{name}={value}")).is_ok();
            let (good, bad): (&[&str], &[&str]) = if values.starts_with("from 0 to below 1") {
                (&["0", "0.99999"], &["1", "-0.1"])
            } else if values.starts_with("above 0") {
                (&["0.001", "1e30", "inf"], &["0", "-1"])
            } else if name == "lazy_update" && ["lamb", "lars"].contains(&rule.as_str()) {
                (&["false", "0"], &["true", "1"])
            } else if values.starts_with("`true`") {
                (&["true", "false", "1", "0"], &["2", "maybe"])
            } else if values.starts_with("from 0") && !name.starts_with("lower") {
                (&[], &["-0.1", "inf"])
            } else {
                (&[], &["-inf", "maybe"])
            };
            assert!(good.iter().all(|value| accepts(value)), "{rule} {name}");
            assert!(bad.iter().all(|value| !accepts(value)), "{rule} {name}");
        }
    }
}
