//! Send window of a link (also: bandwidth-delay product): it grows until the link is full, however long it is.
//!
//! The rate at which a link delivers is measured as in Cheng, Cardwell, Yeganeh and Jacobson, "Delivery Rate
//! Estimation" (draft-cheng-iccrg-delivery-rate-estimation): between the moment of a frame and that of its
//! acknowledgement, the link has delivered what was acknowledged in between. Twice that rate times the shortest
//! round trip may be in flight: a link that the window has limited delivers a window in a round trip, and so gets
//! twice the window for the next.

use super::Time;

/// Maximum window in bytes, of a link of any rate and length.
const MOST: u64 = 256 << 20;
/// Round trips after which a link may count as slower than before.
const PERIOD: u64 = 8;
const MICROSECONDS: u128 = 1_000_000;

/// What the link had delivered when a frame was sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    at: Time,
    delivered: u64,
    delivered_at: Time,
}

/// Measures of a link, from acknowledgements.
#[derive(Debug)]
pub(super) struct SendWindow {
    /// Acknowledged bytes, and the moment of the last acknowledgement.
    delivered: u64,
    delivered_at: Time,
    /// Shortest round trip; None before the first.
    round_trip: Option<Time>,
    /// Bytes per second: the largest measure of this period and the one before. A frame that has waited behind
    /// others, on another connection, measures less than the link carries.
    rate: u64,
    /// Largest measure of this period with a full window, and the end of the period.
    largest: u64,
    period_ends: Time,
    /// Twice the product of both, in bytes.
    product: u64,
}

impl SendWindow {
    pub(super) fn new(now: Time) -> Self {
        let (round_trip, delivered, rate, largest, product) = (None, 0, 0, 0, 0);
        let (delivered_at, period_ends) = (now, now);
        Self { delivered, delivered_at, round_trip, rate, largest, period_ends, product }
    }

    /// A frame is sent, behind this many bytes in flight.
    pub(super) fn sent(&mut self, in_flight: u64, now: Time) -> Sent {
        if in_flight == 0 {
            // The time without anything to send is no time of delivery.
            self.delivered_at = now;
        }
        Sent { at: now, delivered: self.delivered, delivered_at: self.delivered_at }
    }

    /// An acknowledged frame has carried these bytes.
    pub(super) fn deliver(&mut self, bytes: u64, now: Time) {
        self.delivered += bytes;
        self.delivered_at = now;
    }

    /// Measures the link by the last frame that an acknowledgement is for, if it was sent once; `is_full`: the
    /// window was full.
    pub(super) fn measure(&mut self, sent: Sent, is_full: bool, now: Time) {
        let round_trip = now.saturating_sub(sent.at);
        let shortest = self.round_trip.map_or(round_trip, |before| before.min(round_trip));
        self.round_trip = Some(shortest);
        let time = now.saturating_sub(sent.delivered_at).max(shortest).max(1);
        let bytes = u128::from(self.delivered - sent.delivered);
        let rate = u64::try_from(bytes * MICROSECONDS / u128::from(time)).unwrap_or(u64::MAX);
        if is_full {
            self.largest = self.largest.max(rate);
        }
        if is_full && now >= self.period_ends {
            self.rate = std::mem::take(&mut self.largest);
            self.period_ends = now.saturating_add(PERIOD.saturating_mul(round_trip));
        }
        self.rate = self.rate.max(rate);
        let product = 2 * u128::from(self.rate) * u128::from(shortest) / MICROSECONDS;
        self.product = u64::try_from(product).unwrap_or(MOST).min(MOST);
    }

    /// Shortest round trip of the link, if it is known.
    pub(super) fn round_trip(&self) -> Option<Time> {
        self.round_trip
    }

    /// Bytes that may be in flight, at least `least`.
    pub(super) fn bytes(&self, least: u64) -> u64 {
        self.product.max(least)
    }

    /// Time in which an acknowledgement is expected, at least `least`.
    pub(super) fn patience(&self, least: Time) -> Time {
        self.round_trip.map_or(least, |round_trip| least.max(2 * round_trip))
    }
}

#[cfg(test)]
mod tests {
    use super::{MICROSECONDS, MOST, SendWindow};

    const LEAST: u64 = 4 << 20;
    const FRAME: u64 = 256 << 10;

    /// Sends frames as the window allows over a link of a rate, in bytes per second, and a round trip, which delivers
    /// one after the other; gives the moment at which the last of `frames` is acknowledged.
    fn carry(window: &mut SendWindow, frames: u64, rate: u64, round_trip: u64, start: u64) -> u64 {
        let (mut flight, mut in_flight) = (std::collections::VecDeque::new(), 0);
        let (mut now, mut idle_from, mut left) = (start, start, frames);
        while left > 0 || !flight.is_empty() {
            while left > 0 && (in_flight == 0 || in_flight < window.bytes(LEAST)) {
                let sent = window.sent(in_flight, now);
                idle_from = idle_from.max(now) + FRAME * 1_000_000 / rate;
                flight.push_back((idle_from + round_trip, sent));
                in_flight += FRAME;
                left -= 1;
            }
            let is_full = in_flight >= window.bytes(LEAST);
            let (at, sent) = flight.pop_front().unwrap();
            now = at;
            in_flight -= FRAME;
            window.deliver(FRAME, now);
            window.measure(sent, is_full, now);
        }
        now
    }

    #[test]
    fn a_long_link_is_filled_after_some_round_trips_and_a_short_one_keeps_the_least_window() {
        // 1 Gbit/s.
        let rate = 125_000_000;
        let (frames, ideal) = (1_024, 256 * (1 << 20) * 1_000_000 / rate);
        let mut long = SendWindow::new(0);
        let first = carry(&mut long, frames, rate, 100_000, 0);
        assert!(first < ideal + ideal / 7, "{first} us, the line alone {ideal} us");
        let second = carry(&mut long, frames, rate, 100_000, first) - first;
        assert!(second < ideal + ideal / 16, "{second} us");
        let product = 2 * rate / 10;
        assert!((product..2 * product).contains(&long.bytes(LEAST)), "{}", long.bytes(LEAST));
        let mut short = SendWindow::new(0);
        carry(&mut short, frames, 3_000_000_000, 100, 0);
        assert_eq!(short.bytes(LEAST), LEAST);
    }

    #[test]
    fn a_link_that_becomes_slower_gets_a_smaller_window() {
        let mut window = SendWindow::new(0);
        let now = carry(&mut window, 1_024, 125_000_000, 100_000, 0);
        let before = window.bytes(LEAST);
        carry(&mut window, 1_024, 62_500_000, 100_000, now);
        assert!(window.bytes(LEAST) < before * 2 / 3, "{before}, then {}", window.bytes(LEAST));
    }

    /// Frames that wait behind one on another connection are acknowledged one after the other, later than the link
    /// has carried them.
    #[test]
    fn low_measures_close_the_window_only_when_they_last() {
        let (rate, round_trip) = (125_000_000, 100_000);
        let mut window = SendWindow::new(0);
        let mut now = carry(&mut window, 1_024, rate, round_trip, 0);
        let before = window.bytes(LEAST);
        let burst = |now: &mut u64, window: &mut SendWindow| {
            let sent: Vec<_> = (0..64).map(|_| window.sent(before, *now)).collect();
            *now += round_trip;
            for sent in sent {
                *now += 4 * FRAME * 1_000_000 / rate;
                window.deliver(FRAME, *now);
                window.measure(sent, true, *now);
            }
        };
        burst(&mut now, &mut window);
        assert_eq!(window.bytes(LEAST), before, "for less than a period");
        (0..16).for_each(|_| burst(&mut now, &mut window));
        assert!(window.bytes(LEAST) < before / 2, "{before}, then {}", window.bytes(LEAST));
    }

    #[test]
    fn no_measure_leads_beyond_the_bounds() {
        let mut window = SendWindow::new(5);
        assert_eq!(window.bytes(LEAST), LEAST);
        assert_eq!(window.patience(7), 7);
        let sent = window.sent(0, 5);
        window.deliver(u64::MAX / 2, 5);
        window.measure(sent, true, 5);
        assert_eq!(window.bytes(LEAST), LEAST, "no time has passed");
        let sent = window.sent(0, u64::MAX / 4);
        window.deliver(u64::MAX / 4, u64::MAX / 2);
        window.measure(sent, true, u64::MAX / 2);
        assert!(u128::from(window.bytes(LEAST)) <= u128::from(MOST), "{MICROSECONDS}");
    }
}
