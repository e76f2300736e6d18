//! Sorting by a number, in time linear in the list. Also called: radix sort.

/// A number, and what it belongs to.
pub(crate) type SortItem = (u64, usize);

/// Bits that one pass sorts by: its counters stay in the nearest cache.
const DIGIT_BITS: u32 = 11;

const DIGITS: usize = 1 << DIGIT_BITS;

/// Lists up to this long are sorted faster by comparing.
const SHORT: usize = 256;

/// Items to sort; kept to reuse the memory.
#[derive(Default)]
pub(crate) struct Sorter {
    pub(crate) items: Vec<SortItem>,
    spare: Vec<SortItem>,
}

impl Sorter {
    /// Sorts by number, and by the second part where numbers are equal: items must have been added
    /// in the order of their second parts.
    pub(crate) fn sort(&mut self) {
        if self.items.is_sorted() {
            return;
        }
        if self.items.len() <= SHORT {
            return self.items.sort_unstable();
        }
        let (all, any) =
            self.items.iter().fold((u64::MAX, 0), |(all, any), item| (all & item.0, any | item.0));
        self.spare.resize(self.items.len(), (0, 0));
        // Digit by digit, the lowest first (Knuth, The Art of Computer Programming 3, 5.2.5). Each
        // pass is stable. Bits that all numbers share are skipped.
        let mut differing = any & !all;
        while differing != 0 {
            let shift = differing.trailing_zeros();
            scatter(&self.items, &mut self.spare, shift);
            std::mem::swap(&mut self.items, &mut self.spare);
            differing = differing >> shift >> DIGIT_BITS << DIGIT_BITS << shift;
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "a digit is below DIGITS")]
fn digit(number: u64, shift: u32) -> usize {
    (number >> shift) as usize & (DIGITS - 1)
}

/// Writes the items to `to`, ordered by the digit at `shift`.
fn scatter(from: &[SortItem], to: &mut [SortItem], shift: u32) {
    let mut places = [0usize; DIGITS];
    for item in from {
        places[digit(item.0, shift)] += 1;
    }
    let mut next = 0;
    for place in &mut places {
        next += std::mem::replace(place, next);
    }
    for &item in from {
        let place = &mut places[digit(item.0, shift)];
        to[*place] = item;
        *place += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvstore_protocol::testing::Random;

    #[test]
    fn items_are_sorted_whatever_their_numbers() {
        let mut random = Random::new(1);
        let mut sorter = Sorter::default();
        for mask in [0, 1, 0x7FF, 0x800, 0xF_F000, 1 << 63, 0x8000_0000_0000_0FFF, u64::MAX] {
            for len in [0, 1, 2, SHORT, SHORT + 1, 5000] {
                sorter.items.clear();
                sorter.items.extend((0..len).map(|index| (random.next() & mask, index)));
                let mut expected = sorter.items.clone();
                expected.sort_unstable();
                sorter.sort();
                assert!(sorter.items == expected, "mask {mask:#x}, {len} items");
            }
        }
    }
}
