//! A job in the bytes of docs/internals/wire.md, with another number in every field, for tests of its views.

use super::{PreviousReports, View, view};
use kvstore_protocol::JobView;

/// Roles and states of members on the wire.
const WORKER: u8 = 1;
const SERVER: u8 = 2;
const HERE: u8 = 0;
const LOST: u8 = 1;

fn put(out: &mut Vec<u8>, numbers: impl IntoIterator<Item = u64>) {
    numbers.into_iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

fn put_u32(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&u32::try_from(number).unwrap().to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&u16::try_from(text.len()).unwrap().to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Numbers of the counters on the wire: those with metrics of messages that were not understood are the last.
const COUNTERS: u64 = 20;

/// Fields behind their length.
fn sized(fields: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_u32(&mut out, fields.len());
    [&out, fields].concat()
}

/// A report behind its length: its numbers follow each other from `first` on.
fn report(age_s: u64, first: u64, waiting: &[(u8, u64, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, [age_s * 1_000_000 + 250_000]);
    put_u32(&mut out, usize::try_from(COUNTERS).unwrap());
    for number in 1..=COUNTERS {
        out.push(u8::try_from(number).unwrap());
        put(&mut out, [if number > 17 { first + 20 + number } else { first + number - 1 }]);
    }
    for histogram in 0..3 {
        put(&mut out, [first + 100 + histogram]);
        let used = if histogram == 1 { 0 } else { 2 };
        put_u32(&mut out, used);
        for bucket in 0..used {
            out.push(u8::try_from(30 + 12 * bucket).unwrap());
            put(&mut out, [first + histogram]);
        }
    }
    put(&mut out, [first + 17]);
    put_u32(&mut out, waiting.len());
    for (call, key, name) in waiting {
        let mut own = vec![*call, 1];
        put(&mut own, [*key, first, (first + 1_000) * 1_000]);
        put_text(&mut own, name);
        put_u32(&mut own, 1);
        own.extend_from_slice(&[WORKER, 1, 0, 0, 0]);
        out.extend_from_slice(&sized(&own));
    }
    put_u32(&mut out, 1);
    put_u32(&mut out, 1);
    put(&mut out, [first + 18, age_s * 900_000]);
    // Processes of earlier releases report no transports.
    if first < 1_000_000 {
        put_u32(&mut out, 1);
        put_text(&mut out, "tcp");
        put_text(&mut out, "shm: shm=no");
        put_u32(&mut out, 20);
        put_u32(&mut out, 1);
        out.extend_from_slice(&[SERVER, 1, 0, 0, 0]);
    }
    sized(&out)
}

/// A worker with a report, a lost worker without one, and two servers; the numbers grow with time.
fn seen(time: u64) -> JobView {
    let mut out = Vec::new();
    put(&mut out, [1_795_302_465_172_000 + time * 1_000_000, 7]);
    [3, 2, 4].into_iter().for_each(|number| put_u32(&mut out, number));
    let terms = [
        ("type", "dist_sync"),
        ("staleness", "none"),
        ("on_worker_loss", "fail"),
        ("peer_timeout_ms", "5000"),
        ("slice_bytes", "1048576"),
        ("hold_bytes", "268435456"),
        ("max_rounds_ahead", "2"),
    ];
    put_u32(&mut out, terms.len());
    for (name, value) in terms {
        put_text(&mut out, name);
        put_text(&mut out, value);
    }
    out.extend_from_slice(&report(50 + time, 11, &[]));
    put_u32(&mut out, 4);
    put_u32(&mut out, 4);
    let waits = [(3, 5, "conv"), (1, 6, ""), (8, 0, "")];
    let members = [
        (WORKER, 0, HERE, "tcp/h:1", Some(report(40 + time, 2_000 * time, &waits))),
        (WORKER, 1, LOST, "quote\"", None),
        (SERVER, 0, HERE, "tcp/h:3", Some(report(30 + time, 3_000_000 * time, &[]))),
        (SERVER, 1, HERE, "", Some(report(30 + time, 40_000 * time, &[]))),
    ];
    for (role, rank, state, address, report) in members {
        let mut own = vec![role];
        put_u32(&mut own, rank);
        own.push(state);
        put_text(&mut own, address);
        let never = u64::MAX;
        put(&mut own, if report.is_some() { [310_000, 90_000] } else { [never, never] });
        own.extend_from_slice(&report.unwrap_or_default());
        out.extend_from_slice(&sized(&own));
    }
    JobView::decode(&out).unwrap()
}

/// The second of two looks at the job.
pub(crate) fn second_look() -> View {
    let mut before = PreviousReports::new();
    view("10.0.0.1:9091", &seen(1), &mut before);
    view("10.0.0.1:9091", &seen(2), &mut before)
}
