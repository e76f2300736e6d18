//! Plain blocking sockets: what the wire allows. The server copies what it gets into the stored
//! value, says so, and sends it back when it is asked for. All keys are one array, and no rule is
//! applied.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Subject;
use crate::cases::Case;
use crate::ours::free_address;
use crate::processes::Processes;

pub struct Raw {
    stream: TcpStream,
    value: Vec<u8>,
    out: Vec<u8>,
    processes: Processes,
}

pub fn serve(address: &str) -> io::Result<()> {
    let (mut stream, _) = TcpListener::bind(address)?.accept()?;
    stream.set_nodelay(true)?;
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let mut stored = vec![0; u64::from_le_bytes(length) as usize];
    let mut order = [0];
    while stream.read_exact(&mut order).is_ok() {
        if order == [1] {
            stream.read_exact(&mut stored)?;
            stream.write_all(&[1])?;
        } else {
            stream.write_all(&stored)?;
        }
    }
    Ok(())
}

impl Raw {
    pub fn start(case: &Case) -> io::Result<Self> {
        let address = free_address()?;
        let mut processes = Processes::and_this();
        processes.spawn(Command::new(std::env::current_exe()?).args(["raw", &address]))?;
        let mut tries = 0;
        let mut stream = loop {
            match TcpStream::connect(&address) {
                Ok(stream) => break stream,
                Err(error) if tries > 500 => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
            tries += 1;
        };
        stream.set_nodelay(true)?;
        stream.write_all(&(case.bytes() as u64).to_le_bytes())?;
        let (value, out) = (vec![1; case.bytes()], vec![0; case.bytes()]);
        Ok(Self { stream, value, out, processes })
    }
}

impl Subject for Raw {
    fn name(&self) -> String {
        "raw TCP".into()
    }

    fn run(&mut self, rounds: usize) -> io::Result<Vec<f64>> {
        let mut seconds = Vec::new();
        for _ in 0..rounds {
            let start = Instant::now();
            self.stream.write_all(&[1])?;
            self.stream.write_all(&self.value)?;
            self.stream.read_exact(&mut [0])?;
            self.stream.write_all(&[2])?;
            self.stream.read_exact(&mut self.out)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        Ok(seconds)
    }

    fn processes(&self) -> &Processes {
        &self.processes
    }
}
