//! The built library, as a program opens it.

use std::env;
use std::ffi::CString;
use std::fs;
use std::path::PathBuf;

use cuda_stand_in::{FUNCTIONS, hide, missing_in};

use crate::api::library_has;

/// Cargo builds it beside the tests.
fn library() -> PathBuf {
    let folder = env::current_exe().unwrap().parent().unwrap().to_owned();
    folder.join("libcuda_stand_in.so")
}

fn has(path: &std::path::Path) -> Vec<bool> {
    let names: Vec<&str> = FUNCTIONS.iter().map(|(name, _)| *name).collect();
    library_has(&CString::new(path.to_str().unwrap()).unwrap(), &names)
}

#[test]
fn every_function_of_the_table_is_exported() {
    let names: Vec<&str> = FUNCTIONS.iter().map(|(name, _)| *name).collect();
    assert!(names.is_sorted() && names.len() >= 45, "{names:?}");
    let missing: Vec<&str> =
        names.iter().zip(has(&library())).filter(|(_, has)| !has).map(|(name, _)| *name).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_copy_of_the_library_is_without_the_functions_of_newer_drivers() {
    let mut bytes = fs::read(library()).unwrap();
    let hidden: Vec<&str> = missing_in(11_000).collect();
    assert!(hidden.contains(&"cuStreamGetId") && hidden.contains(&"cuMemPoolCreate"));
    assert!(hidden.iter().all(|name| hide(&mut bytes, name)));
    let name = format!("libcuda-11000-{}.so", std::process::id());
    let path = library().with_file_name(name);
    fs::write(&path, bytes).unwrap();
    let has = has(&path);
    fs::remove_file(&path).unwrap();
    for ((name, since), has) in FUNCTIONS.iter().zip(has) {
        assert_eq!(has, *since <= 11_000, "{name}");
    }
}
