//! What the processes of a job write, line by line, each line with the name of who wrote it.

use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use crate::plan::{Name, Role};
use crate::sys;

/// Longer lines are shown in pieces of this many bytes.
const LONGEST: usize = 64 << 10;
/// How much is read at once. After the job this many times [`ROUNDS`] is read of each pipe at most,
/// more than the system lets a pipe hold.
const CHUNK: usize = 64 << 10;
const ROUNDS: usize = 64;
/// Between two tries to write to somebody who does not take more.
const RETRY: Duration = Duration::from_millis(5);

/// Which of ours a line goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Out,
    Err,
}

/// One of the two outputs of a process.
#[derive(Debug)]
pub(crate) struct Source {
    name: Name,
    pipe: PipeReader,
    stream: Stream,
}

impl Source {
    pub(crate) fn out(name: Name, pipe: PipeReader) -> Self {
        Self { name, pipe, stream: Stream::Out }
    }

    pub(crate) fn err(name: Name, pipe: PipeReader) -> Self {
        Self { name, pipe, stream: Stream::Err }
    }
}

/// Copies all sources to our own standard output and standard error, on a thread of its own, until
/// the returned pipe is dropped; what they hold by then is copied too. Then calls `done`.
pub(crate) fn copy(
    sources: Vec<Source>,
    done: impl FnOnce() + Send + 'static,
) -> io::Result<PipeWriter> {
    let (closing, closer) = io::pipe()?;
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let coloured = |terminal: bool| terminal && colours;
    let coloured = (coloured(io::stdout().is_terminal()), coloured(io::stderr().is_terminal()));
    let width = sources.iter().map(|source| source.name.to_string().len()).max().unwrap_or(0);
    let open = |source: Source| {
        let coloured = if source.stream == Stream::Out { coloured.0 } else { coloured.1 };
        Open { lines: Lines::new(&label(source.name, width, coloured)), source }
    };
    let open = sources.into_iter().map(open).collect();
    let work = move || {
        copy_all(open, &closing, &mut io::stdout(), &mut io::stderr());
        done();
    };
    thread::Builder::new().name("output".into()).spawn(work)?;
    Ok(closer)
}

/// What stands before the lines of a process.
fn label(name: Name, width: usize, coloured: bool) -> String {
    // Blue is hard to read on black, and red looks like an error.
    const COLOURS: [u32; 4] = [36, 32, 33, 35];
    if !coloured {
        return format!("{name:width$}");
    }
    match name.role {
        Role::Worker => {
            let colour = COLOURS[name.rank as usize % COLOURS.len()];
            format!("\x1b[{colour}m{name:width$}\x1b[0m")
        }
        Role::Server | Role::Scheduler => format!("\x1b[2m{name:width$}\x1b[0m"),
    }
}

/// A source that is being copied.
struct Open {
    source: Source,
    lines: Lines,
}

impl Open {
    /// Copies what is there; whether more may come.
    fn copy(&mut self, buffer: &mut [u8], out: &mut dyn Write, err: &mut dyn Write) -> bool {
        let mut text = Vec::new();
        let more = match self.source.pipe.read(buffer) {
            Ok(0) => {
                self.lines.end(&mut text);
                false
            }
            Ok(count) => {
                self.lines.take(&buffer[..count], &mut text);
                true
            }
            Err(error) => error.kind() == io::ErrorKind::Interrupted,
        };
        // When nobody reads us any more, the process is to notice it as it would without us.
        self.write(&text, out, err) && more
    }

    fn write(&self, text: &[u8], out: &mut dyn Write, err: &mut dyn Write) -> bool {
        write_all(if self.source.stream == Stream::Out { out } else { err }, text).is_ok()
    }
}

fn copy_all(
    mut sources: Vec<Open>,
    closing: &PipeReader,
    out: &mut dyn Write,
    err: &mut dyn Write,
) {
    let mut buffer = vec![0; CHUNK];
    let mut rounds = None;
    while rounds != Some(0) {
        let mut pipes: Vec<BorrowedFd> =
            sources.iter().map(|open| open.source.pipe.as_fd()).collect();
        if rounds.is_none() {
            pipes.push(closing.as_fd());
        }
        let Ok(ready) = sys::readable(&pipes, rounds.is_none()) else { continue };
        let closed = rounds.is_none() && ready.last() == Some(&true);
        if rounds.is_some() && !ready.contains(&true) {
            break;
        }
        let mut ready = ready.into_iter();
        sources
            .retain_mut(|open| !ready.next().unwrap_or(false) || open.copy(&mut buffer, out, err));
        rounds = if closed { Some(ROUNDS) } else { rounds.map(|rounds| rounds - 1) };
    }
    for mut open in sources {
        let mut text = Vec::new();
        open.lines.end(&mut text);
        open.write(&text, out, err);
    }
}

/// As `Write::write_all`, also into a file that other programs have made non-blocking, as some do
/// with the terminal that they share with us.
fn write_all(to: &mut dyn Write, mut text: &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        match to.write(text) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => text = &text[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(RETRY),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Cuts what a process writes into lines, and puts its label before each.
struct Lines {
    first: Vec<u8>,
    /// Before the pieces of a long line but the first.
    further: Vec<u8>,
    /// The begin of a line whose end has not come.
    held: Vec<u8>,
    /// Whether a piece of this line is out already.
    cut: bool,
}

impl Lines {
    fn new(label: &str) -> Self {
        let first = format!("{label} | ").into_bytes();
        let further = format!("{label} + ").into_bytes();
        Self { first, further, held: Vec::new(), cut: false }
    }

    /// Takes what was written, and appends the lines that are complete.
    fn take(&mut self, bytes: &[u8], text: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (piece, complete) = match piece.strip_suffix(b"\n") {
                Some(line) => (line, true),
                None => (piece, false),
            };
            self.held.extend_from_slice(piece);
            while self.held.len() > LONGEST {
                self.put(border(&self.held), text);
                self.cut = true;
            }
            if complete {
                self.put(self.held.len(), text);
                self.cut = false;
            }
        }
    }

    /// Appends a last line that has no end.
    fn end(&mut self, text: &mut Vec<u8>) {
        if !self.held.is_empty() {
            self.put(self.held.len(), text);
        }
    }

    fn put(&mut self, count: usize, text: &mut Vec<u8>) {
        text.extend_from_slice(if self.cut { &self.further } else { &self.first });
        text.extend(self.held.drain(..count));
        text.push(b'\n');
    }
}

/// Where to cut a long line: not inside of a character.
fn border(line: &[u8]) -> usize {
    let is_inside = |byte: u8| byte & 0xC0 == 0x80;
    (LONGEST - 3..=LONGEST).rev().find(|&at| !is_inside(line[at])).unwrap_or(LONGEST)
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{LONGEST, Lines, Open, Source, Stream, copy_all, label, write_all};
    use crate::plan::{Name, Role};

    const WORKER: Name = Name { role: Role::Worker, rank: 2 };

    fn lines_of(pieces: &[&[u8]]) -> Vec<u8> {
        let mut lines = Lines::new("w");
        let mut text = Vec::new();
        pieces.iter().for_each(|piece| lines.take(piece, &mut text));
        lines.end(&mut text);
        text
    }

    #[test]
    fn lines_are_put_together_from_pieces_and_a_last_one_may_lack_its_end() {
        let text = lines_of(&[b"one\ntw", b"o\n\nthr", b"ee"]);
        assert_eq!(text, b"w | one\nw | two\nw | \nw | three\n");
        assert_eq!(lines_of(&[]), b"");
    }

    #[test]
    fn bytes_that_are_no_text_pass_unchanged() {
        assert_eq!(lines_of(&[b"\xff\x00\r\x80\n"]), b"w | \xff\x00\r\x80\n");
    }

    #[test]
    fn a_long_line_comes_in_marked_pieces_that_together_are_the_line() {
        // Two bytes each, so that the border falls into one.
        let line = format!("x{}", "\u{e9}".repeat(LONGEST));
        let text = lines_of(&[&line.as_bytes()[..100], &line.as_bytes()[100..], b"\nnext\n"]);
        let text = String::from_utf8(text).unwrap();
        let pieces: Vec<&str> = text.lines().collect();
        assert_eq!(pieces.len(), 4);
        assert!(pieces[0].starts_with("w | x") && pieces[1].starts_with("w + "));
        assert_eq!(pieces[..3].iter().map(|piece| &piece[4..]).collect::<String>(), line);
        assert!(pieces.iter().all(|piece| piece.len() <= LONGEST + 4));
        assert_eq!(pieces[3], "w | next");
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory() {
        let mut lines = Lines::new("w");
        for _ in 0..100 {
            lines.take(&[b'x'; 10_000], &mut Vec::new());
            assert!(lines.held.len() <= LONGEST);
        }
        assert!(lines.held.capacity() < 4 * LONGEST);
    }

    #[test]
    fn labels_are_aligned_and_coloured_where_they_are_asked_to() {
        assert_eq!(label(WORKER, 10, false), "worker 2  ");
        assert_eq!(label(WORKER, 10, true), "\x1b[33mworker 2  \x1b[0m");
        assert_eq!(label(Name { role: Role::Scheduler, rank: 0 }, 9, false), "scheduler");
    }

    fn open(stream: Stream) -> (Open, io::PipeWriter) {
        let (pipe, writer) = io::pipe().unwrap();
        let source = Source { name: WORKER, pipe, stream };
        (Open { source, lines: Lines::new("w") }, writer)
    }

    #[test]
    fn what_pipes_hold_at_the_end_is_copied_though_others_keep_them_open() {
        let (out, mut out_writer) = open(Stream::Out);
        let (err, mut err_writer) = open(Stream::Err);
        let (closing, closer) = io::pipe().unwrap();
        out_writer.write_all(b"one\ntwo").unwrap();
        err_writer.write_all(b"three\n").unwrap();
        drop(closer);
        let (mut to_out, mut to_err) = (Vec::new(), Vec::new());
        copy_all(vec![out, err], &closing, &mut to_out, &mut to_err);
        assert_eq!(to_out, b"w | one\nw | two\n");
        assert_eq!(to_err, b"w | three\n");
    }

    #[test]
    fn a_process_notices_that_nobody_reads_us_any_more() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (out, mut writer) = open(Stream::Out);
        let (closing, closer) = io::pipe().unwrap();
        writer.write_all(b"one\n").unwrap();
        let copying = thread::spawn(move || copy_all(vec![out], &closing, &mut Gone, &mut Gone));
        let start = Instant::now();
        while writer.write(b"two\n").is_ok() {
            assert!(start.elapsed() < Duration::from_secs(10), "the pipe stays open");
            thread::sleep(Duration::from_millis(1));
        }
        drop(closer);
        copying.join().unwrap();
    }

    #[test]
    fn a_reader_that_takes_no_more_for_a_while_loses_nothing() {
        struct Slow(Vec<u8>, u32);
        impl Write for Slow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.1 += 1;
                if self.1 % 2 == 1 {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                self.0.push(bytes[0]);
                Ok(1)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut slow = Slow(Vec::new(), 0);
        write_all(&mut slow, b"line\n").unwrap();
        assert_eq!(slow.0, b"line\n");
    }
}
