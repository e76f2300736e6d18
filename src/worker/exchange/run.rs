//! A collective call under way (also called: request): its memory, and the events that complete it.
#![allow(unsafe_code, reason = "segments arrive in the memory that callers lend")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;

use super::layout::Layout;
use super::span::{ByteSpan, ReducedPart};
use crate::error::{Error, Result};
use crate::local::Local;
use crate::local::collective::{CollectiveCall, Reducer, WorkerPlace};
use crate::runtime::{BlockPool, Bytes, Loan};
use crate::sys::DefaultFloats;
use crate::sys::sync::Mutex;
use crate::transport::{ReceiveGate, ReceiveTarget, Receiver};
use crate::worker::group::WorkerGroup;
use crate::worker::outcome::{CallOutcome, end_loans};
use kvstore_protocol::{Data as _, ExchangeId, ExchangePlan, ExchangeTerms, Time};

/// The driver of exchanges, for its calls.
pub(super) trait ExchangeHome: Send + Sync {
    /// A piece of a result is there.
    fn reduced(self: Arc<Self>, exchange: ExchangeId, at: u64, data: &Bytes);

    /// Ends a call, which fails for all workers.
    fn give_up(self: Arc<Self>, exchange: ExchangeId, why: &str);

    fn blocks(&self) -> &Arc<BlockPool>;
}

/// What a call belongs to.
pub(super) struct RunOwner {
    /// The name of the call.
    pub(super) name: &'static str,
    /// Number of the ticket, for a call that has one.
    pub(super) ticket: Option<u64>,
    pub(super) home: Arc<dyn ExchangeHome>,
    /// The group of a call of a group's store.
    pub(super) group: Option<Arc<WorkerGroup>>,
}

/// How the result of the reduced part is sent.
enum SentResult {
    /// Each piece as a copy.
    Copied,
    Lent(Bytes),
}

/// Number of pieces whose list needs no allocation.
const PIECES: usize = 8;

pub(in crate::worker) struct ExchangeRun {
    call: CollectiveCall,
    place: WorkerPlace,
    layout: Layout,
    reducer: Reducer,
    /// Loans of what is sent from where it lies; the last one is that of the result.
    loans: SmallVec<[Arc<Loan>; 4]>,
    /// None if no other worker gets it.
    result: Option<SentResult>,
    owner: RunOwner,
    /// Outstanding events: actions under way, and one for the end of the exchange.
    events: AtomicUsize,
    failure: Mutex<Option<Error>>,
    outcome: CallOutcome,
    gate: ReceiveGate,
}

impl ExchangeRun {
    /// Prepares the memory of a call, and what it sends.
    pub(super) fn new(
        call: CollectiveCall,
        place: WorkerPlace,
        reducer: Reducer,
        owner: RunOwner,
    ) -> Result<Self> {
        let layout = Layout::new(&call, place, &reducer)?;
        Ok(Self {
            call,
            place,
            layout,
            reducer,
            loans: SmallVec::new(),
            result: None,
            owner,
            events: AtomicUsize::new(1),
            failure: Mutex::default(),
            outcome: CallOutcome::new(),
            gate: ReceiveGate::default(),
        })
    }

    /// What the machine does for the call. Large segments are lent, small ones copied.
    pub(super) fn plan(
        &mut self,
        what: u32,
        workers: u32,
        deadline: Time,
    ) -> Result<ExchangePlan<Bytes>> {
        let blocks = Arc::clone(self.owner.home.blocks());
        let largest = self.layout.sends.iter().map(|span| span.len()).max().unwrap_or(0);
        let reduced = self.layout.reduced.map_or(0, |part| part.out.len());
        let sends_result = !self.layout.result_receivers.is_empty();
        let is_lent = largest.max(if sends_result { reduced } else { 0 }) > COPIED;
        let mut made: SmallVec<[(ByteSpan, Bytes); 4]> = SmallVec::new();
        let mut sends = Vec::with_capacity(self.layout.sends.len());
        for span in self.layout.sends.clone() {
            if span.is_empty() {
                sends.push(None);
                continue;
            }
            let known =
                made.iter().find(|(known, _)| *known == span).map(|(_, bytes)| bytes.clone());
            let bytes = match known {
                Some(bytes) => bytes,
                None => self.outgoing(span, is_lent, &blocks)?,
            };
            made.push((span, bytes.clone()));
            sends.push(Some(bytes));
        }
        self.result = match self.layout.reduced {
            Some(part) if sends_result && is_lent => Some(SentResult::Lent(self.lend(part.out))),
            _ => sends_result.then_some(SentResult::Copied),
        };
        let lengths = |spans: &[ByteSpan]| spans.iter().map(|span| span.len() as u64).collect();
        let reduced = self.layout.reduced.map(|part| part.own.len() as u64);
        let CollectiveCall { head, dtype, .. } = &self.call;
        let plan = ExchangePlan {
            terms: ExchangeTerms {
                what,
                root: if head.kind.has_root() { head.root } else { 0 },
                dtype: dtype.code(),
                count: self.layout.count,
            },
            deadline,
            sends,
            is_lent,
            receives: lengths(&self.layout.receives),
            reduces: reduced.unwrap_or(0),
            result_receivers: self.layout.result_receivers.clone(),
            results: lengths(&self.layout.results),
        };
        Ok(match &self.owner.group {
            Some(group) => of_job(plan, &group.ranks, workers),
            None => plan,
        })
    }

    fn outgoing(
        &mut self,
        span: ByteSpan,
        is_lent: bool,
        blocks: &Arc<BlockPool>,
    ) -> Result<Bytes> {
        // SAFETY: the checks of the call have found the array.
        if is_lent { Ok(self.lend(span)) } else { unsafe { copy_of(span, blocks) } }
    }

    fn lend(&mut self, span: ByteSpan) -> Bytes {
        // SAFETY: the call keeps the memory until its loans have ended; what is sent of a result is not written
        // any more.
        let loan = Arc::new(unsafe { Loan::new(span.start(), span.len()) });
        self.loans.push(Arc::clone(&loan));
        Bytes::of_loan(loan, span.len())
    }

    /// Adds an outstanding event.
    pub(super) fn expect(&self) {
        self.events.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes an outstanding event; true for the last one.
    pub(super) fn settle(&self) -> bool {
        self.events.fetch_sub(1, Ordering::SeqCst) == 1
    }

    pub(super) fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
    }

    pub(super) fn call(&self) -> &CollectiveCall {
        &self.call
    }

    pub(super) fn ticket(&self) -> Option<u64> {
        self.owner.ticket
    }

    /// Calls `work` with the store of the call; not if it is gone.
    pub(super) fn with_local<T>(
        &self,
        of_job: &Arc<Local>,
        work: impl FnOnce(&Arc<Local>) -> T,
    ) -> Option<T> {
        WorkerGroup::with_local(self.owner.group.as_ref(), of_job, work)
    }

    /// The name of the call.
    pub(super) fn name(&self) -> &'static str {
        self.owner.name
    }

    fn place_of(&self, from: u32, is_result: bool) -> ByteSpan {
        let spans = if is_result { &self.layout.results } else { &self.layout.receives };
        let place = self.owner.group.as_ref().map_or(Some(from), |group| group.place_of(from));
        place.and_then(|place| spans.get(place as usize)).copied().unwrap_or(ByteSpan::NONE)
    }

    /// Copies a piece to its place.
    pub(super) fn fill(&self, from: u32, is_result: bool, at: u64, data: &Bytes) {
        let (segment, at) = (self.place_of(from, is_result), usize::try_from(at));
        if let Ok(at) = at {
            data.read(|bytes| segment.put(at, bytes));
        }
    }

    /// The place of a piece that is received to it, unless it is to be reduced.
    pub(super) fn landing(
        self: &Arc<Self>,
        from: u32,
        is_result: bool,
        at: u64,
        len: usize,
    ) -> Option<ReceiveTarget> {
        if !is_result && self.layout.reduced.is_some() {
            return None;
        }
        let (segment, at) = (self.place_of(from, is_result), usize::try_from(at).ok()?);
        at.checked_add(len).filter(|end| *end <= segment.len())?;
        let call = Arc::clone(self) as Arc<dyn Receiver>;
        // SAFETY: inside of an out, or of memory of the call, which closes the gate before they end; pieces are
        // disjoint.
        Some(unsafe { ReceiveTarget::new(segment.from(at, len).start(), len, call) })
    }

    /// Reduces the pieces of all ranks, and has the result sent.
    pub(super) fn reduce(&self, id: ExchangeId, at: u64, pieces: &[(u32, Bytes)]) {
        let Some(ReducedPart { own, out }) = self.layout.reduced else { return };
        let (Ok(start), Some((_, first))) = (usize::try_from(at), pieces.first()) else { return };
        let len = usize::try_from(first.len()).unwrap_or(0);
        if start + len > own.len() {
            return;
        }
        let mut inputs: SmallVec<[*const u8; PIECES]> = SmallVec::new();
        for (_, piece) in pieces {
            if inputs.len() == self.place.rank as usize {
                inputs.push(own.from(start, len).start());
            }
            let Some(bytes) = piece.in_block() else { return };
            debug_assert!(bytes.len() == len, "pieces of one length");
            inputs.push(bytes.as_ptr());
        }
        if inputs.len() == self.place.rank as usize {
            inputs.push(own.from(start, len).start());
        }
        let _floats = DefaultFloats::enter();
        let count = len / self.reducer.dtype.size();
        // SAFETY: pieces of one length, each in its block; the out may be exactly this worker's own.
        unsafe { self.reducer.reduce(&inputs, out.from(start, len).start(), count) };
        let home = Arc::clone(&self.owner.home);
        let result = match &self.result {
            None => Ok(first.part(0, 0)),
            Some(SentResult::Lent(whole)) => Ok(whole.part(at, len as u64)),
            // SAFETY: written above, and by no other thread.
            Some(SentResult::Copied) => unsafe { copy_of(out.from(start, len), home.blocks()) },
        };
        match result {
            Ok(result) => home.reduced(id, at, &result),
            Err(error) => {
                self.fail(error);
                home.give_up(id, "it has no memory for the result");
            }
        }
    }

    /// Ends the loans and copies results to the outs; gives the result.
    pub(super) fn complete(&self) -> Result<()> {
        self.gate.close();
        let failure = self.failure.lock().take().map_or(Ok(()), Err);
        let result = end_loans(&self.loans, failure, self.owner.home.blocks());
        if result.is_ok() {
            self.layout.hand_out(&self.call, self.place);
        }
        result
    }

    pub(super) fn outcome(&self) -> &CallOutcome {
        &self.outcome
    }
}

impl Receiver for ExchangeRun {
    fn gate(&self) -> &ReceiveGate {
        &self.gate
    }
}

/// A copy of an array.
///
/// # Safety
/// The span may be read, and no thread writes it meanwhile.
unsafe fn copy_of(span: ByteSpan, blocks: &Arc<BlockPool>) -> Result<Bytes> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(span.start(), span.len()) };
    Ok(Bytes::of_block(blocks.join(&[bytes])?))
}

/// A plan by places in a group as one by ranks of the job.
fn of_job(plan: ExchangePlan<Bytes>, ranks: &[u32], workers: u32) -> ExchangePlan<Bytes> {
    fn spread<T>(of_group: Vec<T>, ranks: &[u32], workers: u32, none: impl Fn() -> T) -> Vec<T> {
        let mut all: Vec<T> = (0..workers).map(|_| none()).collect();
        for (rank, it) in ranks.iter().zip(of_group) {
            all[*rank as usize] = it;
        }
        all
    }
    let receivers = plan.result_receivers.iter().map(|place| ranks[*place as usize]);
    ExchangePlan {
        sends: spread(plan.sends, ranks, workers, || None),
        receives: spread(plan.receives, ranks, workers, || 0),
        results: spread(plan.results, ranks, workers, || 0),
        result_receivers: receivers.collect(),
        ..plan
    }
}

/// Length in bytes up to which segments are copied: a loan ends after others have acknowledged it.
const COPIED: usize = 64 << 10;
