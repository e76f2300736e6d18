//! Key updates: asked for, answered, and made before the limit of a key.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::super::record::{MAX_CONTENT, OVERHEAD};
use super::super::sealer::PeerUpdate;
use super::{SUITES, open, open_of, pattern, seal, unseal};

/// A record with a key update, five bytes.
const UPDATE: usize = 5 + OVERHEAD;

#[test]
fn a_key_update_in_the_middle_of_a_value_is_followed_in_both_directions() {
    for suite in SUITES {
        let (caller, listener) = open_of(suite);
        let (mut to_listener, mut from_listener) = caller.tls.split().unwrap();
        let (mut to_caller, mut from_caller) = listener.tls.split().unwrap();
        let value = pattern(3 * MAX_CONTENT);
        for round in 0..5 {
            for (sealer, opener) in
                [(&mut to_listener, &mut from_caller), (&mut to_caller, &mut from_listener)]
            {
                let mut sealed = seal(sealer, &value[..MAX_CONTENT + 7]);
                sealer.update(PeerUpdate::NotRequested, &mut sealed).unwrap();
                sealed.extend(seal(sealer, &value[MAX_CONTENT + 7..]));
                // The peer was not asked, so the other direction has no update.
                assert_eq!(sealed.len(), value.len() + 4 * OVERHEAD + UPDATE, "round {round}");
                assert_eq!(unseal(opener, &sealed), Ok((value.clone(), false)));
            }
        }
    }
}

#[test]
fn halves_on_two_threads_answer_the_updates_of_one_another() {
    let (caller, listener) = open();
    let value = pattern(10 * MAX_CONTENT);
    let (to_listener, listener_bytes) = mpsc::channel();
    let (to_caller, caller_bytes) = mpsc::channel();
    thread::scope(|scope| {
        for (end, out, bytes) in
            [(caller, to_listener, caller_bytes), (listener, to_caller, listener_bytes)]
        {
            let (mut sealer, mut opener) = end.tls.split().unwrap();
            let value = &value;
            scope.spawn(move || {
                for _ in 0..50 {
                    let mut sealed = seal(&mut sealer, &value[..1000]);
                    sealer.update(PeerUpdate::Requested, &mut sealed).unwrap();
                    sealed.extend(seal(&mut sealer, &value[1000..]));
                    out.send(sealed).unwrap();
                }
            });
            scope.spawn(move || {
                for _ in 0..50 {
                    let sealed: Vec<u8> = bytes.recv_timeout(Duration::from_secs(20)).unwrap();
                    let (plain, _) = unseal(&mut opener, &sealed).unwrap();
                    assert!(plain == *value);
                }
            });
        }
    });
}

#[test]
fn a_requested_key_update_is_made_once_before_the_next_record() {
    let (caller, listener) = open();
    let (mut to_listener, mut from_listener) = caller.tls.split().unwrap();
    let (mut to_caller, mut from_caller) = listener.tls.split().unwrap();
    let mut sealed = Vec::new();
    // Two requests before the answer are answered by one update.
    to_listener.update(PeerUpdate::Requested, &mut sealed).unwrap();
    to_listener.update(PeerUpdate::Requested, &mut sealed).unwrap();
    sealed.extend(seal(&mut to_listener, b"under the third key"));
    assert_eq!(unseal(&mut from_caller, &sealed), Ok((b"under the third key".to_vec(), false)));

    assert!(seal(&mut to_caller, b"").is_empty());
    let answer = seal(&mut to_caller, b"answer");
    assert_eq!(answer.len(), UPDATE + 6 + OVERHEAD);
    assert_eq!(unseal(&mut from_listener, &answer), Ok((b"answer".to_vec(), false)));
    let next = seal(&mut to_caller, b"next");
    assert_eq!(next.len(), 4 + OVERHEAD);
    assert_eq!(unseal(&mut from_listener, &next), Ok((b"next".to_vec(), false)));
    // The answer asked for nothing.
    assert_eq!(seal(&mut to_listener, b"last").len(), 4 + OVERHEAD);
}

#[test]
fn a_key_protects_no_more_records_than_its_limit() {
    let (caller, listener) = open();
    let (mut sealer, mut opener) = (caller.tls.split().unwrap().0, listener.tls.split().unwrap().1);
    sealer.limit_records(100);
    let mut updates = Vec::new();
    for count in 1..=300_u32 {
        let value = count.to_le_bytes();
        let sealed = seal(&mut sealer, &value);
        if sealed.len() > value.len() + OVERHEAD {
            assert_eq!(sealed.len(), UPDATE + value.len() + OVERHEAD);
            updates.push(count);
        }
        assert_eq!(unseal(&mut opener, &sealed), Ok((value.to_vec(), false)));
    }
    // 99 records with data and the update make 100.
    assert_eq!(updates, [100, 199, 298]);
}

#[test]
fn a_value_of_more_records_than_the_limit_has_updates_within() {
    let (caller, listener) = open();
    let (mut sealer, mut opener) = (caller.tls.split().unwrap().0, listener.tls.split().unwrap().1);
    sealer.limit_records(10);
    let value = pattern(50 * MAX_CONTENT);
    let sealed = seal(&mut sealer, &value);
    assert_eq!(sealed.len(), value.len() + 50 * OVERHEAD + 5 * UPDATE);
    assert_eq!(unseal(&mut opener, &sealed), Ok((value, false)));
}
