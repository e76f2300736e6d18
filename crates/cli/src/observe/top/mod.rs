//! `kvstore top`: the state of a running job, continuously. Also called: live dashboard.

mod screen;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use kvstore::{Observer, Result, View};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::ending::signal_status;
use crate::launch::processes::signals;
use crate::messages::say;
use crate::observe::look::{FIRST, ObservedJob};
use screen::{Screen, Sort};

/// Maximum delay until a key press or a new view is shown.
const STEP: Duration = Duration::from_millis(50);

/// Shows a running job, again and again, until q is pressed.
///
/// It does not take part in the job, which does not wait for it.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: ObservedJob,

    /// How often to look
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1_000,
        value_parser = clap::value_parser!(u64).range(100..=60_000))]
    interval_ms: u64,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    if let Err(text) = arguments.target.check() {
        say("top", text);
        return ExitCode::from(2);
    }
    if !io::stdout().is_terminal() {
        say("top", "standard output is no terminal; `kvstore status` prints the same facts");
        return ExitCode::from(2);
    }
    let interval = Duration::from_millis(arguments.interval_ms);
    let opened = arguments.target.open().and_then(|mut observer| {
        let first = observer.look(FIRST)?;
        Ok((observer, first))
    });
    let (observer, first) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            say("top", error);
            return ExitCode::FAILURE;
        }
    };
    let restore = |signal: i32| {
        ratatui::restore();
        std::process::exit(signal_status(signal).into());
    };
    let screen = Screen::new(first, interval);
    let shown = signals::watch(&signals::ending(), restore)
        .and_then(|()| show(screen, &keep_looking(observer, interval)));
    ratatui::restore();
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say("top", error);
            ExitCode::FAILURE
        }
    }
}

/// Queries on a thread of its own: keys do not wait for a silent scheduler.
fn keep_looking(mut observer: Observer, interval: Duration) -> Receiver<Result<View>> {
    let (sender, views) = sync_channel(1);
    thread::spawn(move || {
        loop {
            let begun = Instant::now();
            thread::sleep(interval);
            if sender.send(observer.look(FIRST)).is_err() {
                return;
            }
            // A query that fails at once is not repeated at once.
            thread::sleep(STEP.saturating_sub(begun.elapsed()));
        }
    });
    views
}

fn show(mut screen: Screen, views: &Receiver<Result<View>>) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    loop {
        terminal.draw(|frame| screen.draw(frame.area(), frame.buffer_mut()))?;
        if !wait(&mut screen, views)? {
            return Ok(());
        }
    }
}

/// Waits until there is something new to show; false at the end.
fn wait(screen: &mut Screen, views: &Receiver<Result<View>>) -> io::Result<bool> {
    loop {
        if event::poll(STEP)? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    return Ok(press(screen, key));
                }
                Event::Resize(..) => return Ok(true),
                _ => {}
            }
        }
        if let Ok(view) = views.try_recv() {
            screen.take(view);
            return Ok(true);
        }
        if screen.gets_older() {
            return Ok(true);
        }
    }
}

/// Handles a key; false when it ends the program.
fn press(screen: &mut Screen, key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if control => return false,
        KeyCode::Char('s') => screen.sort = screen.sort.next(),
        KeyCode::Char('r') => screen.reversed = !screen.reversed,
        KeyCode::Char('n') => screen.sort = Sort::Node,
        KeyCode::Up | KeyCode::Char('k') => screen.scroll = screen.scroll.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => screen.scroll += 1,
        KeyCode::PageUp => screen.scroll = screen.scroll.saturating_sub(10),
        KeyCode::PageDown => screen.scroll += 10,
        KeyCode::Home => screen.scroll = 0,
        _ => {}
    }
    true
}
