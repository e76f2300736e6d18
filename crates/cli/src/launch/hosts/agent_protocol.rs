//! The protocol between a launcher and its agents on other machines.
//!
//! Orders are lines of JSON on the agent's standard input, so that secrets in them are on no
//! command line. Reports and output are frames on its standard output: a kind, a length, so many
//! bytes, and a line feed. The line feed is there because some relays forward by lines.

use std::io::{self, BufRead, Read, Write};

use serde::{Deserialize, Serialize};

use crate::ending::ExitReason;
use crate::launch::plan::{OutputStream, Process, SignalTarget};

/// Start marker of an agent's output. Any output of the login shell comes before it.
pub(crate) const GREETING: &[u8] = b"kvstore agent at work\n";
/// Maximum bytes of a login shell's output before the greeting.
const LONGEST_PROLOGUE: u64 = 1 << 20;
/// Maximum bytes of an order: far more than the arguments and variables that the system allows.
const LONGEST_ORDER: u64 = 256 << 20;
/// Maximum bytes of a frame: output has pieces of 64 KiB; reports are shorter.
const LONGEST_FRAME: u32 = 1 << 20;

const REPORT: u8 = b'r';
const OUTPUT: u8 = b'o';

/// Messages of the launcher. Processes have the launcher's numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AgentOrder {
    Start(StartRequest),
    Signal(SignalTarget, i32),
    /// Stop sending this output: its reader is gone.
    Mute(usize, OutputStream),
    Alive,
}

/// The first order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StartRequest {
    /// The launcher's release.
    pub(crate) version: String,
    /// Working folder of the processes.
    pub(crate) folder: String,
    /// Milliseconds of silence after which the peer counts as lost.
    pub(crate) silence_ms: u32,
    pub(crate) processes: Vec<(usize, Process)>,
}

/// Messages of an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AgentReport {
    /// With its process id on that machine.
    Started(usize, u32),
    /// It could not be started: why, and the status by which shells report it.
    Failed(usize, String, u8),
    Ended(usize, ExitReason),
    /// Descendants of it outlive it; sent before its end.
    LivesOn(usize),
    /// Whether descendants of the processes are alive; sent before the last end.
    LeftOver(bool),
    /// The agent cannot work, and ends.
    Useless(String),
    Alive,
}

/// A parsed frame of an agent.
#[derive(Debug)]
pub(crate) enum AgentFrame {
    Report(AgentReport),
    Output(usize, OutputStream, Vec<u8>),
}

pub(crate) fn write_order(to: &mut impl Write, order: &AgentOrder) -> io::Result<()> {
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// The next order; None at the end.
pub(crate) fn read_order(from: &mut impl BufRead) -> io::Result<Option<AgentOrder>> {
    let mut line = Vec::new();
    from.take(LONGEST_ORDER).read_until(b'\n', &mut line)?;
    if line.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_slice(&line)?)) }
}

/// Appends a report in the agent's format.
pub(crate) fn put_report(report: &AgentReport, to: &mut Vec<u8>) {
    // Writing a report to memory does not fail.
    put(REPORT, &serde_json::to_vec(report).unwrap_or_default(), to);
}

/// Appends output in the agent's format.
pub(crate) fn put_output(process: usize, stream: OutputStream, bytes: &[u8], to: &mut Vec<u8>) {
    let mut payload = u32::try_from(process).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    payload.push(u8::from(stream == OutputStream::Err));
    payload.extend_from_slice(bytes);
    put(OUTPUT, &payload, to);
}

fn put(kind: u8, payload: &[u8], to: &mut Vec<u8>) {
    to.push(kind);
    to.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    to.extend_from_slice(payload);
    to.push(b'\n');
}

/// Reads up to the end of the greeting.
pub(crate) fn read_greeting(from: &mut impl BufRead) -> io::Result<()> {
    let mut from = from.take(LONGEST_PROLOGUE);
    let mut line = Vec::new();
    loop {
        line.clear();
        if from.read_until(b'\n', &mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line.ends_with(GREETING) {
            return Ok(());
        }
    }
}

pub(crate) fn read_frame(from: &mut impl Read) -> io::Result<AgentFrame> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let length = u32::from_le_bytes(length);
    if length > LONGEST_FRAME {
        return Err(damaged());
    }
    let mut payload = vec![0; length as usize + 1];
    from.read_exact(&mut payload)?;
    if payload.pop() != Some(b'\n') {
        return Err(damaged());
    }
    match kind {
        REPORT => Ok(AgentFrame::Report(serde_json::from_slice(&payload)?)),
        OUTPUT => output(&payload).ok_or_else(damaged),
        _ => Err(damaged()),
    }
}

fn output(payload: &[u8]) -> Option<AgentFrame> {
    let (process, rest) = payload.split_first_chunk()?;
    let (stream, bytes) = rest.split_first()?;
    let stream = if *stream == 0 { OutputStream::Out } else { OutputStream::Err };
    let process = usize::try_from(u32::from_le_bytes(*process)).ok()?;
    Some(AgentFrame::Output(process, stream, bytes.to_vec()))
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "something else writes into the connection")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::launch::plan::ProcessName;
    use kvstore::Role;
    use kvstore_protocol::testing::Random;

    #[test]
    fn an_order_is_a_line_and_keeps_words_that_are_no_text() {
        let odd = OsString::from_vec(b"\xff\n'".to_vec());
        let process = Process {
            name: ProcessName { role: Role::Worker, rank: 3 },
            program: Some(odd.clone()),
            arguments: vec![odd.clone()],
            environment: vec![("A".into(), Some("x\ny".into())), ("B".into(), None)],
            reads_input: false,
            launch: None,
        };
        let start = StartRequest {
            version: "1".into(),
            folder: "/".into(),
            silence_ms: 5,
            processes: vec![(7, process)],
        };
        let mut bytes = Vec::new();
        write_order(&mut bytes, &AgentOrder::Start(start)).unwrap();
        write_order(&mut bytes, &AgentOrder::Signal(SignalTarget::Servers, 15)).unwrap();
        assert_eq!(bytes.split(|&byte| byte == b'\n').count(), 3);
        let mut from = &bytes[..];
        let Some(AgentOrder::Start(start)) = read_order(&mut from).unwrap() else { panic!() };
        assert_eq!(start.processes[0].1.program, Some(odd));
        assert_eq!(start.processes[0].1.environment[0].1.as_deref(), Some("x\ny"));
        assert!(matches!(
            read_order(&mut from).unwrap(),
            Some(AgentOrder::Signal(SignalTarget::Servers, 15))
        ));
        assert!(read_order(&mut from).unwrap().is_none());
    }

    #[test]
    fn frames_follow_the_greeting_whatever_was_said_before() {
        let mut bytes = b"Welcome!\nno line feed".to_vec();
        bytes.extend_from_slice(GREETING);
        put_output(2, OutputStream::Err, b"a\nb", &mut bytes);
        put_report(&AgentReport::Ended(2, ExitReason::Signal(9)), &mut bytes);
        let mut from = &bytes[..];
        read_greeting(&mut from).unwrap();
        let AgentFrame::Output(2, OutputStream::Err, text) = read_frame(&mut from).unwrap() else {
            panic!()
        };
        assert_eq!(text, b"a\nb");
        let AgentFrame::Report(AgentReport::Ended(2, ending)) = read_frame(&mut from).unwrap()
        else {
            panic!()
        };
        assert_eq!(ending, ExitReason::Signal(9));
        assert_eq!(read_frame(&mut from).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    /// Every input yields a result, and no more bytes are read than the input has.
    #[test]
    fn noise_is_answered() {
        // Frequent parts of frames.
        let kinds = [b'r', b'o', b'\n', b'{', 0, 0, 0, 1, 2, 9];
        let mut random = Random::new(7);
        let mut byte = || {
            if random.one_in(3) { random.next().to_le_bytes()[0] } else { random.pick(&kinds) }
        };
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..24).map(|_| byte()).collect();
            let mut from = &bytes[..];
            while let Ok(frame) = read_frame(&mut from) {
                assert!(matches!(frame, AgentFrame::Output(.., text) if text.len() < bytes.len()));
            }
            let mut from = &bytes[..];
            while let Ok(Some(order)) = read_order(&mut from) {
                assert!(!matches!(order, AgentOrder::Start(_)));
            }
        }
    }

    #[test]
    fn what_is_no_frame_is_an_error_and_takes_no_memory() {
        for bytes in
            [&b"r\xff\xff\xff\xff"[..], b"x\x01\0\0\0a\n", b"r\x01\0\0\0{\n", b"o\0\0\0\0\n"]
        {
            let kind = read_frame(&mut &bytes[..]).unwrap_err().kind();
            assert_ne!(kind, io::ErrorKind::OutOfMemory);
        }
        assert!(read_greeting(&mut &b"bash: kvstore: command not found\n"[..]).is_err());
    }
}
