//! Answers that no scheduler of a job sends; the JSON of a job.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::Observer;
use crate::ErrorKind;
use crate::transport::{BlockingSender, Exchange, Inbox, Piece, Transport};
use kvstore_protocol::testing::encode;
use kvstore_protocol::{Header, MessageKind};

/// Answers every message with the same bytes.
struct Parrot {
    transport: OnceLock<Arc<dyn Transport>>,
    bytes: Vec<u8>,
    asked: SyncSender<()>,
}

impl Inbox for Parrot {
    fn arrived(&self, from: &str, _: usize, pieces: &mut dyn Iterator<Item = Piece<'_>>) {
        pieces.for_each(drop);
        let _ = self.asked.try_send(());
        let transport = self.transport.get().unwrap();
        let mut line = BlockingSender::new(&**transport, from);
        let mut parcel = line.parcel(self.bytes.len(), 0);
        parcel.copy(&self.bytes);
        line.send(parcel, Instant::now());
    }

    fn down(&self, _: &str) {}
}

/// Error of a look at a scheduler that answers with these bytes.
fn look(bytes: Vec<u8>, timeout: Duration) -> crate::Error {
    let exchange = Arc::new(Exchange::default());
    let (asked, questions) = sync_channel(1);
    let parrot = Arc::new(Parrot { transport: OnceLock::new(), bytes, asked });
    let inbox: Arc<dyn Inbox> = parrot.clone();
    let _ = parrot.transport.set(exchange.join("root:1", &inbox));
    let mut observer =
        Observer::with("root:1".into(), &|inbox| Ok(exchange.join("me", &inbox))).unwrap();
    let error = observer.look(timeout).unwrap_err();
    questions.try_recv().expect("it was asked");
    error
}

#[test]
fn a_scheduler_of_another_version_is_told_from_one_that_is_silent() {
    let mut bytes = Vec::new();
    encode(&Header { kind: MessageKind::Refused, ..Header::default() }, &[], &mut bytes);
    bytes[4] = 9;
    let error = look(bytes.clone(), Duration::from_secs(20));
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.message().contains("speaks version 9"), "{error}");
    // An invalid answer is ignored, and the look times out.
    bytes[0] = 0;
    let error = look(bytes, Duration::from_millis(50));
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

#[test]
fn json_has_every_number_of_a_job_in_a_fixed_order() {
    let json = serde_json::to_string_pretty(&super::sample::second_look()).unwrap() + "\n";
    for (line, golden) in json.lines().zip(include_str!("golden.json").lines()) {
        assert_eq!(line, golden);
    }
    assert_eq!(json.len(), include_str!("golden.json").len());
}
