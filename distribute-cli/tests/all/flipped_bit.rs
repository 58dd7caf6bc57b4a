//! A bit of a gradient that changes on its way between two workers, when the data is in clear.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rstest::rstest;
use serde_json::Value;

use crate::common::Process;
use crate::job::{MULTI, Member, addresses, tf_config};

/// A shorter frame may hold something else than numbers.
const GRADIENT_BYTES: usize = 4096;

/// Passes connections on. Of what comes back on one for gradients, one bit of the next long frame
/// of data is flipped as often as `flips` says.
fn proxy(at: SocketAddr, to: SocketAddr, flips: Arc<AtomicUsize>) {
    let listener = TcpListener::bind(at).unwrap();
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(to) else {
                // Too early: it comes again.
                continue;
            };
            for socket in [&near, &far] {
                socket.set_nodelay(true).unwrap();
            }
            let there = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut { there.0 }, &mut { there.1 }));
            let flips = Arc::clone(&flips);
            thread::spawn(move || pass_back(&far, &near, &flips));
        }
    });
}

/// What comes back: the answer of the handshake, which says what the connection is for; on one for
/// gradients a text that accepts it; then HTTP/2.
fn pass_back(from: &TcpStream, to: &TcpStream, flips: &AtomicUsize) -> std::io::Result<()> {
    let answer = pass_text(from, to)?;
    let none = AtomicUsize::new(0);
    let flips = if answer.contains(r#""purpose":"data""#) {
        pass_text(from, to)?;
        flips
    } else {
        &none
    };
    loop {
        pass_frame(from, to, flips)?;
    }
}

/// A text with its length before it.
fn pass_text(mut from: &TcpStream, mut to: &TcpStream) -> std::io::Result<String> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut text = vec![0; u32::from_be_bytes(length) as usize];
    from.read_exact(&mut text)?;
    to.write_all(&[&length[..], &text].concat())?;
    String::from_utf8(text).map_err(std::io::Error::other)
}

/// A frame of HTTP/2: 9 bytes with its length and its type (0 for data), and as many more as the
/// length says.
fn pass_frame(
    mut from: &TcpStream,
    mut to: &TcpStream,
    flips: &AtomicUsize,
) -> std::io::Result<()> {
    let mut frame = vec![0; 9];
    from.read_exact(&mut frame)?;
    let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]) as usize;
    frame.resize(9 + length, 0);
    from.read_exact(&mut frame[9..])?;
    if frame[3] == 0 && length >= GRADIENT_BYTES {
        let taken = flips.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(1)
        });
        if taken.is_ok() {
            frame[9 + length / 2] ^= 1;
        }
    }
    to.write_all(&frame)
}

/// A sum travels as parts of it that are added, and then as a whole: a bit that changes in a part
/// is wrong for both workers alike, one of the whole for one of them.
/// It is found at the next save, or at the next check.
#[rstest]
#[case("--checkpoint-dir ck --checkpoint-steps 1", 1)]
#[case("--check-replicas 7", 7)]
fn a_bit_that_flips_on_its_way_ends_the_job_and_nothing_of_it_is_saved(
    #[case] checks: &str,
    #[case] every: u64,
) {
    let folder = tempfile::tempdir().unwrap();
    let own = addresses(2);
    let zero: SocketAddr = own[0].parse().unwrap();
    let mut seen = zero;
    seen.set_ip(match zero.ip() {
        std::net::IpAddr::V4(ip) => {
            let [network, middle, low, _] = ip.octets();
            [network, middle, low, 251].into()
        }
        other => other,
    });
    let flips = Arc::new(AtomicUsize::new(0));
    proxy(seen, zero, Arc::clone(&flips));
    let lists = [
        [own[0].clone(), own[1].clone()],
        [seen.to_string(), own[1].clone()],
    ];
    let arguments = format!("{MULTI} --transport grpc --steps 2000 {checks}");
    let mut workers = [0, 1].map(|rank| {
        let cluster = format!(r#"{{"worker": {:?}}}"#, lists[rank]);
        let config = tf_config(&cluster, "worker", rank);
        Member::start(folder.path(), &arguments, &[("TF_CONFIG", &config)])
    });
    workers[0].wait_for(r#""event":"epoch""#);
    flips.store(64, Ordering::Relaxed);
    let ended = workers.map(Process::finish);
    let mut steps = Vec::new();
    for worker in &ended {
        assert_eq!(worker.code, Some(1), "{}", worker.stderr);
        let told = worker.told();
        for part in [
            "the replicas do not have the same state any more after step ",
            "(ranks 0, 1)",
            "the first difference is in `",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let step = told.split("any more after step ").nth(1).unwrap();
        let step: String = step.chars().take_while(char::is_ascii_digit).collect();
        steps.push(step.parse::<u64>().unwrap());
    }
    assert_eq!(steps[0], steps[1]);
    assert!(steps[0].is_multiple_of(every), "{steps:?}");
    if checks.contains("--checkpoint-dir") {
        // The newest checkpoint is of the step before, and good.
        let newest = std::fs::read_dir(folder.path().join("ck")).unwrap();
        let newest = newest.filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_prefix("step-")?.parse::<u64>().ok()
        });
        assert_eq!(newest.max(), Some(steps[0] - 1));
    }
    let events = ended[0]
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert!(events.into_iter().all(|event| event["event"] != "done"));
}
