//! The comparison of all tensors at once against one of each pair, byte by byte.

use std::ptr;
use std::time::Duration;

use super::{CallTensors, OverlapTensor, Overlaps, Position, Stop, TimeLimit, same};
use crate::deadline::LazyDeadline;
use crate::search;
use crate::tensor::layout::{self, RowWalk};
use crate::tensor::{DType, Lent, RawTensor, RawTensors};
use kvstore_protocol::testing::Random;

/// Where the memory begins. It is never read.
const BASE: usize = 1 << 20;

/// A tensor whose addresses alone matter.
struct Toy {
    lent: Lent,
    shape: Vec<i64>,
    at: Position,
}

impl Toy {
    fn new(offset: usize, dtype: DType, shape: &[i64], strides: &[i64], at: Position) -> Self {
        let raw = [RawTensor {
            data: ptr::without_provenance_mut(BASE + offset),
            device_type: 1,
            device_id: 0,
            ndim: i32::try_from(shape.len()).unwrap(),
            dtype: dtype.code(),
            shape: shape.as_ptr(),
            strides: strides.as_ptr(),
            byte_offset: 0,
        }];
        // SAFETY: shape and strides live for this function, and `Lent` copies them.
        let tensor = unsafe { RawTensors::new(&raw) }.get(0).unwrap();
        Self { lent: Lent::new(&tensor), shape: shape.to_vec(), at }
    }

    fn party(&self) -> OverlapTensor<'_> {
        OverlapTensor { lent: &self.lent, shape: &self.shape, at: self.at }
    }

    /// Each byte it touches.
    fn bytes(&self) -> Vec<usize> {
        let width = self.lent.dtype().size();
        let start = i64::try_from(self.lent.data().addr()).unwrap();
        let count = layout::count(&self.shape).unwrap();
        let plain = [1];
        let (shape, strides) = match self.lent.strides() {
            Some(strides) => (&*self.shape, strides),
            None => (&[i64::try_from(count).unwrap()][..], &plain[..]),
        };
        let rows = RowWalk::new(shape, strides, 0, count);
        let offsets = rows.flat_map(|row| {
            (0..i64::try_from(row.len).unwrap()).map(move |i| row.offset + i * row.stride)
        });
        let bytes = offsets.flat_map(|offset| {
            let first = start + offset * i64::try_from(width).unwrap();
            (0..width).map(move |byte| usize::try_from(first).unwrap() + byte)
        });
        let mut bytes: Vec<usize> = bytes.collect();
        bytes.sort_unstable();
        bytes
    }

    fn meets(&self, other: &Self) -> bool {
        let bytes = other.bytes();
        self.bytes().iter().any(|byte| bytes.binary_search(byte).is_ok())
    }

    fn is_same(&self, other: &Self) -> bool {
        same(&self.party(), &other.party())
    }
}

#[derive(Default)]
struct Toys {
    outs: Vec<Toy>,
    values: Vec<Toy>,
}

impl<'a> CallTensors<'a> for &'a Toys {
    fn out(&self, at: Position) -> OverlapTensor<'a> {
        self.outs[at.index].party()
    }

    fn value(&self, at: Position) -> OverlapTensor<'a> {
        self.values[at.index].party()
    }
}

impl Toys {
    /// Gives the indexes of the outs that later ones overwrite.
    fn find(&self, patience: Option<&LazyDeadline>) -> Result<Vec<usize>, Stop> {
        let (mut overlaps, mut shadowed) = (Overlaps::default(), Vec::new());
        self.outs.iter().for_each(|out| overlaps.add_out(&out.party()));
        let values = self.values.iter().map(|value| value.at);
        overlaps.find(&self, values, &mut shadowed, &mut TimeLimit::new(patience))?;
        shadowed.sort_unstable();
        Ok(shadowed)
    }

    /// Reference result by comparing each pair; None for an overlap.
    fn find_in_pairs(&self) -> Option<Vec<usize>> {
        let mut shadowed = Vec::new();
        for (index, out) in self.outs.iter().enumerate() {
            let later = &self.outs[index + 1..];
            if later.iter().any(|later| !out.is_same(later) && out.meets(later)) {
                return None;
            }
            if later.iter().any(|later| out.is_same(later)) {
                shadowed.push(index);
            }
            let twin = |value: &Toy| value.at.group == out.at.group && out.is_same(value);
            if self.values.iter().any(|value| !twin(value) && out.meets(value)) {
                return None;
            }
        }
        Some(shadowed)
    }
}

fn extent(random: &mut Random, most: usize) -> i64 {
    i64::try_from(1 + random.index(most)).unwrap()
}

/// A tensor somewhere in a matrix with rows of so many bytes.
fn toy(random: &mut Random, row: usize, at: Position) -> Toy {
    let dtype = [DType::U8, DType::F16, DType::F32, DType::F32][random.index(4)];
    let width = dtype.size();
    let offset = random.index(6 * row / width) * width;
    let step = i64::try_from(row / width).unwrap();
    let (tall, wide) = (extent(random, 5), extent(random, 4));
    let (shape, strides): (Vec<i64>, Vec<i64>) = match random.below(8) {
        0 | 1 => (vec![tall, wide], vec![step, 1]),
        2 | 3 => (vec![tall], vec![step]),
        4 => (vec![wide], vec![1]),
        5 => (vec![extent(random, 3), tall, wide], vec![2 * step, step, 1]),
        6 => (vec![tall, wide], vec![step, 2]),
        _ => (vec![wide, tall], vec![-1, step]),
    };
    // Negative strides need room before the first element.
    let offset = if strides[0] < 0 { offset + 4 * width } else { offset };
    Toy::new(offset, dtype, &shape, &strides, at)
}

fn toys(random: &mut Random) -> Toys {
    let row = [8, 16, 24, 40][random.index(4)];
    let (outs, values) = (1 + random.index(5), random.index(3));
    let mut toys = Toys::default();
    let mut group = 0;
    while toys.outs.len() < outs {
        group += random.index(2);
        let at = Position { group, index: toys.outs.len() };
        let out = if random.one_in(6) { copy(random, &toys.outs, at) } else { None };
        let out = out.unwrap_or_else(|| toy(random, row, at));
        let strides = out.lent.strides();
        if !strides.is_some_and(|strides| layout::overlaps_itself(&out.shape, strides)) {
            toys.outs.push(out);
        }
    }
    for index in 0..values {
        let at = Position { group: random.index(group + 1), index };
        let value = if random.one_in(2) { copy(random, &toys.outs, at) } else { None };
        toys.values.push(value.unwrap_or_else(|| toy(random, row, at)));
    }
    toys
}

/// One of the tensors again; as a value of its own group, if it can be.
fn copy(random: &mut Random, from: &[Toy], at: Position) -> Option<Toy> {
    let like = from.get(random.index(from.len().max(1)))?;
    let offset = like.lent.data().addr() - BASE;
    let (shape, strides) = if let Some(strides) = like.lent.strides() {
        (like.shape.clone(), strides.to_vec())
    } else {
        let count = layout::count(&like.shape).unwrap();
        (vec![i64::try_from(count).unwrap()], vec![1])
    };
    let group = at.group.max(like.at.group);
    Some(Toy::new(offset, like.lent.dtype(), &shape, &strides, Position { group, ..at }))
}

#[test]
fn the_verdicts_are_those_of_comparing_each_pair() {
    let mut random = Random::new(1);
    let (mut accepted, mut shadowing) = (0, 0);
    for layout in 0..10_000 {
        let toys = toys(&mut random);
        let (found, expected) = (toys.find(None), toys.find_in_pairs());
        accepted += usize::from(expected.is_some());
        shadowing += usize::from(expected.as_ref().is_some_and(|it| !it.is_empty()));
        assert_eq!(found.ok(), expected, "layout {layout}");
    }
    assert!((2000..8000).contains(&accepted) && shadowing > 100, "{accepted}, {shadowing}");
}

/// Columns of a matrix of f32, as outs.
fn columns(count: usize, rows: i64, in_place: bool) -> Toys {
    let stride = [i64::try_from(count).unwrap()];
    let column = |index: usize| {
        let at = Position { group: index, index };
        Toy::new(4 * index, DType::F32, &[rows], &stride, at)
    };
    let outs = (0..count).map(column).collect();
    let values = if in_place { (0..count).map(column).collect() } else { Vec::new() };
    Toys { outs, values }
}

#[test]
fn twenty_thousand_columns_take_a_comparison_each() {
    for in_place in [false, true] {
        let toys = columns(20_000, 50, in_place);
        let (steps, found) = search::steps_of(|| toys.find(None));
        assert_eq!(found, Ok(Vec::new()));
        assert!(steps <= 20_000, "{steps} comparisons");
    }
}

#[test]
fn values_between_the_outs_take_a_comparison_each() {
    let mut toys = columns(20_000, 50, false);
    let (outs, values): (Vec<Toy>, Vec<Toy>) =
        toys.outs.drain(..).partition(|toy| toy.at.index.is_multiple_of(2));
    for (index, (mut out, mut value)) in outs.into_iter().zip(values).enumerate() {
        (out.at.index, value.at.index) = (index, index);
        toys.outs.push(out);
        toys.values.push(value);
    }
    let (steps, found) = search::steps_of(|| toys.find(None));
    assert_eq!(found, Ok(Vec::new()));
    assert!(steps <= 20_000, "{steps} comparisons");
}

#[test]
fn one_column_too_wide_among_many_is_found() {
    let mut toys = columns(20_000, 50, false);
    let at = toys.outs[7_777].at;
    let stride = [20_000, 1];
    toys.outs[7_777] = Toy::new(4 * 7_777, DType::F32, &[50, 2], &stride, at);
    assert_eq!(toys.find(None), Err(Stop::Outs(toys.outs[7_778].at, at)));
}

#[test]
fn comparing_in_pairs_ends_with_the_time_of_the_call() {
    // Columns of two matrices of other widths in one place, in other bytes of each group of eight.
    let mut toys = Toys::default();
    for (first, stride) in [(0, 1600), (4, 1608)] {
        for column in 0..200 {
            let at = Position { group: toys.outs.len(), index: toys.outs.len() };
            toys.outs.push(Toy::new(first + 8 * column, DType::U8, &[50], &[stride], at));
        }
    }
    let patience = LazyDeadline::new(Some(Duration::ZERO));
    assert_eq!(toys.find(Some(&patience)), Err(Stop::Late));
    assert_eq!(toys.find(None), Ok(Vec::new()));
}
