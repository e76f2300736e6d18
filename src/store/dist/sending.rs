//! From a checked call to what the machine is asked for: values are added up or encoded, and every key
//! becomes an order.
#![allow(unsafe_code, reason = "plain values are lent to the engine as they are")]

use std::collections::BTreeMap;
use std::sync::Arc;

use super::call::{Call, Part, Target};
use super::coding::{Source, Unsent};
use super::rows::{self, Wanted};
use super::worker::WorkerStore;
use crate::cluster::{After, Data as _, Time};
use crate::codec::Codec;
use crate::deadline::Deadline;
use crate::driver::{Bytes, Loan};
use crate::error::Result;
use crate::store::Call as Kind;
use crate::store::counters::Tally;
use crate::store::plan::{self, Group, Pairs, Plan, RowPairs};
use crate::store::table::Slot;
use crate::sys::DefaultFloats;
use crate::tensor::{Buffer, Lent};

/// Keys of a call that are given to the machine at a time, and bytes of their values.
const AT_ONCE: (usize, u64) = (128, 512 << 10);

/// A key of a call, ready for the machine.
pub(super) struct Order {
    pub(super) key: u64,
    pub(super) what: What,
}

impl Order {
    /// Of the values that it sends.
    fn bytes(&self) -> u64 {
        match &self.what {
            What::Push(value) | What::PushPull(value) => value.len(),
            _ => 0,
        }
    }
}

/// What the machine is asked for.
pub(super) enum What {
    Push(Bytes),
    PushPull(Bytes),
    Pull,
    /// Something else than values, of some slices.
    Want(BTreeMap<u32, Vec<u8>>, After),
    /// Slices of a checkpoint.
    Restore(Vec<Bytes>),
}

impl WorkerStore {
    pub(super) fn plan_rows(&self, call: Kind, pairs: &RowPairs<'_>) -> Result<Plan> {
        self.find(call.name(), pairs.rows.keys.iter().copied())?;
        let mut plan = Plan::default();
        let part = if call == Kind::PushRows { plan::Part::Value } else { plan::Part::Out };
        plan.build_rows(&self.local.keys.scene(call.name()), pairs, part)?;
        Ok(plan)
    }

    /// Gives a planned call on rows to the machine.
    pub(super) fn send_rows(
        &self,
        mut plan: Plan,
        priority: i32,
        ticket: Option<u64>,
        deadline: Deadline,
    ) -> Result<Arc<Call>> {
        let (mut parts, mut orders) = (Vec::new(), Vec::new());
        for Group { slot, values, outs } in std::mem::take(&mut plan.groups) {
            let (place, key) = (self.place(slot.key)?, slot.key.id());
            let (target, what) = if outs.is_empty() {
                let pushed = values.map(|index| plan.rows.of(index, &plan.values[index]));
                let (team, blocks) = (self.local.keys.team, &self.driver.blocks);
                let value = rows::push(team, &slot, &place, pushed, blocks)?;
                (Target::Nowhere, What::Push(value))
            } else {
                let lists = outs.clone().map(|index| plan.rows.of(index, &plan.outs[index].lent));
                let (wanted, asked) = Wanted::new(&slot, &place, lists)?;
                if asked.is_empty() {
                    continue;
                }
                (Target::Rows(Box::new(wanted)), What::Want(asked, After::Own))
            };
            parts.push(Part { slot, loan: None, target, outs });
            orders.push(Order { key, what });
        }
        self.launch(Call::new(ticket, plan, parts), orders, priority, deadline)
    }

    /// Checks a call. A broadcast initialises here and is a pull from then on.
    pub(super) fn plan(
        &self,
        call: Kind,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
    ) -> Result<(Plan, Kind)> {
        let name = call.name();
        let mut plan = Plan::default();
        if call == Kind::Broadcast {
            self.create(name, values)?;
            self.find(name, outs.keys.iter().copied())?;
            plan.build(&self.local.keys.scene(name), &Pairs::NONE, outs)?;
            return Ok((plan, Kind::Pull));
        }
        self.find(name, values.keys.iter().chain(outs.keys).copied())?;
        plan.build(&self.local.keys.scene(name), values, outs)?;
        Ok((plan, call))
    }

    /// Gives a planned call to the machine.
    pub(super) fn send(
        &self,
        mut plan: Plan,
        priority: i32,
        ticket: Option<u64>,
        deadline: Deadline,
    ) -> Result<Arc<Call>> {
        let groups = std::mem::take(&mut plan.groups);
        let (mut parts, mut orders) =
            (Vec::with_capacity(groups.len()), Vec::with_capacity(groups.len()));
        let mut tally = Tally::default();
        let codec = self.local.handling.read().codec.clone();
        let mut unsent = codec.map(|codec| (codec, self.unsent.lock()));
        for group in groups {
            let coding = unsent.as_mut().map(|(codec, unsent)| (&**codec, &mut **unsent));
            let (part, order) = self.prepare(&plan, group, coding, &mut tally)?;
            parts.push(part);
            orders.push(order);
        }
        let sent = self.launch(Call::new(ticket, plan, parts), orders, priority, deadline);
        drop(unsent);
        self.local.applier.counters.add(&tally);
        sent
    }

    /// Gives the orders of a call to the machine.
    pub(super) fn launch(
        &self,
        call: Arc<Call>,
        orders: Vec<Order>,
        priority: i32,
        deadline: Deadline,
    ) -> Result<Arc<Call>> {
        let (end, mut first) = (self.moment(deadline), 0);
        let mut orders = orders.into_iter().enumerate().peekable();
        // What is first is on its way before the last is in the machine.
        while orders.peek().is_some() {
            let mut bytes = 0;
            let mut few = |(part, order): &(usize, Order)| {
                bytes += order.bytes();
                *part == first || (*part < first + AT_ONCE.0 && bytes <= AT_ONCE.1)
            };
            let some = std::iter::from_fn(|| orders.next_if(&mut few));
            match self.start(&call, some, priority, end) {
                Ok(()) => {}
                Err(error) if first == 0 => return Err(error),
                Err(error) => {
                    call.fail(first, error);
                    break;
                }
            }
            first = orders.peek().map_or(0, |(part, _)| *part);
        }
        self.driver.host.settle(&call, &self.driver.blocks);
        Ok(call)
    }

    /// Gives some orders of a call to the machine. An error says that none of them has begun.
    fn start(
        &self,
        call: &Arc<Call>,
        orders: impl Iterator<Item = (usize, Order)>,
        priority: i32,
        end: Time,
    ) -> Result<()> {
        self.step(|worker, desk, now| {
            for (part, Order { key, what }) in orders {
                let operation = match what {
                    What::PushPull(value) => worker.pushpull(key, value, priority, now, end),
                    What::Push(value) => worker.push(key, value, priority, now, end),
                    What::Pull => worker.pull(key, priority, now, end),
                    What::Want(wanted, after) => {
                        worker.pull_wanted(key, wanted, (after, priority), now, end)
                    }
                    What::Restore(slices) => worker.restore(key, slices, now, end),
                };
                match operation {
                    Ok(operation) => desk.enter(operation, call, part),
                    // Nothing has begun: the first of a call is refused if any is.
                    Err(failure) if part == 0 => return Err(self.error(&failure)),
                    Err(failure) => call.fail(part, self.error(&failure)),
                }
            }
            Ok(())
        })
    }

    /// What the machine needs of one key: its values added up, and a place for its outs.
    fn prepare(
        &self,
        plan: &Plan,
        group: Group,
        coding: Option<(&Codec, &mut Unsent)>,
        tally: &mut Tally,
    ) -> Result<(Part, Order)> {
        let coding = coding.filter(|_| group.slot.dtype.is_float());
        let Group { slot, values, outs } = group;
        let (lent, key) = (&plan.values[values], slot.key.id());
        let pulls = !outs.is_empty();
        tally.add(&Tally::of(lent.len(), outs.len(), slot.bytes()));
        let (loan, value) = match (lent, coding) {
            ([], _) => (None, None),
            (_, Some((codec, unsent))) => (None, Some(self.encode(&slot, lent, codec, unsent)?)),
            ([only], None) if only.is_plain(slot.dtype) => {
                // SAFETY: plain values are as large as their key's, and are lent until the call has
                // ended, which ends the loan.
                let loan = Arc::new(unsafe { Loan::new(only.data(), slot.bytes()) });
                (Some(Arc::clone(&loan)), Some(Bytes::of_loan(loan, slot.bytes())))
            }
            _ => (None, Some(self.sum(&slot, lent)?)),
        };
        let target = match &plan.outs[outs.clone()] {
            [] => Target::Nowhere,
            [only] if only.lent.is_plain(slot.dtype) => Target::Out(only.lent.data()),
            _ => Target::Own(Buffer::fixed(slot.bytes())?),
        };
        let what = match value {
            Some(value) if pulls => What::PushPull(value),
            Some(value) => What::Push(value),
            None => What::Pull,
        };
        Ok((Part { slot, loan, target, outs }, Order { key, what }))
    }

    /// Adds the values of a key up, left to right.
    fn sum(&self, slot: &Slot, values: &[Lent]) -> Result<Bytes> {
        let buffer = self.add_up(slot, values)?;
        Ok(Bytes::of_block(Arc::new(self.driver.blocks.wrap(buffer, slot.bytes()))))
    }

    fn add_up(&self, slot: &Slot, values: &[Lent]) -> Result<Buffer> {
        let buffer = self.driver.blocks.take(slot.bytes())?;
        let _floats = DefaultFloats::enter();
        self.local.keys.team.sum(slot, values, &buffer)?;
        Ok(buffer)
    }

    /// The sum of a key's values as a codec makes it.
    fn encode(
        &self,
        slot: &Slot,
        values: &[Lent],
        codec: &Codec,
        unsent: &mut Unsent,
    ) -> Result<Bytes> {
        let sum = self.add_up(slot, values)?;
        let slice_bytes = self.place(slot.key)?.slice_bytes;
        let slice_bytes = usize::try_from(slice_bytes).unwrap_or(usize::MAX);
        let round = self.step(|worker, _, _| Ok(worker.pushes_before_next(slot.key.id())))?;
        let source = Source { slot, sum: &sum, slice_bytes, rank: self.rank.into(), round };
        let encoded = unsent.encode(codec, self.local.keys.team, &source, &self.driver.blocks);
        self.driver.blocks.give_back(sum);
        encoded
    }
}
