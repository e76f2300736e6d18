//! Plain blocking sockets: what the wire allows. All keys are one array, and no rule is applied.
//!
//! In turns, the server stores what it gets, says so, and sends it back when it is asked for. With both
//! directions at once, each has a connection and threads of its own, and a slice goes back as soon as
//! it has come.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use crate::Subject;
use crate::cases::Case;
use crate::common::wait::free_address;
use crate::processes::Processes;

/// Bytes that go back together when both directions are used at once: a slice of ours.
const SLICE: usize = 256 << 10;
/// Congestion control of the library's connections over the loopback, which does not pace.
const UNPACED: &[u8] = b"reno";

pub struct Raw {
    stream: TcpStream,
    /// For what comes back, if that has a connection of its own.
    back: Option<TcpStream>,
    value: Vec<u8>,
    out: Vec<u8>,
    processes: Processes,
}

pub fn serve(address: &str, connections: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    SockRef::from(&listener).set_tcp_congestion(UNPACED)?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length) as usize;
    if connections == "2" {
        return serve_both_ways(stream, listener.accept()?.0, length);
    }
    let mut stored = vec![0; length];
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

fn serve_both_ways(mut from: TcpStream, mut to: TcpStream, length: usize) -> io::Result<()> {
    to.set_nodelay(true)?;
    let lengths = || (0..length).step_by(SLICE).map(|at| SLICE.min(length - at));
    // One value for every second round: while a slice is waited for, the same one still goes back.
    let both = lengths().chain(lengths());
    let stored: Vec<Mutex<Vec<u8>>> = both.map(|len| Mutex::new(vec![0; len])).collect();
    let slice = |at: usize| stored[at].lock().map_err(|_| io::ErrorKind::Other);
    let (came, coming) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| -> io::Result<()> {
            for at in coming {
                to.write_all(&slice(at)?)?;
            }
            Ok(())
        });
        for at in (0..stored.len()).cycle() {
            if from.read_exact(&mut slice(at)?).is_err() || came.send(at).is_err() {
                break;
            }
        }
        drop(came);
        Ok(())
    })
}

/// Connects as the library does over the loopback.
fn connect(address: &str) -> io::Result<TcpStream> {
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_tcp_congestion(UNPACED)?;
    socket.connect(&address.into())?;
    Ok(socket.into())
}

impl Raw {
    pub fn start(case: &Case, both_ways: bool) -> io::Result<Self> {
        let address = free_address();
        let mut processes = Processes::and_this();
        let connections = if both_ways { "2" } else { "1" };
        let program = std::env::current_exe()?;
        processes.spawn(Command::new(program).args(["raw", &address, connections]))?;
        let mut tries = 0;
        let mut stream = loop {
            match connect(&address) {
                Ok(stream) => break stream,
                Err(error) if tries > 500 => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
            tries += 1;
        };
        stream.set_nodelay(true)?;
        stream.write_all(&(case.bytes() as u64).to_le_bytes())?;
        let back = both_ways.then(|| connect(&address)).transpose()?;
        let (value, out) = (vec![1; case.bytes()], vec![0; case.bytes()]);
        Ok(Self { stream, back, value, out, processes })
    }
}

impl Subject for Raw {
    fn name(&self) -> String {
        let way = if self.back.is_some() { ", both ways at once" } else { "" };
        format!("raw TCP{way}")
    }

    fn run(&mut self, rounds: usize) -> io::Result<Vec<f64>> {
        let mut seconds = Vec::new();
        for _ in 0..rounds {
            let Self { stream, back, value, out, .. } = self;
            let start = Instant::now();
            if let Some(back) = back {
                thread::scope(|scope| {
                    let read = scope.spawn(|| back.read_exact(out));
                    stream.write_all(value)?;
                    read.join().unwrap_or(Err(io::ErrorKind::Other.into()))
                })?;
            } else {
                stream.write_all(&[1])?;
                stream.write_all(value)?;
                stream.read_exact(&mut [0])?;
                stream.write_all(&[2])?;
                stream.read_exact(out)?;
            }
            seconds.push(start.elapsed().as_secs_f64());
        }
        Ok(seconds)
    }

    fn processes(&self) -> &Processes {
        &self.processes
    }
}
