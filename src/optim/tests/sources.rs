//! `kernels/rules.h` is what the formulas give.
//!
//! With `KV_UPDATE_RULES=1` the file is written instead of compared.

use std::collections::HashSet;
use std::{env, fs};

use super::{METHODS, PUSHES, Passes, SETTINGS, drive};
use crate::kernel::{Recording, Rule};
use crate::optim::{KeyRule, RowRule};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Records the formulas of pushes.
#[derive(Default)]
struct Recorder {
    has_rows: bool,
    /// Each formula once, with the list in `rules.h` that names it.
    known: Vec<(Recording, &'static str)>,
}

impl Recorder {
    fn add(&mut self, recording: Recording, list: &'static str) {
        let name = recording.name;
        match self.known.iter().find(|(known, _)| known.name == name) {
            Some((known, known_list)) => {
                assert_eq!(known.formula, recording.formula, "two formulas are called {name}");
                assert!(
                    known.is_same(&recording) && *known_list == list,
                    "the operations of {name} depend on its numbers"
                );
            }
            None => self.known.push((recording, list)),
        }
    }
}

impl Passes for Recorder {
    fn merge(&mut self, rule: &dyn Rule) {
        self.add(rule.record(), "FORMULAS");
    }

    fn merge_key(&mut self, key: &dyn KeyRule) {
        self.add(key.meter().record(), "MEASURED");
        self.add(key.norm().record(), "KEY_NUMBERS");
        key.merge(0.5, &mut |rule| self.merge(rule));
    }

    fn has_rows(&self) -> bool {
        self.has_rows
    }

    fn merge_rows(&mut self, rows: &dyn RowRule) {
        self.add(rows.meter().record(), "MEASURED");
        self.add(rows.norm().record(), "ROW_NUMBERS");
        self.add(rows.rule().record(), "ROW_FORMULAS");
    }
}

/// All formulas, by name.
fn recorded() -> Recorder {
    let mut recorder = Recorder::default();
    for (name, params) in SETTINGS {
        for has_rows in [false, true] {
            recorder.has_rows = has_rows;
            drive(name, params, PUSHES, |method, push| method.push(push, &mut recorder));
        }
    }
    recorder.known.sort_by_key(|(recording, _)| recording.name);
    recorder
}

/// The names in some lists of `kernels/rules.h`.
pub(super) fn names(lists: &[&str]) -> Vec<&'static str> {
    let known = recorded().known;
    known.iter().filter(|(_, list)| lists.contains(list)).map(|(known, _)| known.name).collect()
}

/// The text of `kernels/rules.h`.
fn rules() -> String {
    let known = recorded().known;
    let mut parts = vec![
        "// Generated from the formulas of src/optim: run `make kernels` after a change of one."
            .to_owned(),
        "#pragma once\n\n#include \"number.cuh\"\n".to_owned(),
    ];
    parts.extend(known.iter().map(|(recording, _)| recording.cpp()));
    let lists = [
        ("FORMULAS", "Rules that change each element by its own numbers."),
        ("MEASURED", "Measures, of which squares are added up."),
        ("KEY_NUMBERS", "Numbers of a key, from the norms of the key."),
        ("ROW_NUMBERS", "Numbers of a row, from its norm and its state."),
        ("ROW_FORMULAS", "Rules whose only state is the number of a row."),
    ];
    for (list, comment) in lists {
        let names = known.iter().filter(|(_, of)| *of == list);
        let names: Vec<_> = names.map(|(it, _)| format!(" \\\n  X({})", it.name)).collect();
        parts.push(format!("// {comment}\n#define {list}(X){}\n", names.concat()));
    }
    parts.join("\n")
}

#[test]
fn the_settings_of_these_tests_reach_every_optimizer_and_every_formula() {
    for method in METHODS {
        let name = method.name();
        assert!(SETTINGS.iter().any(|(known, _)| *known == name), "no setting of {name}");
    }
    let recorder = recorded();
    let files = fs::read_dir(format!("{ROOT}/src/optim")).unwrap();
    let sources: String =
        files.filter_map(|file| fs::read_to_string(file.unwrap().path()).ok()).collect();
    let written: HashSet<_> = sources
        .split("const NAME: &'static str = \"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    let reached: HashSet<_> = recorder.known.iter().map(|(recording, _)| recording.name).collect();
    assert_eq!(reached, written);
    let formulas = ["impl Formula for ", "impl Measure for "];
    let count: usize = formulas.iter().map(|it| sources.matches(it).count()).sum();
    assert_eq!(count, reached.len(), "each formula has a name of its own");
}

#[test]
fn the_sources_of_gpu_kernels_are_what_the_formulas_give() {
    let (path, fresh) = (format!("{ROOT}/kernels/rules.h"), rules());
    if env::var("KV_UPDATE_RULES").is_ok_and(|update| update == "1") {
        fs::write(path, fresh).unwrap();
        return;
    }
    let committed = fs::read_to_string(path).unwrap_or_default();
    let different = committed.lines().zip(fresh.lines()).position(|(old, new)| old != new);
    let line = different.map_or(0, |index| index + 1);
    assert!(
        committed == fresh,
        "kernels/rules.h:{line} is not what the formulas give; run `make kernels`"
    );
}

#[test]
fn a_formula_whose_operations_depend_on_its_numbers_is_found() {
    use crate::kernel::{Formula, MAX_STATES, Number};

    #[derive(Clone, Copy)]
    struct Unsteady(f64);

    impl Formula for Unsteady {
        const NAME: &'static str = "unsteady";
        const STATES: usize = 0;

        fn step<N: Number>(self, sum: N, value: N, _: &mut [N; MAX_STATES]) -> N {
            if self.0 == 0.0 { value } else { value + N::of(self.0) * sum }
        }
    }

    #[derive(Clone, Copy)]
    struct Namesake;

    impl Formula for Namesake {
        const NAME: &'static str = "unsteady";
        const STATES: usize = 0;

        fn step<N: Number>(self, _: N, value: N, _: &mut [N; MAX_STATES]) -> N {
            value
        }
    }

    let refused = |second: &dyn Rule| {
        let mut recorder = Recorder::default();
        recorder.merge(&Unsteady(0.0));
        let panic =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| recorder.merge(second)));
        panic.err().and_then(|panic| panic.downcast_ref::<String>().cloned())
    };
    assert_eq!(refused(&Unsteady(0.0)), None);
    assert!(refused(&Unsteady(1.0)).is_some_and(|it| it.contains("depend on its numbers")));
    assert!(refused(&Namesake).is_some_and(|it| it.contains("two formulas")));
}
