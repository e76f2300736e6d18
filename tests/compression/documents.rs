//! docs/use/compression.md names every codec and every option, with the defaults and values they have.

use std::collections::BTreeSet;

use super::{CODECS, open, pull};

/// A row of a table: option, default, values.
struct Row {
    name: String,
    default: String,
    values: String,
}

/// The codecs of the page and their options.
fn sections() -> Vec<(String, Vec<Row>)> {
    let text = include_str!("../../docs/use/compression.md");
    let row = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.split('|').map(str::trim).collect();
        let name = cells[0].trim_end_matches('`').to_owned();
        let default = cells.get(1)?.trim_matches('`').to_owned();
        Some(Row { name, default, values: (*cells.get(2)?).to_owned() })
    };
    let section = |part: &str| {
        let name = part.split('`').next().unwrap().to_owned();
        // A section ends where the next of any kind begins.
        let part = part.split("\n#").next().unwrap();
        (name, part.lines().filter_map(row).collect())
    };
    text.split("\n### `").skip(1).map(section).collect()
}

/// What three pushes make of a key.
fn train(codec: &str, params: &str) -> Vec<f32> {
    let store = open();
    store.init(1u64, &[0.0f32; 300]).unwrap();
    store.set_compression(codec, params).unwrap_or_else(|error| panic!("{params}: {error}"));
    let mut out = Vec::new();
    for n in 0..3 {
        let value: Vec<f32> = (0..300).map(|i| ((i * 7 + n * 5) % 31) as f32 / 9.0 - 1.7).collect();
        store.push(1u64, &value).unwrap();
        out.extend(pull(&store, 1, 300));
    }
    out
}

#[test]
fn every_codec_has_a_section_with_all_its_options() {
    let sections = sections();
    let names: Vec<&str> = sections.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, CODECS);
    for (codec, rows) in &sections {
        let error = open().set_compression(codec, "zzzzzzzzzzzzzzzzzzzz=1").unwrap_err();
        let known = error.message().split("the options are ").nth(1).unwrap();
        let known: BTreeSet<&str> = known.split(", ").collect();
        assert_eq!(known, rows.iter().map(|row| row.name.as_str()).collect(), "{codec}");
    }
}

#[test]
fn defaults_and_values_are_what_is_documented() {
    let mut checked = 0;
    for (codec, rows) in sections() {
        let expected = train(&codec, "");
        for Row { name, default, values } in rows {
            assert!(train(&codec, &format!("{name}={default}")) == expected, "{codec} {name}");
            let (good, bad, other) = match values.as_str() {
                "above 0" => (["1e-30", "1e30"], ["0", "inf"], "1.5"),
                "any number that float32 can hold" => (["-3e38", "0"], ["1e39", "nan"], "1.5"),
                "above 0, up to 1" => (["1e-30", "1"], ["0", "1.1"], "0.5"),
                "whole, from 0" => (["0", "9007199254740992"], ["-1", "0.5"], "1"),
                "`true`, `false`" if default == "true" => (["0", "1"], ["2", "no"], "false"),
                "`true`, `false`" => (["0", "1"], ["2", "no"], "true"),
                other => panic!("{codec}: {name}: unknown values {other:?}"),
            };
            let accepts =
                |value: &str| open().set_compression(&codec, &format!("{name}={value}")).is_ok();
            assert!(good.iter().all(|value| accepts(value)), "{codec} {name}");
            assert!(bad.iter().all(|value| !accepts(value)), "{codec} {name}");
            assert!(train(&codec, &format!("{name}={other}")) != expected, "{codec} {name}");
            checked += 1;
        }
    }
    assert_eq!(checked, 10);
}
