//! The connections that are not admitted yet: how many there may be, and for how long.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::super::admission::ListenerGreeting;
use super::super::layer::Layer;
use crate::sys;

/// Maximum time of a greeting on a short link.
const GREETING: Duration = Duration::from_secs(2);
/// The same has so many round trips more: a greeting takes four, with TLS and a token.
const TRIPS: u32 = 6;
/// Maximum round trip that is believed: the peer decides when it acknowledges.
const LONGEST_TRIP: Duration = Duration::from_secs(2);
/// Maximum number of greetings at a time, and the least that it becomes where few files may be open.
const MOST: usize = 1_024;
const FEWEST: usize = 16;
/// The share of a process's open files that greetings may take: the rest is for its peers.
const SHARE: u64 = 4;

/// A connection during its greeting.
pub(super) struct PendingConnection {
    pub(super) socket: TcpStream,
    pub(super) ip: IpAddr,
    pub(super) layer: Layer,
    pub(super) greeting: ListenerGreeting,
    /// Bytes that have arrived and were not understood yet, and those of them that were inside TLS.
    pub(super) received: Vec<u8>,
    pub(super) plain: Vec<u8>,
    /// Its first byte has arrived.
    pub(super) is_called: bool,
}

impl PendingConnection {
    pub(super) fn new(socket: TcpStream, ip: IpAddr, layer: Layer) -> Self {
        let greeting = ListenerGreeting::default();
        Self {
            socket,
            ip,
            layer,
            greeting,
            received: Vec::new(),
            plain: Vec::new(),
            is_called: false,
        }
    }
}

/// All of them, by numbers that grow with the time of their arrival.
pub(super) struct PendingConnections<T = PendingConnection> {
    most: usize,
    all: BTreeMap<usize, Timed<T>>,
    counts: HashMap<IpAddr, usize>,
    next: usize,
}

struct Timed<T> {
    began: Instant,
    deadline: Instant,
    connection: T,
}

impl<T> Default for PendingConnections<T> {
    fn default() -> Self {
        Self { most: MOST, all: BTreeMap::new(), counts: HashMap::new(), next: 0 }
    }
}

impl PendingConnections {
    /// As many as this process may open files for.
    pub(super) fn of_this_process() -> Self {
        let files = sys::file_limit().map_or(MOST, |files| {
            usize::try_from(files / SHARE).unwrap_or(MOST).clamp(FEWEST, MOST)
        });
        Self { most: files, ..Self::default() }
    }
}

/// What has an address, and a way there.
pub(super) trait HasAddress {
    fn ip(&self) -> IpAddr;

    /// The round trip to the peer, as far as the system has measured it.
    fn round_trip(&self) -> Duration;
}

impl HasAddress for PendingConnection {
    fn ip(&self) -> IpAddr {
        self.ip
    }

    fn round_trip(&self) -> Duration {
        sys::round_trip(self.socket.as_raw_fd()).unwrap_or_default()
    }
}

impl<T: HasAddress> PendingConnections<T> {
    /// Makes room for one more from an address, which may have half of the places that others leave free. The
    /// oldest one of the address goes if it has more, or of that with the most if no place is free.
    pub(super) fn make_room(&mut self, ip: IpAddr) -> Option<T> {
        let own = self.counts.get(&ip).copied().unwrap_or(0);
        let others = self.all.len() - own;
        let crowded = if own > 0 && own >= self.most.saturating_sub(others) / 2 {
            ip
        } else if self.all.len() >= self.most {
            *self.counts.iter().max_by_key(|(_, count)| **count)?.0
        } else {
            return None;
        };
        let oldest = self.all.iter().find(|(_, it)| it.connection.ip() == crowded);
        let token = *oldest?.0;
        self.remove(token)
    }

    /// Adds one, and gives its number.
    pub(super) fn add(&mut self, connection: T, now: Instant) -> usize {
        let token = self.next;
        self.next += 1;
        *self.counts.entry(connection.ip()).or_default() += 1;
        let deadline = deadline(now, &connection);
        self.all.insert(token, Timed { began: now, deadline, connection });
        token
    }

    /// Something has arrived: the system may know more of the round trip now.
    pub(super) fn extend(&mut self, token: usize) {
        if let Some(it) = self.all.get_mut(&token) {
            it.deadline = it.deadline.max(deadline(it.began, &it.connection));
        }
    }

    pub(super) fn get(&mut self, token: usize) -> Option<&mut T> {
        self.all.get_mut(&token).map(|it| &mut it.connection)
    }

    pub(super) fn remove(&mut self, token: usize) -> Option<T> {
        let Timed { connection, .. } = self.all.remove(&token)?;
        if let Some(count) = self.counts.get_mut(&connection.ip()) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&connection.ip());
            }
        }
        Some(connection)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.all.values().map(|it| it.deadline).min()
    }

    /// Removes those whose time is over.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<T> {
        let late = self.all.iter().filter(|(_, it)| it.deadline <= now);
        let late: Vec<usize> = late.map(|(token, _)| *token).collect();
        late.into_iter().filter_map(|token| self.remove(token)).collect()
    }
}

/// When the greeting of a connection must be over. It does not move with the bytes that arrive, or a stranger
/// could keep its place by a byte now and then.
fn deadline(began: Instant, connection: &impl HasAddress) -> Instant {
    began + GREETING + TRIPS * connection.round_trip().min(LONGEST_TRIP)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    struct Named(IpAddr, usize, Duration);

    fn named(address: usize, number: usize) -> Named {
        Named(ip(address), number, Duration::ZERO)
    }

    impl HasAddress for Named {
        fn ip(&self) -> IpAddr {
            self.0
        }

        fn round_trip(&self) -> Duration {
            self.2
        }
    }

    fn ip(last: usize) -> IpAddr {
        Ipv4Addr::from(u32::try_from(last).unwrap()).into()
    }

    /// Adds one, and gives the one that has gone for it.
    fn add(
        all: &mut PendingConnections<Named>,
        address: usize,
        number: usize,
    ) -> Option<(IpAddr, usize)> {
        let gone = all.make_room(ip(address));
        all.add(named(address, number), Instant::now());
        gone.map(|Named(ip, number, _)| (ip, number))
    }

    #[test]
    fn one_address_keeps_half_of_the_places_and_loses_its_oldest() {
        let mut all = PendingConnections::default();
        for number in 0..MOST / 2 {
            assert_eq!(add(&mut all, 1, number), None);
        }
        for number in 0..100 {
            assert_eq!(add(&mut all, 1, MOST / 2 + number), Some((ip(1), number)));
        }
        // Another address has half of what is left.
        for number in 0..MOST / 4 {
            assert_eq!(add(&mut all, 2, number), None);
        }
        assert_eq!(add(&mut all, 2, MOST), Some((ip(2), 0)));
        assert_eq!(all.all.len(), MOST / 2 + MOST / 4);
    }

    #[test]
    fn with_very_many_addresses_one_of_the_most_frequent_goes() {
        let mut all = PendingConnections::default();
        for number in 0..10 {
            add(&mut all, 1, number);
        }
        for address in 2..=MOST - 9 + 1 {
            if all.all.len() < MOST {
                assert_eq!(add(&mut all, address, 0), None);
            }
        }
        assert_eq!(all.all.len(), MOST);
        assert_eq!(add(&mut all, 5_000, 0), Some((ip(1), 0)));
        assert_eq!((all.all.len(), all.counts[&ip(1)]), (MOST, 9));
    }

    #[test]
    fn connections_that_are_too_slow_go_in_the_order_of_arrival() {
        let (mut all, start) = (PendingConnections::default(), Instant::now());
        for number in 0..5_u32 {
            let at = start + Duration::from_millis(10) * number;
            all.add(named(number as usize, number as usize), at);
        }
        all.remove(1);
        assert_eq!(all.next_deadline(), Some(start + GREETING));
        let gone = all.overdue(start + GREETING + Duration::from_millis(25));
        assert_eq!(gone.iter().map(|it| it.1).collect::<Vec<_>>(), [0, 2]);
        assert_eq!((all.all.len(), all.counts.len()), (2, 2));
    }

    #[test]
    fn a_greeting_over_a_long_link_has_more_time_and_no_byte_gives_it_any() {
        let (mut all, start) = (PendingConnections::default(), Instant::now());
        let far = |trip| Named(ip(1), 0, trip);
        let second = Duration::from_secs(1);
        all.add(far(second), start);
        assert_eq!(all.next_deadline(), Some(start + 8 * second));
        all.remove(0);
        // A peer that acknowledges late is believed up to a bound.
        all.add(far(100 * second), start);
        assert_eq!(all.next_deadline(), Some(start + 14 * second));
        all.remove(1);
        let token = all.add(far(Duration::ZERO), start);
        all.extend(token);
        assert_eq!(all.next_deadline(), Some(start + GREETING));
        // The system has measured it meanwhile.
        all.get(token).unwrap().2 = second;
        all.extend(token);
        all.extend(token);
        assert_eq!(all.next_deadline(), Some(start + 8 * second));
    }
}
