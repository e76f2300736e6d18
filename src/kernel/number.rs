//! Numbers that formulas calculate with: a register of floats with the usual operators.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// How many arrays of state a rule may keep.
pub(crate) const MAX_STATES: usize = 3;

/// A register of floats.
///
/// Every operation is the one of IEEE 754, rounded once; nothing is fused or approximated, so all
/// implementations give the same bits. Values exist only inside kernels, where the instruction set
/// of the implementor is there.
pub(super) trait Arithmetic: Copy {
    /// A constant in every lane, rounded to the type of the elements.
    fn splat(constant: f64) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn sqrt(self) -> Self;
    /// Lane by lane `then` where `self > other`, else `otherwise`; no NaN is greater than anything.
    fn if_greater(self, other: Self, then: Self, otherwise: Self) -> Self;

    /// See [`Number::clip`].
    #[inline(always)]
    fn clip(self, bound: Self) -> Self {
        let (below, least) = (self.if_greater(bound, bound, self), bound.neg());
        least.if_greater(below, least, below)
    }
}

/// Operands of formulas: one number, or a register of them.
pub(crate) trait Number:
    Copy
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// A constant, rounded to the type of the elements.
    fn of(constant: f64) -> Self;
    fn abs(self) -> Self;
    fn sqrt(self) -> Self;
    /// `then` where `self > other`, else `otherwise`; no NaN is greater than anything.
    fn if_greater(self, other: Self, then: Self, otherwise: Self) -> Self;

    /// The nearest number within `-bound..=bound`; a NaN stays one.
    #[inline(always)]
    fn clip(self, bound: Self) -> Self {
        let below = self.if_greater(bound, bound, self);
        (-bound).if_greater(below, -bound, below)
    }

    /// 1 of a positive number, -1 of a negative one; a zero and a NaN stay what they are.
    #[inline(always)]
    fn sign(self) -> Self {
        let zero = Self::of(0.0);
        let positive = self.if_greater(zero, Self::of(1.0), self);
        zero.if_greater(self, Self::of(-1.0), positive)
    }
}

/// A register with operators.
#[derive(Clone, Copy)]
pub(super) struct Operand<R>(pub(super) R);

macro_rules! operators {
    ($($operator:ident::$method:ident)+) => {$(
        impl<R: Arithmetic> $operator for Operand<R> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self { Self(R::$method(self.0, other.0)) }
        }
    )+};
}

operators!(Add::add Sub::sub Mul::mul Div::div);

impl<R: Arithmetic> Neg for Operand<R> {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        Self(self.0.neg())
    }
}

impl<R: Arithmetic> Number for Operand<R> {
    #[inline(always)]
    fn of(constant: f64) -> Self {
        Self(R::splat(constant))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(self.0.abs())
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(self.0.sqrt())
    }

    #[inline(always)]
    fn if_greater(self, other: Self, then: Self, otherwise: Self) -> Self {
        Self(self.0.if_greater(other.0, then.0, otherwise.0))
    }

    #[inline(always)]
    fn clip(self, bound: Self) -> Self {
        Self(self.0.clip(bound.0))
    }
}

/// Two registers that are treated as one.
#[derive(Clone, Copy)]
pub(super) struct Pair<R>(pub(super) R, pub(super) R);

impl<R: Arithmetic> Arithmetic for Pair<R> {
    #[inline(always)]
    fn splat(constant: f64) -> Self {
        Self(R::splat(constant), R::splat(constant))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(self.0.add(other.0), self.1.add(other.1))
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(self.0.sub(other.0), self.1.sub(other.1))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(self.0.mul(other.0), self.1.mul(other.1))
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Self(self.0.div(other.0), self.1.div(other.1))
    }

    #[inline(always)]
    fn neg(self) -> Self {
        Self(self.0.neg(), self.1.neg())
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self(self.0.abs(), self.1.abs())
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(self.0.sqrt(), self.1.sqrt())
    }

    #[inline(always)]
    fn if_greater(self, other: Self, then: Self, otherwise: Self) -> Self {
        Self(
            self.0.if_greater(other.0, then.0, otherwise.0),
            self.1.if_greater(other.1, then.1, otherwise.1),
        )
    }

    #[inline(always)]
    fn clip(self, bound: Self) -> Self {
        Self(self.0.clip(bound.0), self.1.clip(bound.1))
    }
}

macro_rules! arrays {
    ($($float:ident)+) => {$(
        impl<const N: usize> Arithmetic for [$float; N] {
            #[inline(always)]
            #[allow(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
            fn splat(constant: f64) -> Self { [constant as $float; N] }
            #[inline(always)]
            fn add(self, other: Self) -> Self { std::array::from_fn(|i| self[i] + other[i]) }
            #[inline(always)]
            fn sub(self, other: Self) -> Self { std::array::from_fn(|i| self[i] - other[i]) }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { std::array::from_fn(|i| self[i] * other[i]) }
            #[inline(always)]
            fn div(self, other: Self) -> Self { std::array::from_fn(|i| self[i] / other[i]) }
            #[inline(always)]
            fn neg(self) -> Self { self.map(|it| -it) }
            #[inline(always)]
            fn abs(self) -> Self { self.map($float::abs) }
            #[inline(always)]
            fn sqrt(self) -> Self { self.map($float::sqrt) }
            #[inline(always)]
            fn if_greater(self, other: Self, then: Self, otherwise: Self) -> Self {
                std::array::from_fn(|i| if self[i] > other[i] { then[i] } else { otherwise[i] })
            }
        }
    )+};
}

arrays!(f32 f64);
