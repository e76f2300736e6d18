//! The arrays of a case, of any type of elements.

use kvstore::{DType, Element, Tensor, TensorMut, bf16, f16};

use super::case::{PERIOD, pushed};

/// Pushed values and pull targets: an array of each for every key.
pub(crate) trait BenchValues {
    /// Fills the pushed values with those of a worker's turn.
    fn fill(&mut self, rank: usize, turn: usize);

    /// Zeroes them, and the pulled values too.
    fn clear(&mut self);

    fn lend(&mut self) -> (Vec<Tensor<'_>>, Vec<TensorMut<'_>>);

    /// The first pulled element that differs from the expected one at its place in the period, in
    /// words.
    fn difference(&self, expected: [f64; PERIOD], exactly: bool) -> Option<String>;
}

pub(crate) fn new_values(dtype: DType, keys: usize, len: usize) -> Box<dyn BenchValues> {
    match dtype {
        DType::I8 => BenchArrays::<i8>::boxed(keys, len),
        DType::U8 => BenchArrays::<u8>::boxed(keys, len),
        DType::I16 => BenchArrays::<i16>::boxed(keys, len),
        DType::U16 => BenchArrays::<u16>::boxed(keys, len),
        DType::I32 => BenchArrays::<i32>::boxed(keys, len),
        DType::U32 => BenchArrays::<u32>::boxed(keys, len),
        DType::I64 => BenchArrays::<i64>::boxed(keys, len),
        DType::U64 => BenchArrays::<u64>::boxed(keys, len),
        DType::F16 => BenchArrays::<f16>::boxed(keys, len),
        DType::BF16 => BenchArrays::<bf16>::boxed(keys, len),
        DType::F64 => BenchArrays::<f64>::boxed(keys, len),
        // Never an opaque one: its values are not added.
        _ => BenchArrays::<f32>::boxed(keys, len),
    }
}

struct BenchArrays<T> {
    values: Vec<Vec<T>>,
    outs: Vec<Vec<T>>,
}

impl<T: Number> BenchArrays<T> {
    fn boxed(keys: usize, len: usize) -> Box<dyn BenchValues> {
        let arrays = || (0..keys).map(|_| vec![T::of(0.0); len]).collect();
        Box::new(Self { values: arrays(), outs: arrays() })
    }
}

impl<T: Number> BenchValues for BenchArrays<T> {
    fn fill(&mut self, rank: usize, turn: usize) {
        for (key, values) in self.values.iter_mut().enumerate() {
            let period: [T; PERIOD] =
                std::array::from_fn(|place| T::of(pushed(place + key, rank, turn)));
            values.iter_mut().zip(period.iter().cycle()).for_each(|(value, at)| *value = *at);
        }
    }

    fn clear(&mut self) {
        let arrays = self.values.iter_mut().chain(&mut self.outs);
        arrays.for_each(|array| array.fill(T::of(0.0)));
    }

    fn lend(&mut self) -> (Vec<Tensor<'_>>, Vec<TensorMut<'_>>) {
        let values = self.values.iter().map(|it| it.as_slice().into()).collect();
        (values, self.outs.iter_mut().map(|it| it.as_mut_slice().into()).collect())
    }

    fn difference(&self, expected: [f64; PERIOD], exactly: bool) -> Option<String> {
        for (key, out) in self.outs.iter().enumerate() {
            let period: [T; PERIOD] =
                std::array::from_fn(|place| T::of(expected[(place + key) % PERIOD]));
            let mut pairs = out.iter().zip(period.iter().cycle());
            let differs = |(got, right): (&T, &T)| got.differs(*right, exactly);
            if let Some(at) = pairs.position(differs) {
                let (got, right) = (out[at].value(), period[at % PERIOD].value());
                return Some(format!("element {at} of key {key} is {got}, and must be {right}"));
            }
        }
        None
    }
}

trait Number: Element + PartialEq {
    /// The exact number as a store would round it.
    fn of(exact: f64) -> Self;

    fn value(self) -> f64;

    fn differs(self, right: Self, exactly: bool) -> bool {
        // Roundings of an optimizer's steps; a push more or less is more than that.
        const ROUNDING: f64 = 1e-5;
        let (got, right_value) = (self.value(), right.value());
        let limit = ROUNDING * right_value.abs();
        if exactly { self != right } else { (got - right_value).abs() > limit || got.is_nan() }
    }
}

macro_rules! numbers {
    ($($number:ty, $exact:ident => $of:expr, $got:ident => $value:expr;)+) => {$(
        #[allow(clippy::cast_precision_loss, reason = "small numbers, or shown to people")]
        #[allow(clippy::cast_possible_truncation, reason = "sums of whole numbers wrap")]
        #[allow(clippy::cast_sign_loss, reason = "sums of whole numbers wrap")]
        impl Number for $number {
            fn of($exact: f64) -> Self {
                $of
            }

            fn value(self) -> f64 {
                let $got = self;
                $value
            }
        }
    )+};
}

numbers! {
    i8, exact => exact as i64 as i8, got => got.into();
    u8, exact => exact as i64 as u8, got => got.into();
    i16, exact => exact as i64 as i16, got => got.into();
    u16, exact => exact as i64 as u16, got => got.into();
    i32, exact => exact as i64 as i32, got => got.into();
    u32, exact => exact as i64 as u32, got => got.into();
    i64, exact => exact as i64, got => got as f64;
    u64, exact => exact as i64 as u64, got => got as f64;
    f16, exact => f16::from_f64(exact), got => got.to_f64();
    bf16, exact => bf16::from_f64(exact), got => got.to_f64();
    f32, exact => exact as f32, got => got.into();
    f64, exact => exact, got => got;
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test")]
mod tests {
    use kvstore::DType;

    use super::new_values;

    #[test]
    fn a_wrong_element_is_found_and_named_in_every_type() {
        for &dtype in DType::ALL.iter().filter(|dtype| !dtype.is_opaque()) {
            let mut values = new_values(dtype, 2, 7);
            let text = values.difference([0.0, 0.0, 1.0], true).unwrap();
            assert_eq!(text, "element 2 of key 0 is 0, and must be 1", "{dtype:?}");
            let text = values.difference([0.0, 1.0, 0.0], false).unwrap();
            assert_eq!(text, "element 1 of key 0 is 0, and must be 1", "{dtype:?}");
            assert_eq!(values.difference([0.0; 3], true), None);
            values.fill(1, 1);
            let pushed = values.lend().0;
            assert_eq!((pushed.len(), pushed[0].shape()), (2, &[7i64][..]));
        }
    }

    #[test]
    fn a_push_that_is_missing_is_no_rounding() {
        let values = new_values(DType::F32, 1, 1);
        assert_eq!(values.difference([0.0; 3], false), None);
        assert!(values.difference([1.0; 3], false).is_some());
    }
}
