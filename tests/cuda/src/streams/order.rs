//! The scheduler's choice of the next stream, drawn from a seed.

/// A stream whose first command may run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) id: u64,
    pub(super) is_copy: bool,
    /// The stream was destroyed with what it had queued.
    pub(super) is_destroyed: bool,
}

/// The scheduling policy of one seed. Fair draws find few missing waits; starving a stream finds them.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "habits that seeds combine")]
pub(super) struct Order {
    random: u64,
    /// The commands of one stream run last: that many streams before the newest one.
    starved: Option<u64>,
    /// Streams that were destroyed run last.
    starves_destroyed: bool,
    /// Copies run after all other commands that may run.
    delays_copies: bool,
    /// The stream that a caller waits for goes first.
    is_direct: bool,
    /// Commands also run when others are queued.
    is_eager: bool,
}

impl Order {
    pub(super) fn new(seed: u64) -> Self {
        let mut order = Self {
            random: seed,
            starved: None,
            starves_destroyed: false,
            delays_copies: false,
            is_direct: false,
            is_eager: false,
        };
        let drawn = order.draw();
        order.starved = (!drawn.is_multiple_of(3)).then_some(drawn >> 8 & 7);
        order.starves_destroyed = (drawn >> 12).is_multiple_of(2);
        order.delays_copies = (drawn >> 16).is_multiple_of(4);
        order.is_direct = (drawn >> 20).is_multiple_of(4);
        order.is_eager = (drawn >> 24).is_multiple_of(4);
        order
    }

    /// A random number (SplitMix64).
    pub(super) fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Number of commands that run when one is queued.
    pub(super) fn eager_steps(&mut self) -> u64 {
        if self.is_eager { self.draw() % 4 } else { 0 }
    }

    /// Number of commands that run at a query.
    pub(super) fn query_steps(&mut self) -> u64 {
        self.draw() % 5
    }

    /// `next_id`: that of the next new stream.
    pub(super) fn choose(
        &mut self,
        ready: &[Candidate],
        target: Option<u64>,
        next_id: u64,
    ) -> Option<u64> {
        if ready.is_empty() {
            return None;
        }
        let wanted = ready.iter().find(|it| Some(it.id) == target);
        if let Some(wanted) = wanted.filter(|_| self.is_direct) {
            return Some(wanted.id);
        }
        let starved = self.starved.and_then(|before| next_id.checked_sub(before + 1));
        let rank = |it: &Candidate| {
            let reasons = [
                Some(it.id) == starved,
                it.is_copy && self.delays_copies,
                it.is_destroyed && self.starves_destroyed,
            ];
            reasons.into_iter().filter(|reason| *reason).count()
        };
        let least = ready.iter().map(rank).min()?;
        let best: Vec<u64> = ready.iter().filter(|it| rank(it) == least).map(|it| it.id).collect();
        Some(best[(self.draw() % best.len() as u64) as usize])
    }
}
