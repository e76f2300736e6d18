//! The store through its C interface, as a C program uses it.

use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;

use crate::api::{
    Tensor, kv_bind, kv_bound_free, kv_bound_pull, kv_bound_push, kv_bound_pushpull,
    kv_config_create, kv_config_free, kv_config_set, kv_create, kv_free, kv_init, kv_last_error,
    kv_pull, kv_pull_rows, kv_push, kv_push_rows, kv_pushpull, kv_set_compression,
    kv_set_optimizer, kv_set_updater,
};
use crate::tensors::List;
use crate::updater;

/// How a store merges a sum into its value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    Assign,
    /// SGD in a C updater.
    Updater,
    Sgd,
    Momentum,
    Adam,
    Nag,
    Adamw,
}

impl Rule {
    /// Those of the sweeps.
    pub const ALL: [Self; 5] = [Self::Assign, Self::Updater, Self::Sgd, Self::Momentum, Self::Adam];

    pub fn name(self) -> &'static str {
        match self {
            Self::Assign => "assign",
            Self::Updater => "C updater",
            Self::Sgd => "sgd",
            Self::Momentum => "momentum",
            Self::Adam => "adam",
            Self::Nag => "nag",
            Self::Adamw => "adamw",
        }
    }

    /// How many arrays of the key's size it must read or write beside the values and the outs:
    /// the stored value and the optimizer's state, unless they are only written.
    pub fn arrays(self) -> usize {
        match self {
            Self::Assign => 1,
            Self::Updater | Self::Sgd => 2,
            Self::Momentum | Self::Nag => 4,
            Self::Adam | Self::Adamw => 6,
        }
    }

    /// How many arrays of the key's size a store with it keeps.
    pub fn kept(self) -> usize {
        match self {
            Self::Assign | Self::Sgd => 1,
            Self::Updater | Self::Momentum | Self::Nag => 2,
            Self::Adam | Self::Adamw => 3,
        }
    }

    /// The optimizer's name and parameters.
    fn optimizer(self) -> Option<(&'static CStr, &'static CStr)> {
        match self {
            Self::Assign | Self::Updater => None,
            Self::Sgd => Some((c"sgd", c"learning_rate=0.001")),
            Self::Momentum => Some((c"sgd", c"learning_rate=0.001,momentum=0.9")),
            Self::Adam => Some((c"adam", c"learning_rate=0.001")),
            Self::Nag => Some((c"nag", c"learning_rate=0.001,momentum=0.9")),
            Self::Adamw => Some((c"adamw", c"learning_rate=0.001")),
        }
    }
}

/// Options of a store beside its threads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Setting {
    Usual,
    /// The order in which a store adds values up.
    Tree,
    /// What a store digests.
    Values,
    All,
}

impl Setting {
    pub fn name(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Tree => "sum_order=tree",
            Self::Values => "digests=values",
            Self::All => "digests=all",
        }
    }

    fn options(self) -> Vec<(&'static CStr, CString)> {
        let text = |text: &str| CString::new(text).unwrap_or_default();
        match self {
            Self::Usual => Vec::new(),
            Self::Tree => vec![(c"sum_order", text("tree"))],
            Self::Values | Self::All => {
                let folder =
                    std::env::temp_dir().join(format!("kvstore-bench-{}", std::process::id()));
                let what = if self == Self::All { "all" } else { "values" };
                vec![
                    (c"digests", text(what)),
                    (c"digest_log", text(&folder.to_string_lossy())),
                    (c"digest_log_bytes", text("16777216")),
                ]
            }
        }
    }

    /// Removes what stores have logged.
    pub fn clean_up() {
        let [(_, _), (_, folder), ..] = &*Self::All.options() else { return };
        let _ = std::fs::remove_dir_all(folder.to_string_lossy().as_ref());
    }
}

pub struct Store(*mut c_void);

fn check(status: i32) {
    // SAFETY: the text is valid until the next call on this thread.
    let text = || unsafe { CStr::from_ptr(kv_last_error()) };
    assert_eq!(status, 0, "a call of the benchmark failed: {:?}", text());
}

impl Store {
    pub fn open(threads: usize, rule: Rule, setting: Setting) -> Self {
        let (mut config, mut store) = (null_mut(), null_mut());
        let threads = CString::new(threads.to_string()).unwrap_or_default();
        // SAFETY: places of our own and NUL-terminated strings; the updater needs no context.
        unsafe {
            check(kv_config_create(&raw mut config));
            check(kv_config_set(config, c"threads".as_ptr(), threads.as_ptr()));
            for (name, value) in setting.options() {
                check(kv_config_set(config, name.as_ptr(), value.as_ptr()));
            }
            check(kv_create(c"local".as_ptr(), config, &raw mut store));
            kv_config_free(config);
            if rule == Rule::Updater {
                check(kv_set_updater(store, Some(updater::update), null_mut(), None));
            }
            if let Some((name, parameters)) = rule.optimizer() {
                check(kv_set_optimizer(store, name.as_ptr(), parameters.as_ptr()));
            }
        }
        Self(store)
    }

    pub fn set_optimizer(&self, name: &str, parameters: &str) {
        let text = |text: &str| CString::new(text).unwrap_or_default();
        let (name, parameters) = (text(name), text(parameters));
        // SAFETY: NUL-terminated strings.
        check(unsafe { kv_set_optimizer(self.0, name.as_ptr(), parameters.as_ptr()) });
    }

    /// Initialises the key 0.
    pub fn init_one(&self, value: &Tensor) {
        // SAFETY: a key and a tensor that lives during the call.
        check(unsafe { kv_init(self.0, &0, value, 1) });
    }

    /// Pushes to rows of the key 0.
    pub fn push_rows(&self, ids: &Tensor, rows: &Tensor) {
        // SAFETY: as above.
        check(unsafe { kv_push_rows(self.0, &0, ids, rows, 1, 0, null_mut()) });
    }

    /// Pulls rows of the key 0.
    pub fn pull_rows(&self, ids: &Tensor, outs: &Tensor) {
        // SAFETY: as above, and nobody else uses the outs.
        check(unsafe { kv_pull_rows(self.0, &0, ids, outs, 1, 0, null_mut()) });
    }

    pub fn set_compression(&self, name: &CStr, params: &CStr) {
        // SAFETY: NUL-terminated strings.
        check(unsafe { kv_set_compression(self.0, name.as_ptr(), params.as_ptr()) });
    }

    pub fn init(&self, list: &List) {
        let (keys, tensors) = (list.keys(), list.tensors());
        // SAFETY: as many tensors as keys, alive as long as the list.
        check(unsafe { kv_init(self.0, keys.as_ptr(), tensors.as_ptr(), keys.len()) });
    }

    pub fn push(&self, values: &List) {
        let (keys, tensors) = (values.keys(), values.tensors());
        // SAFETY: as above.
        check(unsafe {
            kv_push(self.0, keys.as_ptr(), tensors.as_ptr(), keys.len(), 0, null_mut())
        });
    }

    pub fn pull(&self, outs: &List) {
        let (keys, tensors) = (outs.keys(), outs.tensors());
        // SAFETY: as above, and nobody else uses the outs.
        check(unsafe {
            kv_pull(self.0, keys.as_ptr(), tensors.as_ptr(), keys.len(), 0, null_mut())
        });
    }

    pub fn pushpull(&self, values: &List, outs: &List) {
        // SAFETY: as above.
        check(unsafe {
            kv_pushpull(
                self.0,
                values.keys().as_ptr(),
                values.tensors().as_ptr(),
                values.keys().len(),
                outs.keys().as_ptr(),
                outs.tensors().as_ptr(),
                outs.keys().len(),
                0,
                null_mut(),
            )
        });
    }
}

impl Store {
    /// Binds two lists.
    pub fn bind<'a>(&'a self, values: &'a List, outs: &'a List) -> BoundList<'a> {
        let mut bound = null_mut();
        let (keys, tensors) = (values.keys(), values.tensors());
        // SAFETY: as many tensors as keys, alive as long as the result.
        check(unsafe {
            kv_bind(
                self.0,
                keys.as_ptr(),
                tensors.as_ptr(),
                keys.len(),
                outs.keys().as_ptr(),
                outs.tensors().as_ptr(),
                outs.keys().len(),
                &raw mut bound,
            )
        });
        BoundList(bound, PhantomData)
    }
}

/// Lists that a store has checked.
pub struct BoundList<'a>(*mut c_void, PhantomData<&'a List>);

impl BoundList<'_> {
    pub fn push(&self) {
        // SAFETY: made by kv_bind, and not freed.
        check(unsafe { kv_bound_push(self.0, 0, null_mut()) });
    }

    pub fn pull(&self) {
        // SAFETY: as above.
        check(unsafe { kv_bound_pull(self.0, 0, null_mut()) });
    }

    pub fn pushpull(&self) {
        // SAFETY: as above.
        check(unsafe { kv_bound_pushpull(self.0, 0, null_mut()) });
    }
}

impl Drop for BoundList<'_> {
    fn drop(&mut self) {
        // SAFETY: made by kv_bind, freed once.
        unsafe { kv_bound_free(self.0) }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: made by kv_create, freed once.
        unsafe { kv_free(self.0) }
    }
}
