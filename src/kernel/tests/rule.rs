//! Rules in every build against a scalar loop.

use half::{bf16, f16};
use kvstore_checksum::crc64;

use super::{BEFORE, Number as Element, Ordered, Out, Random, TRAFFICS, bytes_of, isas};
use crate::kernel::{DigestScope, Formula, MAX_STATES, Number, Pass, Rule, RuleTarget, SumOrder};

/// Uses every operation and every state.
#[derive(Clone, Copy)]
pub(super) struct Sample<const FUSED: bool>;

const RATE: f64 = 0.3;
const BOUND: f64 = 0.7;

impl<const FUSED: bool> Formula for Sample<FUSED> {
    const NAME: &'static str = "sample";
    const STATES: usize = 3;
    const FUSED: bool = FUSED;
    const STREAMS: bool = true;

    fn step<N: Number>(self, gradient: N, value: N, states: &mut [N; MAX_STATES]) -> N {
        let clipped = gradient.clip(N::of(BOUND));
        states[0] = N::of(RATE) * states[0] + clipped;
        states[1] = states[1] - clipped * gradient;
        let size = states[1].if_greater(N::of(0.0), states[1], -states[1]);
        states[2] = size.sqrt() / (states[2].abs() + N::of(RATE));
        value - states[0] / (states[2] + N::of(RATE)) + value.sign()
    }
}

/// A float that rules calculate in, and the formula in plain numbers.
pub(super) trait Wide: Element {
    fn step(gradient: Self, value: Self, states: &mut [Self; 3]) -> Self;
}

macro_rules! wide {
    ($($float:ident)+) => {$(impl Wide for $float {
        #[allow(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
        fn step(gradient: Self, value: Self, states: &mut [Self; 3]) -> Self {
            let (rate, bound) = (RATE as $float, BOUND as $float);
            let clipped = if gradient > bound {
                bound
            } else if gradient < -bound {
                -bound
            } else {
                gradient
            };
            states[0] = rate * states[0] + clipped;
            states[1] -= clipped * gradient;
            let size = if states[1] > 0.0 { states[1] } else { -states[1] };
            states[2] = size.sqrt() / (states[2].abs() + rate);
            let sign = if value > 0.0 {
                1.0
            } else if value < 0.0 {
                -1.0
            } else {
                value
            };
            value - states[0] / (states[2] + rate) + sign
        }
    })+};
}

wide!(f32 f64);

/// A float in memory, with the float that rules calculate in.
pub(super) trait Stored: Element {
    type Wide: Wide;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

macro_rules! stored {
    ($($float:ident as $wide:ident: $narrow:expr);+) => {$(impl Stored for $float {
        type Wide = $wide;
        fn widen(self) -> $wide { self.into() }
        fn narrow(wide: $wide) -> Self { $narrow(wide) }
    })+};
}

stored!(f32 as f32: |it| it; f64 as f64: |it| it; f16 as f32: f16::from_f32; bf16 as f32: bf16::from_f32);

/// The arrays before a merge.
pub(super) struct Case<T: Stored> {
    pub(super) inputs: Vec<Vec<T>>,
    pub(super) value: Vec<T>,
    pub(super) master: Vec<T::Wide>,
    pub(super) states: [Vec<T::Wide>; 3],
}

impl<T: Stored> Case<T> {
    pub(super) fn new(random: &mut Random, inputs: usize, count: usize) -> Self {
        let array = |random: &mut Random| (0..count).map(|_| T::random(random)).collect();
        let inputs = (0..inputs).map(|_| array(random)).collect();
        let mut wide = || (0..count).map(|_| T::Wide::random(random)).collect::<Vec<_>>();
        let (master, states) = (wide(), [wide(), wide(), wide()]);
        Self { inputs, value: array(random), master, states }
    }

    /// Result of a scalar loop: the value, the master and the states.
    fn expected(&self, ordered: &Ordered, with_master: bool) -> Self {
        let count = self.value.len();
        let mut result =
            Case { inputs: vec![], value: vec![], master: vec![], states: Default::default() };
        for i in 0..count {
            let sum = ordered.sum(self.inputs.iter().map(|input| input[i]));
            let mut states = [0, 1, 2].map(|at: usize| self.states[at][i]);
            let old = if with_master { self.master[i] } else { self.value[i].widen() };
            let new = T::Wide::step(sum.widen(), old, &mut states);
            result.value.push(T::narrow(new));
            result.master.push(if with_master { new } else { self.master[i] });
            (0..3).for_each(|at| result.states[at].push(states[at]));
        }
        result
    }

    /// Merges with every build and compares; arrays begin at element offsets of many kinds.
    fn check(
        &self,
        (rule, ordered): (&dyn Rule, &Ordered),
        with_master: bool,
        number: usize,
        offset: usize,
    ) {
        ordered.with(|order| {
            self.check_in(rule, (ordered, order), with_master, (number, offset));
        });
    }

    fn check_in(
        &self,
        rule: &dyn Rule,
        (ordered, order): (&Ordered, SumOrder<'_>),
        with_master: bool,
        (number, offset): (usize, usize),
    ) {
        let (count, expected) = (self.value.len(), self.expected(ordered, with_master));
        let ways = TRAFFICS.map(|traffic| SCOPES.map(|scope| (traffic, scope)));
        let ways = isas().flat_map(|isa| ways.as_flattened().iter().map(move |way| (isa, *way)));
        for (isa, (traffic, scope)) in ways {
            let mut inputs: Vec<Out<T>> =
                self.inputs.iter().map(|input| Out::new(offset + 1, input)).collect();
            let inputs: Vec<*const u8> =
                inputs.iter_mut().map(|it| it.start().cast_const()).collect();
            let mut value = Out::new(offset, &self.value);
            let mut master = Out::new(offset, &self.master);
            let mut states = [0, 1, 2].map(|at: usize| Out::new(at, &self.states[at]));
            let mut outs: Vec<Out<T>> =
                (0..number).map(|_| Out::new(offset + 3, &self.value)).collect();
            let mut places: Vec<*mut u8> = outs.iter_mut().map(Out::start).collect();
            let changed = if with_master {
                places.push(value.start());
                master.start()
            } else {
                value.start()
            };
            // Streaming needs equal offsets in a cache line.
            let traffic = if with_master { crate::kernel::Traffic::Ahead } else { traffic };
            let (dtype, outs_at, inputs) = (T::DTYPE, &*places, &*inputs);
            let pass = Pass { dtype, outs: outs_at, inputs, count, traffic, order, divisor: None };
            let states_at = states.each_mut().map(Out::start);
            let target = RuleTarget::new(changed, with_master, states_at);
            if scope.is_some_and(|scope| with_master || !rule.digests(isa, &pass, scope)) {
                continue;
            }
            let mut digests = BEFORE;
            // SAFETY: all arrays have `count` elements and are apart.
            unsafe {
                match scope {
                    Some(scope) => rule.merge_digested(&pass, &target, (&mut digests, scope)),
                    None => rule.merge(isa, &pass, &target),
                }
            }
            let case = || {
                let inputs = inputs.len();
                format!("{} {traffic:?} {:?} {order:?}, {inputs} x {count}", isa.name(), T::DTYPE)
            };
            value.check(&expected.value, false, &case);
            master.check(&expected.master, false, &case);
            (0..3).for_each(|at| states[at].check(&expected.states[at], false, &case));
            outs.iter().for_each(|out| out.check(&expected.value, false, &case));
            if let Some(scope) = scope {
                let states = states.each_ref().map(|state| state.bytes(count));
                let mut expected = BEFORE;
                expected.value = crc64::append(BEFORE.value, value.bytes(count));
                if let DigestScope::All { inputs } = scope {
                    let states = expected.states.iter_mut().zip(states);
                    let read = self.inputs.iter().map(|input| bytes_of(input));
                    let read = expected.inputs.iter_mut().zip(read).filter(|_| inputs);
                    states.chain(read).for_each(|(sum, bytes)| *sum = crc64::append(*sum, bytes));
                }
                assert_eq!(digests, expected, "{scope:?} of {}", case());
            }
        }
    }
}

/// Without digests, and with digests of each scope.
const SCOPES: [Option<DigestScope>; 4] = [
    None,
    Some(DigestScope::Value),
    Some(DigestScope::All { inputs: false }),
    Some(DigestScope::All { inputs: true }),
];

/// Numbers with an instance, others, and more than a pass keeps at hand.
const INPUTS: [usize; 8] = [1, 2, 3, 4, 5, 8, 9, 18];
const OUTS: [usize; 6] = [0, 1, 2, 3, 4, 18];

fn check_all<T: Stored>(random: &mut Random, with_master: bool) {
    let sizes = if super::is_small() { &[0, 1, 17, 65][..] } else { &[0, 1, 7, 63, 64, 65, 1000] };
    for (index, (&count, inputs)) in
        sizes.iter().flat_map(|count| INPUTS.map(|inputs| (count, inputs))).enumerate()
    {
        let case = Case::<T>::new(random, inputs, count);
        for ordered in Ordered::all(random, inputs) {
            // Two numbers of outs are enough for the orders that have no instances of their own.
            let outs = if matches!(ordered, Ordered::At(_)) { &OUTS[1..3] } else { &OUTS[..] };
            for outs in outs {
                case.check((&Sample::<true>, &ordered), with_master, *outs, index % 8);
            }
            case.check((&Sample::<false>, &ordered), with_master, index % 3, index % 5);
        }
    }
}

#[test]
fn rules_of_all_builds_are_those_of_a_scalar_loop() {
    let mut random = Random::new(71);
    check_all::<f32>(&mut random, false);
    check_all::<f64>(&mut random, false);
    check_all::<f16>(&mut random, false);
    check_all::<bf16>(&mut random, false);
}

#[test]
fn a_master_keeps_what_a_half_loses() {
    let mut random = Random::new(72);
    check_all::<f16>(&mut random, true);
    check_all::<bf16>(&mut random, true);
}
