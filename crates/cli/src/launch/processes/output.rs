//! Output of the processes of a job, line by line, each line with the name of its process. Also
//! called: output multiplexing.

use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use crate::launch::plan::OutputStream;
use crate::sys;

/// Longer lines are shown in pieces of this many bytes.
const LONGEST: usize = 64 << 10;
/// How much is read at once. After the job this many times [`ROUNDS`] is read of each pipe at most,
/// more than the system lets a pipe hold.
const CHUNK: usize = 64 << 10;
const ROUNDS: usize = 64;
/// Retry interval of a write to a full pipe.
const RETRY: Duration = Duration::from_millis(5);

/// One of the two outputs of a process.
#[derive(Debug)]
pub(crate) struct OutputSource {
    pipe: PipeReader,
    pub(crate) stream: OutputStream,
}

impl OutputSource {
    /// A pipe, and its write end.
    pub(crate) fn new(stream: OutputStream) -> io::Result<(Self, PipeWriter)> {
        let (pipe, writer) = io::pipe()?;
        Ok((Self { pipe, stream }, writer))
    }
}

/// The label of a process before its lines; empty for none.
#[derive(Debug, Clone)]
pub(crate) struct OutputLabel {
    pub(crate) text: String,
    /// The rank of a worker, which selects its colour.
    pub(crate) rank: Option<u32>,
}

/// The format in which the output of a process is forwarded.
pub(crate) trait OutputForm: Send {
    /// Consumes raw output, and appends complete lines or frames.
    fn take(&mut self, bytes: &[u8], text: &mut Vec<u8>);

    /// Appends the rest at the end of the output.
    fn end(&mut self, _text: &mut Vec<u8>) {}

    /// Whether the output still has a reader.
    fn is_wanted(&self) -> bool {
        true
    }
}

/// Copies all sources to our own standard output and standard error, on a thread of its own, until
/// the returned pipe is dropped. Data that they hold by then is copied too. Then calls `done`.
pub(crate) fn copy(
    sources: Vec<(OutputLabel, OutputSource)>,
    done: impl FnOnce() + Send + 'static,
) -> io::Result<PipeWriter> {
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let terminals = [io::stdout().is_terminal(), io::stderr().is_terminal()];
    let width = sources.iter().map(|(label, _)| label.text.len()).max().unwrap_or(0);
    let open = |(label, source): (OutputLabel, OutputSource)| {
        let coloured = colours && terminals[source.stream as usize];
        let form = LineLabeler::new(&before_lines(&label, width, coloured));
        OpenSource { source, form }
    };
    copy_in_form(sources.into_iter().map(open).collect(), io::stdout(), io::stderr(), done)
}

/// As [`copy`], to any target and in any form.
pub(crate) fn copy_in_form<F: OutputForm + 'static>(
    sources: Vec<OpenSource<F>>,
    mut out: impl Write + Send + 'static,
    mut err: impl Write + Send + 'static,
    done: impl FnOnce() + Send + 'static,
) -> io::Result<PipeWriter> {
    let (closing, closer) = io::pipe()?;
    let work = move || {
        copy_all(sources, &closing, &mut out, &mut err);
        done();
    };
    thread::Builder::new().name("output".into()).spawn(work)?;
    Ok(closer)
}

/// The label before the lines of a process.
fn before_lines(label: &OutputLabel, width: usize, coloured: bool) -> String {
    // Blue is hard to read on black, and red looks like an error.
    const COLOURS: [u32; 4] = [36, 32, 33, 35];
    let OutputLabel { text, rank } = label;
    match rank {
        _ if text.is_empty() => String::new(),
        _ if !coloured => format!("{text:width$}"),
        Some(rank) => {
            let colour = COLOURS[*rank as usize % COLOURS.len()];
            format!("\x1b[{colour}m{text:width$}\x1b[0m")
        }
        None => format!("\x1b[2m{text:width$}\x1b[0m"),
    }
}

/// A source that is being copied.
pub(crate) struct OpenSource<F> {
    pub(crate) source: OutputSource,
    pub(crate) form: F,
}

impl<F: OutputForm> OpenSource<F> {
    /// Copies available data; returns whether more may arrive.
    fn copy(&mut self, buffer: &mut [u8], out: &mut dyn Write, err: &mut dyn Write) -> bool {
        let mut text = Vec::new();
        let more = match self.source.pipe.read(buffer) {
            Ok(0) => {
                self.form.end(&mut text);
                false
            }
            Ok(count) => {
                self.form.take(&buffer[..count], &mut text);
                true
            }
            Err(error) => error.kind() == io::ErrorKind::Interrupted,
        };
        // Without a reader of our output, the process is to get a broken pipe as it would without
        // the launcher.
        self.write(&text, out, err) && more && self.form.is_wanted()
    }

    fn write(&self, text: &[u8], out: &mut dyn Write, err: &mut dyn Write) -> bool {
        write_all(if self.source.stream == OutputStream::Out { out } else { err }, text).is_ok()
    }
}

fn copy_all<F: OutputForm>(
    mut sources: Vec<OpenSource<F>>,
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
        let limit = rounds.map(|_| Duration::ZERO);
        let Ok(ready) = sys::readable(&pipes, limit) else { continue };
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
        open.form.end(&mut text);
        open.write(&text, out, err);
    }
}

/// As `Write::write_all`, also into a file that another program has made non-blocking, such as a
/// shared terminal.
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

/// Splits the output of a process into lines, and puts its label before each.
struct LineLabeler {
    first: Vec<u8>,
    /// Prefix of the pieces of a long line except the first.
    further: Vec<u8>,
    /// The beginning of an incomplete line.
    held: Vec<u8>,
    /// Whether a piece of this line was written already.
    cut: bool,
}

impl LineLabeler {
    fn new(label: &str) -> Self {
        let [first, further] = ["|", "+"].map(|mark| match label {
            "" => Vec::new(),
            _ => format!("{label} {mark} ").into_bytes(),
        });
        Self { first, further, held: Vec::new(), cut: false }
    }

    fn put(&mut self, count: usize, text: &mut Vec<u8>) {
        text.extend_from_slice(if self.cut { &self.further } else { &self.first });
        text.extend(self.held.drain(..count));
        text.push(b'\n');
    }
}

impl OutputForm for LineLabeler {
    fn take(&mut self, bytes: &[u8], text: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let line = piece.strip_suffix(b"\n");
            self.held.extend_from_slice(line.unwrap_or(piece));
            while self.held.len() > LONGEST {
                self.put(border(&self.held), text);
                self.cut = true;
            }
            if line.is_some() {
                self.put(self.held.len(), text);
                self.cut = false;
            }
        }
    }

    /// The last line may lack a line feed.
    fn end(&mut self, text: &mut Vec<u8>) {
        if !self.held.is_empty() {
            self.put(self.held.len(), text);
        }
    }
}

/// The split position of a long line: not inside of a character.
fn border(line: &[u8]) -> usize {
    let is_inside = |byte: u8| byte & 0xC0 == 0x80;
    (LONGEST - 3..=LONGEST).rev().find(|&at| !is_inside(line[at])).unwrap_or(LONGEST)
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{
        LONGEST, LineLabeler, OpenSource, OutputForm, OutputLabel, OutputSource, OutputStream,
        before_lines, copy_all, write_all,
    };

    fn lines_of(pieces: &[&[u8]]) -> Vec<u8> {
        let mut lines = LineLabeler::new("w");
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
        let mut lines = LineLabeler::new("w");
        for _ in 0..100 {
            lines.take(&[b'x'; 10_000], &mut Vec::new());
            assert!(lines.held.len() <= LONGEST);
        }
        assert!(lines.held.capacity() < 4 * LONGEST);
    }

    #[test]
    fn labels_are_aligned_and_coloured_where_they_are_asked_to() {
        let worker = OutputLabel { text: "worker 2".into(), rank: Some(2) };
        assert_eq!(before_lines(&worker, 10, false), "worker 2  ");
        assert_eq!(before_lines(&worker, 10, true), "\x1b[33mworker 2  \x1b[0m");
        let scheduler = OutputLabel { text: "scheduler".into(), rank: None };
        assert_eq!(before_lines(&scheduler, 9, true), "\x1b[2mscheduler\x1b[0m");
        let nobody = OutputLabel { text: String::new(), rank: Some(0) };
        assert_eq!(before_lines(&nobody, 9, true), "");
        let mut text = Vec::new();
        LineLabeler::new("").take(b"as it is\n", &mut text);
        assert_eq!(text, b"as it is\n");
    }

    fn open(stream: OutputStream) -> (OpenSource<LineLabeler>, io::PipeWriter) {
        let (source, writer) = OutputSource::new(stream).unwrap();
        (OpenSource { source, form: LineLabeler::new("w") }, writer)
    }

    #[test]
    fn what_pipes_hold_at_the_end_is_copied_though_others_keep_them_open() {
        let (out, mut out_writer) = open(OutputStream::Out);
        let (err, mut err_writer) = open(OutputStream::Err);
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
        let (out, mut writer) = open(OutputStream::Out);
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
