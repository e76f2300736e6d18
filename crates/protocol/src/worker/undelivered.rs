//! Count of an operation's unacknowledged messages.

use smallvec::SmallVec;

/// Unacknowledged messages, by server.
#[derive(Debug, Default)]
pub(super) struct Undelivered {
    /// Attempt, for the tokens of the messages: acknowledgements of an earlier attempt are ignored.
    attempt: u32,
    total: u32,
    /// The first server and its count: most operations have no other.
    first: (u32, u32),
    others: SmallVec<[(u32, u32); 2]>,
}

impl Undelivered {
    pub(super) fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Begins the next attempt.
    pub(super) fn restart(&mut self) {
        *self = Self { attempt: self.attempt + 1, ..Self::default() };
    }

    /// Counts a sent message; returns the attempt for its token.
    pub(super) fn send(&mut self, server: u32) -> u32 {
        if self.total == 0 {
            self.first = (server, 0);
        }
        self.total += 1;
        *self.count_mut(server) += 1;
        self.attempt
    }

    /// Counts an acknowledgement.
    pub(super) fn arrive(&mut self, server: u32, attempt: u32) {
        if attempt == self.attempt {
            let count = self.count_mut(server);
            let came = (*count).min(1);
            *count -= came;
            self.total -= came;
        }
    }

    /// Drops the count of a lost server.
    pub(super) fn give_up(&mut self, server: u32) {
        self.total -= std::mem::take(self.count_mut(server));
    }

    fn count_mut(&mut self, server: u32) -> &mut u32 {
        if self.first.0 == server {
            return &mut self.first.1;
        }
        let at = self.others.iter().position(|(other, _)| *other == server);
        let at = at.unwrap_or_else(|| {
            self.others.push((server, 0));
            self.others.len() - 1
        });
        &mut self.others[at].1
    }
}

#[cfg(test)]
mod tests {
    use super::Undelivered;

    #[test]
    fn each_message_counts_once_until_it_has_arrived_or_its_server_is_lost() {
        let mut undelivered = Undelivered::default();
        assert!(undelivered.is_empty());
        let attempt = [3, 0, 3, 7].map(|server| undelivered.send(server))[0];
        undelivered.arrive(3, attempt);
        undelivered.arrive(7, attempt);
        undelivered.arrive(7, attempt);
        undelivered.give_up(0);
        undelivered.arrive(0, attempt);
        assert!(!undelivered.is_empty(), "one to server 3");
        undelivered.arrive(3, attempt);
        assert!(undelivered.is_empty());
        undelivered.send(0);
        undelivered.restart();
        let again = undelivered.send(0);
        undelivered.arrive(0, attempt);
        assert!(!undelivered.is_empty(), "what arrived was of the attempt before");
        undelivered.arrive(0, again);
        assert!(undelivered.is_empty());
    }
}
