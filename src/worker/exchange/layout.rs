//! Where the segments of a collective call lie in the memory of this worker, and to whom each goes.

use smallvec::SmallVec;

use super::span::{ByteSpan, ReducedPart};
use crate::error::Result;
use crate::local::collective::{CollectiveCall, CollectiveKind, LentTensor, Reducer, WorkerPlace};
use crate::tensor::Buffer;

/// Bytes of the arrays of all workers up to which each is sent whole, which takes one step instead of two.
const WHOLE: usize = 128 << 10;
/// Length in bytes of an array that is sent whole whatever the number of workers.
const SHORT: usize = 16 << 10;

/// Elements of which the parts of an array are multiples, so that they begin at whole lines of the cache.
const PART: usize = 64;

/// The segments of a call, by rank.
pub(super) struct Layout {
    /// What each other rank gets first.
    pub(super) sends: Vec<ByteSpan>,
    /// Where each other rank's contribution goes; of those that are reduced only its length counts.
    pub(super) receives: Vec<ByteSpan>,
    pub(super) reduced: Option<ReducedPart>,
    /// Ranks that get the result of the part.
    pub(super) result_receivers: Vec<u32>,
    /// Where the results of other ranks go.
    pub(super) results: Vec<ByteSpan>,
    /// Elements that each worker contributes, where all contribute as many.
    pub(super) count: u64,
    /// Where the result is from which outs are copied at the end, and how many outs at the front have it already.
    pub(super) copies: Option<(ByteSpan, usize)>,
    /// Memory of the call itself.
    pub(super) buffers: SmallVec<[Buffer; 2]>,
}

impl Layout {
    pub(super) fn new(
        call: &CollectiveCall,
        place: WorkerPlace,
        reducer: &Reducer,
    ) -> Result<Self> {
        let none = || vec![ByteSpan::NONE; place.workers as usize];
        let mut layout = Self {
            sends: none(),
            receives: none(),
            reduced: None,
            result_receivers: Vec::new(),
            results: none(),
            count: 0,
            copies: None,
            buffers: SmallVec::new(),
        };
        match call.head.kind {
            CollectiveKind::AllReduce | CollectiveKind::Reduce => {
                layout.reduce(call, place, reducer)?;
            }
            CollectiveKind::ReduceScatter => layout.reduce_scatter(call, place)?,
            CollectiveKind::BroadcastFrom => layout.broadcast(call, place)?,
            CollectiveKind::AllGather | CollectiveKind::Gather => layout.gather(call, place)?,
            CollectiveKind::Scatter => layout.scatter(call, place)?,
            CollectiveKind::AllToAll => layout.all_to_all(call, place)?,
        }
        Ok(layout)
    }

    /// Memory of this many bytes.
    fn room(&mut self, bytes: usize) -> Result<ByteSpan> {
        let buffer = Buffer::fixed(bytes)?;
        let span = ByteSpan::new(buffer.as_ptr(), bytes);
        self.buffers.push(buffer);
        Ok(span)
    }

    /// A value as a plain array.
    fn plain(&mut self, value: &LentTensor) -> Result<ByteSpan> {
        if let Some(start) = value.plain() {
            return Ok(ByteSpan::new(start, value.bytes()));
        }
        let span = self.room(value.bytes())?;
        value.copy_to(span.start());
        Ok(span)
    }

    /// A plain array for what comes to an out; an out of another layout gets it at the end.
    fn place_of(&mut self, outs: &[LentTensor]) -> Result<ByteSpan> {
        let Some(first) = outs.first() else { return Ok(ByteSpan::NONE) };
        if let Some(start) = first.plain() {
            let span = ByteSpan::new(start, first.bytes());
            self.copies = Some((span, 1));
            return Ok(span);
        }
        let span = self.room(first.bytes())?;
        self.copies = Some((span, 0));
        Ok(span)
    }

    fn reduce(
        &mut self,
        call: &CollectiveCall,
        place: WorkerPlace,
        reducer: &Reducer,
    ) -> Result<()> {
        let CollectiveCall { head, values, outs, dtype } = call;
        let own = if let [only] = &values[..] {
            self.plain(only)?
        } else {
            let span = self.room(values[0].bytes())?;
            reducer.undivided().reduce_own(values, span.start())?;
            span
        };
        let (all, is_root) = (head.kind == CollectiveKind::AllReduce, head.root == place.rank);
        let gets = |rank: u32| all || rank == head.root;
        let count = values[0].count;
        self.count = count as u64;
        let result = self.place_of(outs)?;
        if own.len() <= SHORT.max(WHOLE / place.workers as usize) {
            for rank in others(place) {
                if gets(rank) {
                    self.sends[rank as usize] = own;
                }
                if all || is_root {
                    self.receives[rank as usize] = own;
                }
            }
            if all || is_root {
                let out = if result.is_empty() { self.room(own.len())? } else { result };
                self.reduced = Some(ReducedPart { own, out });
            }
            return Ok(());
        }
        let part =
            |rank: u32, of: ByteSpan| of.part(&elements(count, place.workers, rank), dtype.size());
        let mine = part(place.rank, own);
        let out = match part(place.rank, result) {
            ByteSpan::NONE => self.room(mine.len())?,
            out => out,
        };
        self.reduced = Some(ReducedPart { own: mine, out });
        for rank in others(place) {
            self.sends[rank as usize] = part(rank, own);
            self.receives[rank as usize] = mine;
            if all || is_root {
                let of = part(rank, own).len();
                let place = part(rank, result);
                self.results[rank as usize] = if place.is_empty() { self.room(of)? } else { place };
            }
        }
        if !mine.is_empty() {
            self.result_receivers = others(place).filter(|rank| gets(*rank)).collect();
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, call: &CollectiveCall, place: WorkerPlace) -> Result<()> {
        let own = self.plain(&call.values[place.rank as usize])?;
        let out = self.place_of(&call.outs)?;
        self.reduced = Some(ReducedPart { own, out });
        for rank in others(place) {
            self.sends[rank as usize] = self.plain(&call.values[rank as usize])?;
            self.receives[rank as usize] = own;
        }
        Ok(())
    }

    fn broadcast(&mut self, call: &CollectiveCall, place: WorkerPlace) -> Result<()> {
        let root = call.head.root;
        if root != place.rank {
            self.receives[root as usize] = self.place_of(&call.outs)?;
            self.count = call.outs[0].count as u64;
            return Ok(());
        }
        let own = self.plain(&call.values[0])?;
        self.count = call.values[0].count as u64;
        call.outs.iter().for_each(|out| out.copy_from(own.start()));
        others(place).for_each(|rank| self.sends[rank as usize] = own);
        Ok(())
    }

    fn gather(&mut self, call: &CollectiveCall, place: WorkerPlace) -> Result<()> {
        let own = self.plain(&call.values[0])?;
        let all = call.head.kind == CollectiveKind::AllGather;
        for rank in others(place) {
            if all || rank == call.head.root {
                self.sends[rank as usize] = own;
            }
        }
        self.receive_outs(call, place)?;
        if let Some(out) = call.outs.get(place.rank as usize) {
            out.copy_from(own.start());
        }
        Ok(())
    }

    /// Each out takes the segment of its rank.
    fn receive_outs(&mut self, call: &CollectiveCall, place: WorkerPlace) -> Result<()> {
        for (rank, out) in (0..).zip(&call.outs).filter(|(rank, _)| *rank != place.rank) {
            self.receives[rank as usize] = match out.plain() {
                Some(start) => ByteSpan::new(start, out.bytes()),
                None => self.room(out.bytes())?,
            };
        }
        Ok(())
    }

    fn scatter(&mut self, call: &CollectiveCall, place: WorkerPlace) -> Result<()> {
        let root = call.head.root;
        if root != place.rank {
            self.receives[root as usize] = self.place_of(&call.outs)?;
            return Ok(());
        }
        for rank in others(place) {
            self.sends[rank as usize] = self.plain(&call.values[rank as usize])?;
        }
        let own = self.plain(&call.values[place.rank as usize])?;
        call.outs[0].copy_from(own.start());
        Ok(())
    }

    fn all_to_all(&mut self, call: &CollectiveCall, place: WorkerPlace) -> Result<()> {
        let me = place.rank as usize;
        for rank in others(place) {
            self.sends[rank as usize] = self.plain(&call.values[rank as usize])?;
        }
        self.receive_outs(call, place)?;
        let own = self.plain(&call.values[me])?;
        call.outs[me].copy_from(own.start());
        Ok(())
    }

    /// Copies what has arrived to outs that are no plain arrays, and to further outs.
    pub(super) fn hand_out(&self, call: &CollectiveCall, place: WorkerPlace) {
        if let Some((from, done)) = self.copies {
            call.outs[done..].iter().for_each(|out| out.copy_from(from.start()));
        }
        let kind = call.head.kind;
        let by_rank = [CollectiveKind::AllGather, CollectiveKind::Gather, CollectiveKind::AllToAll];
        if by_rank.contains(&kind) {
            let others = (0..).zip(&call.outs).filter(|(rank, _)| *rank != place.rank);
            for (rank, out) in others.filter(|(_, out)| out.plain().is_none()) {
                out.copy_from(self.receives[rank as usize].start());
            }
        }
    }
}

fn others(place: WorkerPlace) -> impl Iterator<Item = u32> {
    (0..place.workers).filter(move |rank| *rank != place.rank)
}

/// The elements of an array that a rank reduces.
fn elements(count: usize, workers: u32, rank: u32) -> std::ops::Range<usize> {
    let each = count.div_ceil(workers as usize).next_multiple_of(PART);
    let start = (each * rank as usize).min(count);
    start..(start + each).min(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_an_array_are_all_of_it() {
        for workers in 1..9 {
            for count in [0, 1, 63, 64, 65, 1_000, 4_096, 100_001] {
                let mut next = 0;
                for rank in 0..workers {
                    let part = elements(count, workers, rank);
                    assert_eq!(part.start, next);
                    assert!(part.start.is_multiple_of(PART) || part.is_empty());
                    next = part.end;
                }
                assert_eq!(next, count);
            }
        }
    }
}
