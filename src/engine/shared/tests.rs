//! Both sides of a ring in one process: a segment is found through /proc as from any other.

use super::{Inlets, Outlet, Reference};

fn send(outlet: &mut Outlet, bytes: &[u8]) -> Option<Reference> {
    let mut claim = outlet.claim(bytes.len())?;
    claim.bytes().copy_from_slice(bytes);
    Some(outlet.publish(&claim, bytes.len()))
}

fn content(number: usize, len: usize) -> Vec<u8> {
    (0..=250).cycle().skip(number).take(len).collect()
}

#[test]
fn what_is_written_on_one_side_is_read_on_the_other() {
    let (mut outlet, inlets) = (Outlet::new().unwrap(), Inlets::default());
    assert!(outlet.claim(10).is_none(), "nobody has taken the offer");
    assert!(inlets.take("peer", &outlet.offer()).is_none(), "an offer has no bytes");
    let mut pending = std::collections::VecDeque::new();
    for number in 0..2_000 {
        let bytes = content(number, 1 + number * 7_919 % 700_000);
        match send(&mut outlet, &bytes) {
            Some(reference) => pending.push_back((reference, bytes)),
            None => assert!(pending.len() > 3, "a ring with room for several"),
        }
        let sent = Reference::decode(&pending[0].0.encode()).unwrap();
        if pending.len() > number % 20 {
            let piece = inlets.take("peer", &sent).unwrap();
            assert!(piece.bytes() == pending[0].1, "number {number}");
            piece.give_back();
            pending.pop_front();
        }
        if pending.is_empty() {
            send(&mut outlet, &[1]).map(|it| pending.push_back((it, vec![1]))).unwrap();
        }
    }
}

#[test]
fn bytes_that_nobody_reads_fill_the_ring_and_nothing_else() {
    let (mut outlet, inlets) = (Outlet::new().unwrap(), Inlets::default());
    inlets.take("peer", &outlet.offer());
    let bytes = content(3, 1 << 20);
    let sent: Vec<_> = std::iter::from_fn(|| send(&mut outlet, &bytes)).collect();
    assert_eq!(sent.len(), 8);
    // One that was lost is given back with the next.
    inlets.take("peer", &sent[1]).unwrap().give_back();
    assert!(inlets.take("peer", &sent[2]).unwrap().bytes() == bytes);
    assert!(send(&mut outlet, &bytes).is_some() && send(&mut outlet, &bytes).is_some());
    assert!(send(&mut outlet, &bytes).is_none());
}

#[test]
fn a_reference_to_anything_else_is_refused() {
    let (mut outlet, inlets) = (Outlet::new().unwrap(), Inlets::default());
    let offer = outlet.offer();
    let other = std::fs::File::open("/dev/null").unwrap();
    let fd = u32::try_from(std::os::fd::AsRawFd::as_raw_fd(&other)).unwrap();
    for wrong in [
        Reference { fd, ..offer },
        Reference { fd: 999_999, ..offer },
        Reference { pid: u32::MAX, ..offer },
        Reference { size: offer.size * 2, ..offer },
        Reference { size: u64::MAX, ..offer },
        Reference { size: 0, ..offer },
        Reference { token: [offer.token[0], !offer.token[1]], ..offer },
    ] {
        assert!(inlets.take("peer", &Reference { len: 1, ..wrong }).is_none());
    }
    assert!(outlet.claim(1).is_none(), "none of them counts as an answer");
    inlets.take("peer", &offer);
    let sent = send(&mut outlet, &[1, 2, 3]).unwrap();
    for wrong in [
        Reference { len: 4, ..sent },
        Reference { start: 1, ..sent },
        Reference { start: u64::MAX, ..sent },
        Reference { len: u64::MAX, ..sent },
    ] {
        assert!(inlets.take("peer", &wrong).is_none(), "{wrong:?}");
    }
    assert!(inlets.take("peer", &sent).unwrap().bytes() == [1, 2, 3]);
    assert!(Reference::decode(&sent.encode()[1..]).is_none());
    assert!(Reference::decode(&[]).is_none());
}

#[test]
fn no_file_is_left_in_the_file_system() {
    let outlet = Outlet::new().unwrap();
    let names = std::fs::read_dir("/dev/shm").unwrap().flatten().map(|entry| entry.file_name());
    assert!(names.filter(|name| name.to_string_lossy().starts_with("kvstore")).count() == 0);
    drop(outlet);
}
