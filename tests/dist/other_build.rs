//! A library of another release beside the one under test: `KV_TEST_BUILD` names its file. The scheduler and the
//! servers of a job run in it, through the C interface.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;

use super::job::{End, Ended};

const OK: c_int = 0;

type Create = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type Set = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> c_int;
type Open = unsafe extern "C" fn(*const c_char, *const c_void, *mut *mut c_void) -> c_int;
type Serve = unsafe extern "C" fn(*mut c_void) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void);
type Text = unsafe extern "C" fn() -> *const c_char;

/// The functions that a scheduler or a server needs, as `kvstore.h` declares them.
struct Library {
    config_create: Create,
    config_set: Set,
    config_free: Free,
    create: Open,
    serve: Serve,
    free: Free,
    last_error: Text,
}

/// The other library, which is opened at the first call and never closed; None without one.
fn library() -> Option<&'static Library> {
    static OPENED: OnceLock<Option<Library>> = OnceLock::new();
    OPENED
        .get_or_init(|| std::env::var("KV_TEST_BUILD").ok().map(|path| Library::open(&path)))
        .as_ref()
}

/// Whether schedulers and servers run in another library.
pub fn is_used() -> bool {
    library().is_some()
}

impl Library {
    fn open(path: &str) -> Self {
        let name = CString::new(path).unwrap();
        // SAFETY: a name that ends in 0; the library's initialisers need nothing.
        let opened = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!opened.is_null(), "KV_TEST_BUILD: {path} cannot be opened");
        let find = |name: &CStr| {
            // SAFETY: an open library, and a name that ends in 0.
            let found = unsafe { libc::dlsym(opened, name.as_ptr()) };
            assert!(!found.is_null(), "{path} has no {name:?}");
            found
        };
        // SAFETY: the types are those of kvstore.h.
        unsafe {
            Self {
                config_create: transmute::<*mut c_void, Create>(find(c"kv_config_create")),
                config_set: transmute::<*mut c_void, Set>(find(c"kv_config_set")),
                config_free: transmute::<*mut c_void, Free>(find(c"kv_config_free")),
                create: transmute::<*mut c_void, Open>(find(c"kv_create")),
                serve: transmute::<*mut c_void, Serve>(find(c"kv_serve")),
                free: transmute::<*mut c_void, Free>(find(c"kv_free")),
                last_error: transmute::<*mut c_void, Text>(find(c"kv_last_error")),
            }
        }
    }

    /// The result of a call, with the text of this thread's last error.
    fn end(&self, status: c_int) -> Ended {
        if status == OK {
            return Ok(());
        }
        // SAFETY: the text lives until the next call of this thread.
        let text = unsafe { CStr::from_ptr((self.last_error)()) };
        Err(End { status, text: text.to_string_lossy().into_owned() })
    }
}

/// Runs a scheduler or a server with these options until it ends.
pub fn serve(kind: &str, options: &[(String, String)]) -> Ended {
    let library = library().expect("KV_TEST_BUILD is set");
    let text = |text: &str| CString::new(text).unwrap();
    let (mut config, mut store) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: handles go to the functions that made them, once each; texts live for the calls.
    unsafe {
        library.end((library.config_create)(&raw mut config))?;
        for (name, value) in options {
            let (name, value) = (text(name), text(value));
            library.end((library.config_set)(config, name.as_ptr(), value.as_ptr()))?;
        }
        let created = (library.create)(text(kind).as_ptr(), config, &raw mut store);
        let created = library.end(created);
        (library.config_free)(config);
        created?;
        let ended = library.end((library.serve)(store));
        (library.free)(store);
        ended
    }
}
