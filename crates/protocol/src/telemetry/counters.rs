//! The table of a process's counters and gauges: each is a field, a member of JSON, a number on the wire, and the
//! metrics of Prometheus that show it.

/// Unit of a counter, for texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Things, such as frames or keys.
    Count,
    /// Number of a round: each of its digits matters.
    Ordinal,
    /// Microseconds.
    Micros,
}

/// A row of the table.
#[derive(Debug)]
pub struct Counter {
    /// Name of the field and of the member of JSON.
    pub name: &'static str,
    /// Number on the wire.
    pub(crate) number: u8,
    /// Unit of the value.
    pub unit: Unit,
    /// Reads the field.
    pub value: fn(&ProcessCounters) -> u64,
    /// Name and help of each metric. [`Counter::is_of`] gives its processes, the suffix `_total` those that
    /// only grow.
    pub metrics: &'static [(&'static str, &'static str)],
}

impl Counter {
    /// Whether processes of a role have a metric: its second word is the role, or `node` for all processes.
    #[must_use]
    pub fn is_of(metric: &str, role: &str) -> bool {
        metric.split('_').nth(1).is_some_and(|subject| subject == "node" || subject == role)
    }
}

macro_rules! counters {
    ($($(#[$about:meta])* $group:ident {
        $($(#[$doc:meta])* $number:literal $field:ident: $unit:ident $(, $metric:literal $help:literal)*;)*
    })*) => {
        /// Counters since the start of a process, and gauges of its present state.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct ProcessCounters { $($($(#[$doc])* pub $field: u64,)*)* }

        $($(#[$about])* pub const $group: &[Counter] = &[$(Counter {
            name: stringify!($field),
            number: $number,
            unit: Unit::$unit,
            value: |all| all.$field,
            metrics: &[$(($metric, $help),)*],
        },)*];)*

        impl ProcessCounters {
            /// The table, in the order of JSON.
            pub fn table() -> impl Iterator<Item = &'static Counter> {
                [$($group,)*].into_iter().flatten()
            }

            /// Sets the counter of a number on the wire; a number of a later release has none.
            pub(crate) fn set(&mut self, number: u8, value: u64) {
                match number {
                    $($($number => self.$field = value,)*)*
                    _ => {}
                }
            }
        }
    };
}

counters! {
    /// Rounds.
    ROUNDS {
        /// Worker: last round of an ended push. Server: last closed round.
        1 round: Ordinal,
            "kvstore_worker_round" "The last round that a worker has pushed.",
            "kvstore_server_round" "The last round that a server has closed.";
        /// Worker: ended pushes. Server: closed rounds, summed over slices.
        2 rounds: Count,
            "kvstore_worker_pushes_total" "Pushes of a worker that have ended.",
            "kvstore_server_closed_rounds_total" "Rounds of slices that have closed.";
    }
    /// Traffic of all links; bytes are those of frames.
    TRAFFIC {
        /// Bytes received, duplicates included.
        3 bytes_in: Bytes,
            "kvstore_node_received_bytes_total" "Bytes that came in, with the headers of messages.";
        /// Bytes sent, retransmissions included.
        4 bytes_out: Bytes,
            "kvstore_node_sent_bytes_total" "Bytes that went out, with the headers of messages.";
        /// Frames received, duplicates included.
        5 messages_in: Count,
            "kvstore_node_received_messages_total" "Messages that came in.";
        /// Frames sent, retransmissions included.
        6 messages_out: Count,
            "kvstore_node_sent_messages_total" "Messages that went out.";
        /// Retransmissions, of frames that were not acknowledged in time.
        7 resent: Count,
            "kvstore_node_resent_messages_total"
            "Messages that were sent again, because they were not acknowledged in time.";
        /// Deliveries that are no frames.
        8 bad_frames: Count,
            "kvstore_node_bad_frames_total"
            "Deliveries that were dropped because they were no message, or altered.";
        /// Messages of kinds of a later release.
        18 unknown_kinds: Count,
            "kvstore_node_unknown_messages_total"
            "Messages that were dropped because their kind is one of a later release.";
        /// Extension fields of a later release.
        19 unknown_fields: Count,
            "kvstore_node_unknown_fields_total"
            "Fields of messages that were skipped because they are ones of a later release.";
        /// Messages without an effect that no process of this protocol sends.
        20 ignored: Count,
            "kvstore_node_ignored_messages_total"
            "Messages without an effect that no correct process sends.";
        /// Messages in send queues now.
        9 queued: Count,
            "kvstore_node_queued_messages" "Messages that wait to be sent.";
        /// Unacknowledged payload bytes now.
        10 in_flight_bytes: Bytes,
            "kvstore_node_in_flight_bytes" "Bytes sent and not acknowledged.";
    }
    /// Keys and their values.
    CONTENTS {
        /// Worker: keys whose place is known. Server: keys with slices.
        11 keys: Count,
            "kvstore_worker_keys" "Keys that a worker uses.",
            "kvstore_server_keys" "Keys that a server has slices of.";
        /// Server: slices.
        12 slices: Count,
            "kvstore_server_slices" "Slices that a server has.";
        /// Server: bytes of values.
        13 stored_bytes: Bytes,
            "kvstore_server_stored_bytes" "Bytes of values that a server has.";
        /// Server: bytes of pushes held out of turn.
        14 held_bytes: Bytes,
            "kvstore_server_held_bytes"
            "Bytes of pushes that are held because the turn of their worker has not come.";
    }
    /// Faults and delays.
    FAULTS {
        /// Server: duplicate pushes.
        15 duplicates: Count,
            "kvstore_server_duplicate_pushes_total" "Pushes that came twice, and were added once.";
        /// Worker: failed calls.
        16 failures: Count,
            "kvstore_worker_failed_calls_total" "Calls that failed.";
        /// Maximum delay of a heartbeat, in microseconds. Its cause is other work of the process, such as that on
        /// a long list of keys, or that the process did not run.
        17 heartbeat_delay_us: Micros;
    }
}
