//! Agreement (also: leader-decided consensus): all ranks propose a content, the lowest living rank decides.

use crate::bit_set::BitSet;

/// Proposed of one rank: the number of its request, and the content.
#[derive(Debug, Clone)]
pub(super) struct Proposed<V> {
    pub(super) rank: u32,
    pub(super) request: u64,
    pub(super) value: V,
}

#[derive(Debug, PartialEq, Eq)]
enum AgreementStage {
    /// The deciding rank has made no proposal yet.
    Open,
    /// This rank, the provider, sends the content to the servers.
    Providing(u32),
    Ready,
}

/// One key, or one version of the settings.
#[derive(Debug)]
pub(super) struct Agreement<V> {
    stage: AgreementStage,
    /// By rank, ascending.
    waiting: Vec<Proposed<V>>,
    had: BitSet,
}

impl<V: Clone> Agreement<V> {
    pub(super) fn new() -> Self {
        Self { stage: AgreementStage::Open, waiting: Vec::new(), had: BitSet::default() }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.stage == AgreementStage::Ready
    }

    /// Records a wish. It is returned at once if the content is ready; `Err` if the rank has a wish already.
    pub(super) fn wish(&mut self, wish: Proposed<V>) -> Result<Option<Proposed<V>>, Proposed<V>> {
        if !self.had.insert(wish.rank) {
            return Err(wish);
        }
        if self.is_ready() {
            return Ok(Some(wish));
        }
        match self.place(wish.rank) {
            Ok(at) => self.waiting[at] = wish,
            Err(at) => {
                // Most jobs have few workers, and a job may have very many keys.
                self.waiting.reserve_exact(1);
                self.waiting.insert(at, wish);
            }
        }
        Ok(None)
    }

    fn place(&self, rank: u32) -> Result<usize, usize> {
        self.waiting.binary_search_by_key(&rank, |wish| wish.rank)
    }

    /// Forgets that a rank had a wish: it was refused or withdrawn.
    pub(super) fn forget(&mut self, rank: u32) {
        self.had.remove(rank);
    }

    /// Whether a rank has a pending wish, or is the provider.
    pub(super) fn has_wish_of(&self, rank: u32) -> bool {
        self.place(rank).is_ok() || self.stage == AgreementStage::Providing(rank)
    }

    /// Withdraws the wish of a rank; returns it if it was pending. A provider completes its content all the
    /// same.
    pub(super) fn withdraw(&mut self, rank: u32) -> Option<Proposed<V>> {
        self.forget(rank);
        let provides = self.stage == AgreementStage::Providing(rank);
        let at = self.place(rank).ok().filter(|_| !provides)?;
        Some(self.waiting.remove(at))
    }

    /// Drops the wishes of workers that are lost or have left.
    pub(super) fn keep(&mut self, is_here: impl Fn(u32) -> bool) {
        self.waiting.retain(|wish| is_here(wish.rank));
        if let AgreementStage::Providing(rank) = self.stage
            && !is_here(rank)
        {
            self.stage = AgreementStage::Open;
        }
    }

    /// Whether the content exists, or some rank has a wish.
    pub(super) fn is_alive(&self) -> bool {
        self.stage != AgreementStage::Open || !self.waiting.is_empty()
    }

    /// Ranks with a pending wish.
    pub(super) fn wanted_by(&self) -> impl Iterator<Item = u32> + '_ {
        self.waiting.iter().map(|wish| wish.rank)
    }

    /// The deciding wish, if it has changed.
    pub(super) fn decide(&mut self, lowest: Option<u32>) -> Option<Proposed<V>> {
        let lowest = lowest?;
        match self.stage {
            AgreementStage::Ready => return None,
            AgreementStage::Providing(rank) if rank == lowest => return None,
            AgreementStage::Providing(_) | AgreementStage::Open => {}
        }
        let wish = self.waiting[self.place(lowest).ok()?].clone();
        self.stage = AgreementStage::Providing(lowest);
        Some(wish)
    }

    /// The provider has completed the content: returns all pending wishes. None of another rank.
    pub(super) fn ready(&mut self, rank: u32) -> Option<Vec<Proposed<V>>> {
        if self.stage != AgreementStage::Providing(rank) {
            return None;
        }
        self.stage = AgreementStage::Ready;
        Some(std::mem::take(&mut self.waiting))
    }
}
