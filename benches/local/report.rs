//! Lines for people in the terminal, and for programs in a file.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

pub struct Report {
    file: BufWriter<File>,
}

impl Report {
    pub fn create(path: &str) -> io::Result<Self> {
        // `cargo bench` runs in the package's root.
        let path = Path::new(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        Ok(Self { file: BufWriter::new(File::create(path)?) })
    }

    /// What was measured on; a ratio means nothing without it.
    pub fn machine() {
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            cpus.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        println!("machine: {}, {threads} processors", model.unwrap_or("unknown"));
        println!("medians of 15 rounds; the compared things run in turn\n");
    }

    pub fn heading(text: &str) {
        println!("\n{text}");
    }

    /// A line of the table, and the same facts as JSON: names with numbers.
    pub fn line(
        &mut self,
        text: &str,
        group: &str,
        case: &str,
        facts: &[(&str, f64)],
    ) -> io::Result<()> {
        println!("{text}");
        write!(self.file, "{{\"group\":\"{group}\",\"case\":\"{case}\"")?;
        for (name, number) in facts {
            write!(self.file, ",\"{name}\":{number:.6e}")?;
        }
        writeln!(self.file, "}}")?;
        self.file.flush()
    }
}
