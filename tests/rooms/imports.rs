//! Which file imports what from which: circles, imports that run back up, crowded folders.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use crate::source::{self, File, Import, Module};

/// Maximum number of re-exports on the way from an import to a definition.
const MAX_HOPS: usize = 8;

pub struct Tree {
    pub files: Vec<File>,
    /// The file of each module.
    modules: BTreeMap<Module, usize>,
    items: BTreeSet<(Module, String)>,
    bindings: BTreeMap<(Module, String), Vec<String>>,
    globs: BTreeMap<Module, Vec<Vec<String>>>,
}

/// What a path of this tree leads to.
pub struct Found {
    /// Files whose modules re-export the name, then the file that defines it.
    files: Vec<usize>,
    module: Module,
    /// None for the module itself.
    name: Option<String>,
    is_certain: bool,
}

/// The names that one file imports from another.
type Arrows = BTreeMap<(usize, usize), BTreeSet<String>>;

impl Tree {
    pub fn read(root: &Path) -> Self {
        let files = source::read(root);
        let (mut modules, mut items) = (BTreeMap::new(), BTreeSet::new());
        let (mut bindings, mut globs) = (BTreeMap::new(), BTreeMap::<_, Vec<_>>::new());
        for (index, file) in files.iter().enumerate() {
            modules.insert(file.module.clone(), index);
            for it in file.definitions.iter().filter(|it| it.is_item) {
                modules.entry(it.module.clone()).or_insert(index);
                if it.keyword != "mod" {
                    items.insert((it.module.clone(), it.name.clone()));
                }
            }
            for Import { module, path, name, .. } in &file.imports {
                modules.entry(module.clone()).or_insert(index);
                match name {
                    Some(name) if name == "*" => {
                        globs.entry(module.clone()).or_default().push(path.clone());
                    }
                    Some(name) if path != std::slice::from_ref(name) => {
                        bindings.entry((module.clone(), name.clone())).or_insert(path.clone());
                    }
                    _ => {}
                }
            }
        }
        Self { files, modules, items, bindings, globs }
    }

    fn child(&self, module: &Module, name: &str) -> Option<Module> {
        let child = [&**module, &[name.to_owned()]].concat();
        self.modules.contains_key(&child).then_some(child)
    }

    /// Where a path in a module leads; a path of another crate comes back in full.
    pub fn resolve(&self, module: &Module, path: &[String]) -> Result<Found, Vec<String>> {
        self.follow(module, path, MAX_HOPS)
    }

    fn follow(&self, from: &Module, path: &[String], hops: usize) -> Result<Found, Vec<String>> {
        let (mut module, mut rest) = (from.clone(), path);
        let key = (module.clone(), path[0].clone());
        match &*path[0] {
            "crate" => (module, rest) = (vec![from[0].clone()], &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                let ups = path.iter().take_while(|it| *it == "super").count();
                module.truncate(from.len().saturating_sub(ups).max(1));
                rest = &path[ups..];
            }
            name => {
                let is_known = self.items.contains(&key) || self.bindings.contains_key(&key);
                if !is_known && self.child(&module, name).is_none() {
                    rest = &path[usize::from(name.is_empty())..];
                    module = vec![rest[0].clone()];
                    if !self.modules.contains_key(&module) {
                        return Err(rest.to_vec());
                    }
                    rest = &rest[1..];
                }
            }
        }
        while let Some(name) = rest.first() {
            let Some(child) = self.child(&module, name) else {
                return self.follow_name(module, rest, hops);
            };
            (module, rest) = (child, &rest[1..]);
        }
        Ok(Found { files: vec![self.modules[&module]], module, name: None, is_certain: true })
    }

    /// Where a name leads that is no module.
    fn follow_name(
        &self,
        module: Module,
        path: &[String],
        hops: usize,
    ) -> Result<Found, Vec<String>> {
        let (file, key) = (self.modules[&module], (module.clone(), path[0].clone()));
        let is_certain = self.items.contains(&key);
        let via = |mut found: Found| {
            found.files.insert(0, file);
            found
        };
        if !is_certain && hops > 0 {
            if let Some(bound) = self.bindings.get(&key) {
                return self.follow(&module, &[bound, &path[1..]].concat(), hops - 1).map(via);
            }
            for glob in self.globs.get(&module).into_iter().flatten() {
                let inner = [&["self".to_owned()], path].concat();
                if let Ok(source) = self.follow(&module, glob, hops - 1)
                    && source.name.is_none()
                    && let Ok(found) = self.follow(&source.module, &inner, hops - 1)
                    && found.is_certain
                {
                    return Ok(via(found));
                }
            }
        }
        Ok(Found { files: vec![file], module, name: Some(key.1), is_certain })
    }

    /// The arrows to the files that define the imported names; with `all`, also to those that
    /// re-export them. None is between a module and one inside it.
    pub fn arrows(&self, all: bool) -> Arrows {
        let mut arrows = Arrows::new();
        for (from, file) in self.files.iter().enumerate() {
            for import in &file.imports {
                let Ok(found) = self.resolve(&import.module, &import.path) else { continue };
                let name = found.name.as_ref().or(found.module.last()).unwrap();
                let name = if import.name.as_deref() == Some("*") { "*" } else { name };
                let skipped = if all { 0 } else { found.files.len() - 1 };
                for &to in &found.files[skipped..] {
                    let (one, other) = (&file.module, &self.files[to].module);
                    if !one.starts_with(other) && !other.starts_with(one) {
                        arrows.entry((from, to)).or_default().insert(name.to_owned());
                    }
                }
            }
        }
        arrows
    }

    fn sentence(&self, from: usize, to: usize, names: &BTreeSet<String>) -> String {
        format!("{} takes {} from {}", self.files[from].path, list(names), self.files[to].path)
    }

    /// A sentence for each circle of files.
    pub fn circles(&self) -> Vec<String> {
        let arrows = self.arrows(false);
        let mut circles = BTreeSet::new();
        for start in 0..self.files.len() {
            let (mut before, mut waiting) = (BTreeMap::new(), VecDeque::from([start]));
            while let Some(file) = waiting.pop_front() {
                for &(_, to) in arrows.range((file, 0)..(file + 1, 0)).map(|(pair, _)| pair) {
                    before.entry(to).or_insert_with(|| {
                        waiting.push_back(to);
                        file
                    });
                }
            }
            // The shortest circle through the file.
            let mut circle: Vec<usize> = before.get(&start).copied().into_iter().collect();
            while circle.last().is_some_and(|last| *last != start) {
                circle.push(before[circle.last().unwrap()]);
            }
            circle.reverse();
            let smallest = (0..circle.len()).min_by_key(|it| circle[*it]).unwrap_or(0);
            circle.rotate_left(smallest);
            circles.insert(circle);
        }
        circles.remove(&Vec::new());
        let sentence = |circle: &Vec<usize>| {
            let step = |at: usize| {
                let (from, to) = (circle[at], circle[(at + 1) % circle.len()]);
                self.sentence(from, to, &arrows[&(from, to)])
            };
            let steps: Vec<String> = (0..circle.len()).map(step).collect();
            format!("a circle of files: {}", steps.join("; "))
        };
        circles.iter().map(sentence).collect()
    }

    /// Sentences about imports from rooms that are not below, files without a room, and rooms
    /// without files. The rooms stand in order, lowest first.
    pub fn upward(&self, rooms: &[String]) -> Vec<String> {
        // The innermost one.
        let room_of = |file: &File| {
            let holding = (0..rooms.len()).filter(|it| is_in(&file.path, &rooms[*it]));
            holding.max_by_key(|it| rooms[*it].len())
        };
        let places: Vec<Option<usize>> = self.files.iter().map(room_of).collect();
        let empty = (0..rooms.len()).filter(|it| !places.contains(&Some(*it)));
        let mut wrong: Vec<String> =
            empty.map(|it| format!("the room {} has no files", rooms[it])).collect();
        let homeless = self.files.iter().zip(&places).filter(|(_, place)| place.is_none());
        let homeless = homeless.filter(|(file, _)| file.module.len() > 1);
        wrong.extend(homeless.map(|(file, _)| format!("{} has no row in the table", file.path)));
        for ((from, to), names) in self.arrows(true) {
            if let (Some(own), Some(other)) = (places[from], places[to])
                && other > own
            {
                let sentence = self.sentence(from, to, &names);
                wrong.push(format!("{sentence}: {} is above {}", rooms[other], rooms[own]));
            }
        }
        wrong
    }

    /// A sentence for each folder with more than `most` files.
    pub fn crowded(&self, most: usize, except: &[&str]) -> Vec<String> {
        let mut folders: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (folder, name) in self.files.iter().filter_map(|it| it.path.rsplit_once('/')) {
            folders.entry(folder).or_default().insert(name.to_owned());
        }
        folders.retain(|folder, names| names.len() > most && !except.contains(folder));
        let sentence = |(folder, names): (&str, BTreeSet<String>)| {
            format!("{folder} has {} files, at most {most} may be: {}", names.len(), list(&names))
        };
        folders.into_iter().map(sentence).collect()
    }
}

pub fn list(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<&str>>().join(", ")
}

/// Whether a file is the room, or in the folder that is the room.
pub fn is_in(path: &str, room: &str) -> bool {
    let rest = path.strip_prefix(room.trim_end_matches(".rs"));
    rest.is_some_and(|rest| rest.starts_with('/') || rest == ".rs")
}
