//! A file that atomically replaces another, or leaves it unchanged.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, Permissions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Suffix of the names of temporary files: `NAME.3f09a1c2d4e5b687.kvstore-part`. The digits are
/// random, so that a file that another user has planted does not collide.
const SUFFIX: &str = "kvstore-part";

/// Maximum number of names that are tried: a sweep of another process may remove one.
const MOST: u32 = 100;
/// The permissions of a new file, reduced by the umask.
const NEW: u32 = 0o666;
/// Used until the permissions of the replaced file are copied.
const OWNER_ONLY: u32 = 0o600;

/// A temporary file that will replace a target. Its lock means that a live process is writing it:
/// the lock ends with the process, however that ends.
pub(crate) struct Replacement {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
    /// Opened before anything is written, so that a folder without sync support is refused early.
    folder: File,
}

impl Replacement {
    /// Creates a temporary file, after the removal of those that killed processes have left.
    pub(crate) fn begin(target: &Path) -> io::Result<Self> {
        let Some(name) = target.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is not a file's name"));
        };
        // The rename would put a file in the place of a device such as /dev/null.
        if fs::symlink_metadata(target).is_ok_and(|it| !it.is_file() && !it.is_symlink()) {
            let text = "what is there is not a regular file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let folder = target.parent().filter(|it| !it.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_path_buf();
        sweep(&folder, name);
        let open_folder = File::open(&folder)?;
        let mode = mode_of(target).map_or(NEW, |_| OWNER_ONLY);
        for _ in 0..MOST {
            let mut temporary = name.to_owned();
            temporary
                .push(format!(".{:016x}.{SUFFIX}", RandomState::new().build_hasher().finish()));
            let temporary = folder.join(temporary);
            match OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary) {
                Ok(file) if is_ours(&file, &temporary) => {
                    let target = target.to_path_buf();
                    copy_mode(&target, &file)?;
                    return Ok(Self { file, temporary, target, folder: open_folder });
                }
                // A sweep of another process was faster: the file is gone.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "too many saves to this path at a time"))
    }

    /// Renames the file to its target. After an error the old file is there, unless only the last
    /// step failed, which makes the change survive a loss of power.
    pub(crate) fn commit(self) -> io::Result<()> {
        copy_mode(&self.target, &self.file)?;
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.target)?;
        match self.folder.sync_all() {
            // Some file systems have no sync for folders.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            result => result,
        }
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After a rename there is no temporary file to remove.
        if is_at(&self.file, &self.temporary) {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// The permissions of the file at a path, if one is there. A symbolic link is replaced itself.
fn mode_of(path: &Path) -> Option<u32> {
    let there = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some(there.permissions().mode() & 0o777)
}

/// Copies the permissions of the file that is to be replaced.
fn copy_mode(target: &Path, file: &File) -> io::Result<()> {
    match mode_of(target) {
        Some(mode) => file.set_permissions(Permissions::from_mode(mode)),
        None => Ok(()),
    }
}

/// Locks a new file. On a file system without locks no process removes the file either.
fn is_ours(file: &File, path: &Path) -> bool {
    !matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)) && is_at(file, path)
}

/// Whether an open file is the one at a path.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |it: fs::Metadata| (it.dev(), it.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(there)) => identity(open) == identity(there),
        _ => false,
    }
}

/// Removes temporary files without a live writer. Files that cannot be removed stay.
fn sweep(folder: &Path, name: &OsStr) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| is_temporary(&entry.file_name(), name)) {
        let path = entry.path();
        // Does not block on a pipe that has no reader or writer.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(&path) else {
            continue;
        };
        // While the lock is held the file stays at the path, or has left it for good.
        if file.try_lock().is_ok() && is_at(&file, &path) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether a name is that of a temporary file for `name`.
fn is_temporary(file: &OsString, name: &OsStr) -> bool {
    let rest = file.as_bytes().strip_prefix(name.as_bytes());
    let rest = rest.and_then(|rest| std::str::from_utf8(rest).ok()).unwrap_or_default();
    let number = rest.strip_prefix('.').and_then(|rest| rest.strip_suffix(SUFFIX));
    let number = number.and_then(|rest| rest.strip_suffix('.')).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this test alone.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("kvstore-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        folder
    }

    fn names(folder: &Path) -> Vec<OsString> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn only_files_of_the_living_stay() {
        let folder = folder("replacement");
        let path = folder.join("a");
        for left in ["a.0.kvstore-part", "a.7.kvstore-part"] {
            fs::write(folder.join(left), "left behind").unwrap();
        }
        let others = ["a.1.kvstore-part.b", "a.x.kvstore-part", "ab.0.kvstore-part"];
        others.iter().for_each(|other| fs::write(folder.join(other), "another's").unwrap());
        let mut first = Replacement::begin(&path).unwrap();
        first.write_all(b"first").unwrap();
        let mut second = Replacement::begin(&path).unwrap();
        second.write_all(b"second").unwrap();
        assert_eq!(names(&folder).len(), 5);
        drop(Replacement::begin(&path).unwrap());
        assert_eq!(names(&folder).len(), 5);
        first.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        second.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(names(&folder), ["a", others[0], others[1], others[2]].map(OsString::from));
        fs::remove_dir_all(folder).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn write(path: &Path, text: &[u8]) {
        let mut file = Replacement::begin(path).unwrap();
        file.write_all(text).unwrap();
        file.commit().unwrap();
    }

    #[test]
    fn a_file_keeps_the_mode_of_the_one_that_it_replaces() {
        let folder = folder("mode");
        let path = folder.join("a");
        fs::write(&path, "secret").unwrap();
        for kept in [0o600, 0o640, 0o604, 0o666] {
            fs::set_permissions(&path, Permissions::from_mode(kept)).unwrap();
            let file = Replacement::begin(&path).unwrap();
            assert_eq!(mode(&file.temporary), kept, "while it is written");
            drop(file);
            write(&path, b"new");
            assert_eq!((mode(&path), &*fs::read(&path).unwrap()), (kept, &b"new"[..]));
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn files_and_links_that_were_planted_are_not_in_the_way() {
        let folder = folder("planted");
        let (path, other) = (folder.join("a"), folder.join("other"));
        fs::write(&other, "of another user").unwrap();
        // Folders cannot be removed as files are.
        (0..1000).for_each(|n| fs::create_dir(folder.join(format!("a.{n}.{SUFFIX}"))).unwrap());
        std::os::unix::fs::symlink(&other, &path).unwrap();
        write(&path, b"ours");
        assert_eq!(fs::read(&other).unwrap(), b"of another user");
        assert_eq!(fs::read(&path).unwrap(), b"ours");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_no_regular_file_is_not_replaced() {
        let folder = folder("devices");
        let path = folder.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        for path in [path.as_path(), &folder, Path::new("/dev/null")] {
            let error = Replacement::begin(path).err().unwrap();
            assert_eq!(error.to_string(), "what is there is not a regular file");
        }
        let names: Vec<_> = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().path()).collect();
        assert_eq!(names, [path], "nothing else is there");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_path_without_a_name_is_refused() {
        for path in ["", "/", "..", "there/is/no/such/folder"] {
            assert!(Replacement::begin(Path::new(path)).is_err(), "{path}");
        }
    }
}
