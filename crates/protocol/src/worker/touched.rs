//! Touched keys (also: dirty set), on which a waiting operation may be able to start: a message for one key
//! of a long list looks at no other key.

#[derive(Debug, Default)]
pub(super) struct TouchedKeys {
    keys: Vec<u64>,
    all: bool,
}

impl TouchedKeys {
    pub(super) fn add(&mut self, key: u64) {
        self.keys.push(key);
    }

    pub(super) fn add_all(&mut self) {
        self.all = true;
    }

    /// Whether single keys were added.
    pub(super) fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.all = false;
    }

    /// Adds the keys that `all` returns, if all have been touched.
    pub(super) fn fill(&mut self, all: impl FnOnce() -> Vec<u64>) {
        if std::mem::take(&mut self.all) {
            self.keys.extend(all());
        }
    }

    pub(super) fn pop(&mut self) -> Option<u64> {
        self.keys.pop()
    }
}
