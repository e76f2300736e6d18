//! Credentials of running jobs, where processes of the same user find them.
//!
//! `kvstore run` writes one file for each address of its scheduler. Readers trust a file only if
//! it, and its folder, belong to their user and are closed to all others.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;

use crate::config::JobConfig;
use crate::sys;

/// Maximum size of a file in bytes: a token of any length and the name of a job.
const MOST: u64 = 64 << 10;
/// Mode bits of group and others.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;

/// The file with the token of a running job; removed when this value is dropped.
///
/// Processes of this user without a credential of their own find it by the address of the
/// scheduler.
#[derive(Debug)]
pub struct JobFile {
    paths: Vec<PathBuf>,
    content: String,
}

/// The data that a process needs beside the scheduler's address.
#[derive(PartialEq, Eq)]
pub(crate) struct KeptCredential {
    pub(crate) token: String,
    /// The option `job` of all its processes.
    pub(crate) job: String,
}

impl JobFile {
    /// Writes the token and the name of a job whose scheduler is at `root`.
    ///
    /// # Errors
    /// The folder belongs to another user or is open to one, or the file cannot be written.
    pub fn keep(root: &str, token: &str, job: &str) -> io::Result<Self> {
        let folder = folder();
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(at(&folder, &error));
            }
            _ => {}
        }
        if !is_private(&folder, OTHERS) {
            let text = "it must be a folder of this user with mode 0700";
            return Err(at(&folder, &io::Error::new(io::ErrorKind::PermissionDenied, text)));
        }
        let mut kept = Self { paths: Vec::new(), content: format!("{token}\n{job}\n") };
        for name in names(root) {
            let path = folder.join(&name);
            let draft = folder.join(format!(".{name}.{}", process::id()));
            write(&draft, &kept.content)
                .and_then(|()| fs::rename(&draft, &path))
                .map_err(|error| at(&path, &error))?;
            kept.paths.push(path);
        }
        Ok(kept)
    }

    /// The files: one for each address that `root` has.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The file of the job at `root`, if there is one that this user may use.
    #[must_use]
    pub fn find(root: &str) -> Option<PathBuf> {
        find_in(&folder(), root).map(|(path, _)| path)
    }
}

impl Drop for JobFile {
    fn drop(&mut self) {
        for path in &self.paths {
            // A later job at this address has put its own file there.
            if fs::read_to_string(path).is_ok_and(|content| content == self.content) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// A process without a credential of its own uses the file that `kvstore run` keeps for its user.
/// It also takes the name of that job if none is configured.
pub(crate) fn take_kept(job: &mut JobConfig) {
    if job.secrets.insecure || job.secrets.are_given() {
        return;
    }
    if let Some((_, kept)) = find_in(&folder(), &job.root) {
        job.secrets.token = Some(kept.token);
        job.name.get_or_insert(kept.job);
    }
}

fn find_in(folder: &Path, root: &str) -> Option<(PathBuf, KeptCredential)> {
    // The name of a host is resolved only where a file may be found.
    let is_empty = || fs::read_dir(folder).ok().and_then(|mut files| files.next()).is_none();
    if !is_private(folder, OTHERS) || is_empty() {
        return None;
    }
    names(root).into_iter().find_map(|name| {
        let path = folder.join(name);
        let kept = read(&path)?;
        Some((path, kept))
    })
}

/// The folder of this user: in the runtime folder of the login, else in that of temporary files.
fn folder() -> PathBuf {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match runtime.filter(|runtime| is_private(runtime, OTHERS_WRITE)) {
        Some(runtime) => runtime.join("kvstore"),
        None => env::temp_dir().join(format!("kvstore-{}", sys::user())),
    }
}

/// Whether this is a folder, not a link to one, that belongs to this user and has no permission
/// bits of others.
fn is_private(folder: &Path, denied: u32) -> bool {
    fs::symlink_metadata(folder)
        .is_ok_and(|it| it.is_dir() && it.uid() == sys::user() && it.mode() & denied == 0)
}

/// The names of the files of a job: its scheduler's addresses, whatever name `root` has for them.
fn names(root: &str) -> BTreeSet<String> {
    let addresses = root.to_socket_addrs().into_iter().flatten();
    let mut names: BTreeSet<String> = addresses.map(|address| address.to_string()).collect();
    if names.is_empty() {
        names.insert(root.replace('/', "_"));
    }
    names
}

fn write(path: &Path, content: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let file = options.open(path).or_else(|error| match error.kind() {
        // Left by an earlier process with this number.
        io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            options.open(path)
        }
        _ => Err(error),
    });
    file?.write_all(content.as_bytes())
}

fn read(path: &Path) -> Option<KeptCredential> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let content = content(&file)?;
    let (token, rest) = content.split_once('\n')?;
    Some(KeptCredential { token: token.into(), job: rest.trim_end_matches('\n').into() })
}

/// The contents of a file that belongs to this user and is closed to all others.
fn content(file: &File) -> Option<String> {
    let facts = file.metadata().ok()?;
    if !facts.is_file() || facts.uid() != sys::user() || facts.mode() & OTHERS != 0 {
        return None;
    }
    let mut content = String::new();
    file.take(MOST).read_to_string(&mut content).ok()?;
    Some(content)
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use super::{DirBuilder, DirBuilderExt, find_in, names, write};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("kvstore-kept-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            DirBuilder::new().mode(0o700).create(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const ROOT: &str = "127.0.0.1:9091";

    fn token_in(scratch: &Scratch, root: &str) -> Option<(String, String)> {
        find_in(&scratch.0, root).map(|(_, kept)| (kept.token, kept.job))
    }

    #[test]
    fn a_file_is_found_under_any_name_of_the_address() {
        let scratch = Scratch::new("names");
        write(&scratch.0.join(ROOT), "secret\nname\n").unwrap();
        assert_eq!(token_in(&scratch, ROOT), Some(("secret".into(), "name".into())));
        assert_eq!(token_in(&scratch, "127.0.0.1:9092"), None);
        assert!(names("localhost:9091").iter().any(|name| token_in(&scratch, name).is_some()));
        assert!(names("no such host/..:9").iter().all(|name| !name.contains('/')));
    }

    #[test]
    fn a_file_or_folder_that_is_open_to_others_is_not_believed() {
        let scratch = Scratch::new("modes");
        let file = scratch.0.join(ROOT);
        write(&file, "secret\nname\n").unwrap();
        let set = |path: &PathBuf, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        for (path, right, wrong) in
            [(&file, 0o600, [0o640, 0o606]), (&scratch.0, 0o700, [0o750, 0o701])]
        {
            for mode in wrong {
                set(path, mode);
                assert_eq!(token_in(&scratch, ROOT), None, "{mode:o}");
            }
            set(path, right);
            assert!(token_in(&scratch, ROOT).is_some());
        }
        let other = scratch.0.join("other");
        fs::rename(&file, &other).unwrap();
        symlink(&other, &file).unwrap();
        assert_eq!(token_in(&scratch, ROOT), None);
    }

    #[test]
    fn a_file_that_is_no_file_of_ours_is_passed_over() {
        let scratch = Scratch::new("damaged");
        fs::create_dir(scratch.0.join(ROOT)).unwrap();
        assert_eq!(token_in(&scratch, ROOT), None);
        write(&scratch.0.join("127.0.0.1:1"), "no second line").unwrap();
        assert_eq!(token_in(&scratch, "127.0.0.1:1"), None);
    }
}
