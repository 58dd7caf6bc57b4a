//! A switch in user space: joins TAP devices by links with a delay, a loss, a rate and cuts.
//!
//! ```text
//! network-switch tap0 tap1
//! ```
//!
//! makes these devices, says `ready`, and obeys the lines of standard input, each answered by `ok`
//! or `error: WHY`: `tap0 tap1 delay=20ms loss=1% rate=10mbit` replaces everything about that
//! direction, `* * cut` lets nothing pass any more, `* *` lets everything pass at once, and
//! `counters` says what became of the frames. It ends, and the devices with it, at the end of
//! standard input. The devices may be moved into network namespaces: that makes a network of
//! several hosts on one machine whose kernel has no netem.
#![deny(unsafe_code)]
#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use link::{Command, Link};
use switch::Switch;

mod link;
mod switch;
#[expect(unsafe_code, reason = "an ioctl makes the device")]
mod tap;

/// Frames and lines that have come and are not looked at yet.
const MAX_EVENTS: usize = 1024;
/// More than the largest frame of any device.
const MAX_FRAME_BYTES: usize = 1 << 17;
/// Losses are drawn from here, so that a run can be repeated.
const SEED: u64 = 1;

enum Event {
    Frame(usize, Vec<u8>),
    Line(String),
    End,
}

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    match run(&names) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is no other place to say it.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(names: &[String]) -> io::Result<()> {
    if names.len() < 2 {
        return Err(io::Error::other(
            "name at least two devices to make and join",
        ));
    }
    let devices: Vec<File> = names
        .iter()
        .map(|name| {
            tap::make(name).map_err(|why| io::Error::new(why.kind(), format!("{name}: {why}")))
        })
        .collect::<io::Result<_>>()?;
    let (sender, events) = mpsc::sync_channel(MAX_EVENTS);
    for (port, device) in devices.iter().enumerate() {
        let (device, sender) = (device.try_clone()?, sender.clone());
        // It ends with the process: nothing else ends its read.
        thread::spawn(move || frames(port, device, &sender));
    }
    thread::spawn(move || lines(&sender));
    say("ready")?;
    let mut joined = Joined {
        names: names.to_vec(),
        switch: Switch::new(names.len(), SEED),
        devices,
        begun: Instant::now(),
    };
    joined.serve(&events)
}

/// Reads the frames of a device.
fn frames(port: usize, mut device: File, events: &SyncSender<Event>) {
    let mut buffer = vec![0; MAX_FRAME_BYTES];
    loop {
        match device.read(&mut buffer) {
            Ok(bytes) => {
                if events
                    .send(Event::Frame(port, buffer[..bytes].to_vec()))
                    .is_err()
                {
                    return;
                }
            }
            // Until the device is up there is nothing to read, and no way to wait for that.
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Reads standard input.
fn lines(events: &SyncSender<Event>) {
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        if events.send(Event::Line(line)).is_err() {
            return;
        }
    }
    // If no thread listens any more it has ended already.
    let _ = events.send(Event::End);
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

struct Joined {
    names: Vec<String>,
    switch: Switch,
    devices: Vec<File>,
    begun: Instant,
}

impl Joined {
    fn serve(&mut self, events: &Receiver<Event>) -> io::Result<()> {
        loop {
            let now = self.begun.elapsed();
            while let Some((port, frame)) = self.switch.arrived(now) {
                // A device that is down takes nothing, as a cable that is not plugged in.
                let _ = (&self.devices[port]).write(&frame);
            }
            let event = match self.switch.next() {
                Some(at) => events.recv_timeout(at.saturating_sub(self.begun.elapsed())),
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Frame(port, frame)) => {
                    self.switch.accept(port, &frame, self.begun.elapsed());
                }
                Ok(Event::Line(line)) => self.obey(&line)?,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    fn obey(&mut self, line: &str) -> io::Result<()> {
        let done = link::parse(line).and_then(|command| match command {
            Command::Counters => Ok(self.counters()),
            Command::Set(from, to, link) => self.set(from.as_deref(), to.as_deref(), &link),
        });
        match done {
            Ok(lines) => {
                for line in lines {
                    say(&line)?;
                }
                say("ok")
            }
            Err(why) => say(&format!("error: {why}")),
        }
    }

    fn set(
        &mut self,
        from: Option<&str>,
        to: Option<&str>,
        link: &Link,
    ) -> Result<Vec<String>, String> {
        for name in [from, to].into_iter().flatten() {
            if !self.names.iter().any(|known| known == name) {
                return Err(format!("there is no device {name}"));
            }
        }
        let all: Vec<_> = self.pairs().collect();
        for (sender, receiver) in all {
            let is_meant =
                |name: Option<&str>, port: usize| name.is_none_or(|name| name == self.names[port]);
            if is_meant(from, sender) && is_meant(to, receiver) {
                self.switch.set(sender, receiver, link.clone());
            }
        }
        Ok(Vec::new())
    }

    fn counters(&self) -> Vec<String> {
        let line = |(from, to)| {
            let it = self.switch.counters(from, to);
            format!(
                "{} {} passed={} lost={} dropped={} cut={}",
                self.names[from], self.names[to], it.passed, it.lost, it.dropped, it.cut
            )
        };
        self.pairs().map(line).collect()
    }

    /// All directions between two ports.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let ports = self.names.len();
        let all = (0..ports).flat_map(move |from| (0..ports).map(move |to| (from, to)));
        all.filter(|(from, to)| from != to)
    }
}
