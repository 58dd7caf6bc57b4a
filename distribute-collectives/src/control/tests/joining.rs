//! Who is there, who is missing and who does not fit.

use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::error::MissingRank;
use distribute_net::security::Token;
use hostile::alone::is_alone;
use hostile::descriptors::busy_without_descriptors;

#[test]
fn all_ranks_meet_in_any_start_order_and_know_what_the_others_announced() {
    within_limit(|| {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let (listeners, addresses) = listeners(3);
            let mut listeners: Vec<_> = listeners.into_iter().map(Some).collect();
            let mut threads = Vec::new();
            for rank in order {
                let (listener, options) = (listeners[rank].take(), options(rank, &addresses));
                let joining = move || join(options, listener.unwrap()).unwrap();
                threads.push((rank, std::thread::spawn(joining)));
            }
            let mut members: Vec<_> = threads
                .into_iter()
                .map(|(r, t)| (r, t.join().unwrap()))
                .collect();
            members.sort_by_key(|(rank, _)| *rank);
            for (rank, member) in &members {
                let peers: Vec<_> = member.plane.peers().iter().map(|peer| peer.rank).collect();
                let others: Vec<_> = (0..3).filter(|other| other != rank).collect();
                assert_eq!(peers, others);
                for peer in member.plane.peers() {
                    assert_eq!(peer.address, addresses[peer.rank]);
                    assert_eq!(
                        peer.announcement.shared_memory,
                        vec![peer.rank as u8; peer.rank]
                    );
                    let own = member.plane.secret_with(peer.rank);
                    let theirs = members[peer.rank].1.plane.secret_with(*rank);
                    assert!(is_same(&own, &theirs));
                }
            }
            let [one, two] = [1, 2].map(|rank| members[0].1.plane.secret_with(rank));
            assert!(!is_same(&one, &two));
        }
    });
}

#[test]
fn a_rank_alone_and_options_that_cannot_be() {
    within_limit(|| {
        assert!(group(1)[0].plane.peers().is_empty());
        let what = |change: fn(&mut JoinOptions)| {
            let (listeners, addresses) = listeners(1);
            let listener = listeners.into_iter().next().unwrap();
            let mut options = options(0, &addresses);
            change(&mut options);
            error_of(join(options, listener)).to_string()
        };
        assert!(what(|o| o.rank = 1).contains("rank 1 does not exist: there are 1 addresses"));
        assert!(what(|o| o.addresses.push(o.addresses[0].clone())).contains("two ranks have"));
        assert!(what(|o| o.heartbeat_misses = 0).contains("above 0"));
        // Times beyond the clock are no panic.
        let (sockets, addresses) = listeners(1);
        let mut options = options(0, &addresses);
        options.rendezvous_timeout = Duration::MAX;
        options.heartbeat_interval = Duration::MAX;
        assert!(join(options, sockets.into_iter().next().unwrap()).is_ok());
        assert!(what(|o| o.addresses.push(Some("nonsense".to_string()))).contains("host:port"));
    });
}

#[test]
fn missing_ranks_are_all_listed_with_what_happened_last() {
    within_limit(|| {
        let (mut sockets, mut addresses) = listeners(4);
        addresses[1] = "no-such-host.invalid:80".to_string();
        addresses[3] = "127.0.0.1:1".to_string();
        let (listener, mut of_zero) = (sockets.remove(0), options(0, &addresses));
        of_zero.rendezvous_timeout = Duration::from_millis(2500);
        let mut of_two = options(2, &addresses);
        of_two.rendezvous_timeout = Duration::from_millis(2000);
        let two = std::thread::spawn(move || error_of(join(of_two, sockets.remove(1))));
        let error = error_of(join(of_zero, listener));
        let CollectiveError::Rendezvous {
            rank: 0, missing, ..
        } = &error
        else {
            panic!("{error:?}");
        };
        assert_eq!(ranks_in(missing, &addresses), [1, 3]);
        assert!(missing[0].reason.contains("does not resolve"), "{error}");
        assert_eq!(missing[1].reason, "it has not connected");
        // Rank 0 tells the others.
        let error = two.join().unwrap();
        let CollectiveError::Rendezvous {
            rank: 2,
            missing,
            elapsed,
        } = &error
        else {
            panic!("{error:?}");
        };
        assert_eq!(ranks_in(missing, &addresses), [1, 3]);
        assert!(*elapsed >= Duration::from_millis(2000));
    });
}

/// The ranks that are missing, with their addresses in the list.
fn ranks_in(missing: &[MissingRank], addresses: &[String]) -> Vec<usize> {
    for missing in missing {
        assert_eq!(missing.address, addresses[missing.rank]);
    }
    missing.iter().map(|missing| missing.rank).collect()
}

/// All ranks tell rank 0 that they are there: without it none knows of the others.
#[test]
fn where_rank_0_does_not_answer_it_alone_is_missing() {
    within_limit(|| {
        let (mut sockets, addresses) = listeners(4);
        let (listener, mut options) = (sockets.remove(2), options(2, &addresses));
        // Rank 0 is a socket that accepts and says nothing.
        sockets.truncate(1);
        options.rendezvous_timeout = Duration::from_millis(1500);
        let started = Instant::now();
        let error = error_of(join(options, listener));
        let elapsed = started.elapsed();
        assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
        let CollectiveError::Rendezvous { missing, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(ranks_in(missing, &addresses), [0]);
    });
}

#[test]
fn a_higher_rank_whose_name_does_not_resolve_is_said_to_have_such_a_name() {
    within_limit(|| {
        let (mut sockets, mut addresses) = listeners(2);
        addresses[1] = "no-such-host.invalid:80".to_string();
        let mut options = options(0, &addresses);
        options.rendezvous_timeout = Duration::from_secs(3);
        let said = error_of(join(options, sockets.remove(0))).to_string();
        assert!(said.contains("does not resolve"), "{said}");
    });
}

/// The side that dials sees that nothing answers; the side that listens sees nothing at all.
#[test]
fn a_rank_that_has_not_connected_from_elsewhere_may_be_behind_a_firewall() {
    within_limit(|| {
        for (ip, is_told) in [("0.0.0.0", true), ("127.0.0.1", false)] {
            let at = format!("{ip}:0");
            let listener = BoundListener::bind(0, &at, &token().insecure()).unwrap();
            let port = listener.local_addr().port();
            let mut options = options(0, &[format!("{ip}:{port}"), "127.0.0.1:1".to_string()]);
            options.rendezvous_timeout = Duration::from_millis(300);
            options.security = token();
            let said = error_of(join(options, listener)).to_string();
            let advice = format!("a firewall? Let connections from its host to TCP port {port}");
            assert_eq!(said.contains(&advice), is_told, "{said}");
        }
    });
}

#[test]
fn an_interruption_ends_the_wait_of_every_rank_at_once() {
    within_limit(|| {
        for rank in [0, 1, 2] {
            let (mut sockets, addresses) = listeners(3);
            let (listener, mut options) = (sockets.remove(rank), options(rank, &addresses));
            // One of the others accepts and says nothing, the other one is gone.
            sockets.truncate(1);
            let interruption = options.interruption.clone();
            options.rendezvous_timeout = Duration::from_secs(50);
            let started = Instant::now();
            let joining = std::thread::spawn(move || error_of(join(options, listener)));
            interruption.raise();
            let error = joining.join().unwrap();
            assert!(
                started.elapsed() < Duration::from_secs(40),
                "{:?}",
                started.elapsed()
            );
            let CollectiveError::Interrupted {
                rank: said,
                missing,
                ..
            } = &error
            else {
                panic!("{error:?}");
            };
            // The others only know that they have not met rank 0.
            let expected = if rank == 0 { 2 } else { 1 };
            assert_eq!((*said, missing.len()), (rank, expected), "{error}");
        }
    });
}

/// Also when they gave up earlier than the rank that reports it.
#[test]
fn ranks_that_wait_for_another_one_are_not_blamed() {
    within_limit(|| {
        for deadlines_ms in [[1000, 1000, 1000], [500, 1000, 1500], [1500, 500, 1000]] {
            let (sockets, addresses) = listeners(4);
            let threads: Vec<_> = sockets
                .into_iter()
                .take(3)
                .zip(deadlines_ms)
                .enumerate()
                .map(|(rank, (listener, deadline_ms))| {
                    let mut options = options(rank, &addresses);
                    options.rendezvous_timeout = Duration::from_millis(deadline_ms);
                    std::thread::spawn(move || error_of(join(options, listener)))
                })
                .collect();
            for thread in threads {
                let error = thread.join().unwrap();
                let CollectiveError::Rendezvous { missing, .. } = &error else {
                    panic!("{error:?}");
                };
                let missing: Vec<_> = missing.iter().map(|missing| missing.rank).collect();
                assert_eq!(missing, [3], "{deadlines_ms:?}: {error}");
            }
        }
    });
}

/// Rank 2 gives up because of a wrong address of its own; no other rank is missing.
#[test]
fn a_rank_that_gave_up_for_a_reason_of_its_own_is_named() {
    within_limit(|| {
        let (sockets, mut addresses) = usual_listeners(3);
        let threads: Vec<_> = sockets
            .into_iter()
            .enumerate()
            .map(|(rank, listener)| {
                addresses[0] = match rank {
                    2 => "127.0.0.1:1".to_string(),
                    _ => addresses[0].clone(),
                };
                let mut options = options(rank, &addresses);
                let deadline_ms = [1500, 1000, 500][rank];
                options.rendezvous_timeout = Duration::from_millis(deadline_ms);
                std::thread::spawn(move || error_of(join(options, listener)))
            })
            .collect();
        let named: Vec<Vec<usize>> = threads
            .into_iter()
            .map(|thread| match thread.join().unwrap() {
                CollectiveError::Rendezvous { missing, .. } => {
                    missing.iter().map(|missing| missing.rank).collect()
                }
                error => panic!("{error:?}"),
            })
            .collect();
        assert_eq!(named, [vec![2], vec![2], vec![0]]);
    });
}

/// Two ranks, the second with a change; both must refuse with this difference.
#[track_caller]
fn both_refuse(change: impl Fn(&mut JoinOptions) + Sync, of_zero: &str, of_one: &str) {
    let mut joined = join_all(2, |rank, options| {
        if rank == 1 {
            change(options);
        }
    });
    let (one, zero) = (joined.pop().unwrap(), joined.pop().unwrap());
    let (zero, one) = (refusal(zero), refusal(one));
    assert!(zero.contains(of_zero), "{zero}");
    assert!(one.contains(of_one), "{one}");
}

#[test]
fn another_world_size_name_or_option_is_refused_by_both() {
    within_limit(|| {
        both_refuse(
            |options| options.addresses.push(Some("127.0.0.1:1".to_string())),
            "it has world size 3, this rank 2",
            "it has world size 2, this rank 3",
        );
        both_refuse(
            |options| options.group = "other".to_string(),
            "it is in group \"other\", this rank in \"test\"",
            "it is in group \"test\", this rank in \"other\"",
        );
        both_refuse(
            |options| options.options = "transport shm".to_string(),
            "it has the options \"transport shm\", this rank \"transport grpc\"",
            "it has the options \"transport grpc\", this rank \"transport shm\"",
        );
    });
}

/// What listens at another address than the one that was dialled passes the connection on, or the
/// two ranks were given different lists.
#[test]
fn another_address_than_the_dialled_one_is_refused_by_both() {
    within_limit(|| {
        let (listeners, addresses) = usual_listeners(2);
        let ports: Vec<u16> = listeners.iter().map(|it| it.local_addr().port()).collect();
        let reasons = on_threads(listeners.into_iter().enumerate(), |(rank, listener)| {
            let mut options = options(rank, &addresses);
            options.addresses[1 - rank] = Some(format!("localhost:{}", ports[1 - rank]));
            options.security = token();
            refusal(join(options, listener))
        });
        for reason in reasons {
            let dialled = [0, 1].map(|rank| {
                let (name, ip) = (format!("localhost:{}", ports[rank]), &addresses[rank]);
                reason.contains(&format!("{name} was dialled, and {ip} answers"))
            });
            assert!(dialled.contains(&true), "{reason}");
        }
    });
}

#[test]
fn a_rank_at_all_addresses_may_be_dialled_at_any() {
    within_limit(|| {
        let bind = |address| BoundListener::bind(0, address, &token().insecure()).unwrap();
        let listeners = ["0.0.0.0:0", "0.0.0.0:0"].map(bind);
        let ports = [0, 1].map(|rank| listeners[rank].local_addr().port());
        let joined = on_threads(listeners.into_iter().enumerate(), |(rank, listener)| {
            let addresses = [0, 1].map(|other| {
                if other == rank {
                    format!("0.0.0.0:{}", ports[other])
                } else {
                    format!("127.0.0.1:{}", ports[other])
                }
            });
            let mut options = options(rank, &addresses);
            options.security = token();
            join(options, listener).unwrap()
        });
        gather_once(&joined.iter().collect::<Vec<_>>());
    });
}

#[test]
fn of_many_options_those_that_differ_are_named() {
    within_limit(|| {
        let joined = join_all(2, |rank, options| {
            let algorithm = ["ring", "auto"][rank];
            options.options = format!("algorithm {algorithm}, transport grpc, 1 lanes");
        });
        for (rank, result) in joined.into_iter().enumerate() {
            let reason = refusal(result);
            let [own, other] = [["ring", "auto"][rank], ["ring", "auto"][1 - rank]];
            let said =
                format!("it has the options \"algorithm {other}\", this rank \"algorithm {own}\"");
            assert!(reason.contains(&said), "{reason}");
        }
    });
}

#[test]
fn all_ranks_hear_of_one_that_does_not_fit() {
    within_limit(|| {
        let joined = join_all(4, |rank, options| {
            if rank == 3 {
                options.options = "transport shm".to_string();
            }
        });
        for result in joined {
            let reason = refusal(result);
            assert!(reason.contains("transport shm"), "{reason}");
        }
    });
}

#[test]
fn two_processes_with_one_rank_are_refused() {
    within_limit(|| {
        let (mut sockets, addresses) = listeners(3);
        let (third, second, first) = (
            sockets.pop().unwrap(),
            sockets.pop().unwrap(),
            sockets.pop().unwrap(),
        );
        let all = [(0, first), (1, second), (1, third)];
        let threads = all.map(|(rank, listener)| {
            let options = options(rank, &addresses);
            std::thread::spawn(move || join(options, listener))
        });
        for thread in threads {
            let reason = refusal(thread.join().unwrap());
            assert!(reason.contains("two processes have one rank"), "{reason}");
            assert!(reason.contains("rank 1"), "{reason}");
        }
    });
}

#[test]
fn a_rank_of_another_generation_waits_and_disturbs_no_other() {
    within_limit(|| {
        let (mut sockets, addresses) = listeners(2);
        let spare = BoundListener::bind(1, "127.0.0.1:0", &Security::default()).unwrap();
        let (second, first) = (sockets.pop().unwrap(), sockets.pop().unwrap());
        let with = |rank, generation, seconds| {
            let mut options = options(rank, &addresses);
            options.generation = generation;
            options.rendezvous_timeout = Duration::from_secs(seconds);
            options
        };
        let zero = with(0, 5, 20);
        let zero = std::thread::spawn(move || join(zero, first).unwrap());
        // While rank 0 joins: the old one only learns why it waits.
        let error = error_of(join(with(1, 4, 1), spare));
        let CollectiveError::Rendezvous { missing, .. } = &error else {
            panic!("{error:?}");
        };
        assert!(
            missing[0]
                .reason
                .contains("it is in generation 5, this rank in 4"),
            "{error}"
        );
        let one = join(with(1, 5, 20), second).unwrap();
        let zero = zero.join().unwrap();
        // While the group runs.
        let spare = BoundListener::bind(1, "127.0.0.1:0", &Security::default()).unwrap();
        let error = error_of(join(with(1, 6, 1), spare));
        assert!(
            error
                .to_string()
                .contains("it is in generation 5, this rank in 6"),
            "{error}"
        );
        let spare = BoundListener::bind(1, "127.0.0.1:0", &Security::default()).unwrap();
        let error = error_of(join(with(1, 5, 1), spare));
        assert!(error.to_string().contains("runs already"), "{error}");
        gather_once(&[&zero, &one]);
        assert_eq!(zero.status.failures(), []);
        assert_eq!(one.status.failures(), []);
    });
}

fn token() -> Security {
    Security::default().token(Token::new("0123456789 of the job").unwrap())
}

/// Generation 4 had four ranks, generation 5 restarts with three: the last rank of the old one,
/// still retrying with the right token, and with what an older program says.
#[test]
fn an_old_generation_of_another_size_disturbs_no_rank() {
    within_limit(|| {
        let (sockets, addresses) = listeners(3);
        let (joined, gave_up) = mpsc::channel();
        std::thread::scope(|scope| {
            let old = |listener, protocol_version| {
                let spare = [addresses.clone(), vec!["127.0.0.1:1".to_string()]].concat();
                let mut options = options(3, &spare);
                options.generation = 4;
                options.rendezvous_timeout = Duration::from_secs(2);
                options.security = token();
                let mut hello = crate::control::plane::hello(&options).unwrap();
                hello.protocol_version = protocol_version;
                hello.build = "0.0.1".to_string();
                let joined =
                    ControlPlane::join_with_hello(hello, options, listener, Arc::default());
                joined.map(|_| ())
            };
            let mut threads = Vec::new();
            let mut start = |rank: usize, listener: BoundListener| {
                let mut options = options(rank, &addresses);
                options.generation = 5;
                options.security = token();
                let joined = joined.clone();
                threads.push(scope.spawn(move || {
                    let result = join(options, listener);
                    let _ = joined.send(rank);
                    result
                }));
            };
            let mut sockets = sockets.into_iter().enumerate();
            for (rank, listener) in sockets.by_ref().take(2) {
                start(rank, listener);
            }
            for version in [2, 7] {
                let listener = BoundListener::bind(3, "127.0.0.1:0", &Security::default()).unwrap();
                let error = old(listener, version).unwrap_err();
                let text = "it is in generation 5, this rank in 4";
                assert!(error.to_string().contains(text), "{error}");
                assert!(
                    matches!(error, CollectiveError::Rendezvous { .. }),
                    "{error}"
                );
            }
            assert!(gave_up.try_recv().is_err(), "a rank has given up");
            for (rank, listener) in sockets {
                start(rank, listener);
            }
            let members: Vec<_> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap().unwrap())
                .collect();
            gather_once(&members.iter().collect::<Vec<_>>());
        });
    });
}

#[test]
fn unauthenticated_peers_disturb_neither_the_rendezvous_nor_the_group() {
    within_limit(|| {
        let (sockets, addresses) = listeners(2);
        let disturb = |count: usize| -> Vec<TcpStream> {
            let connect = |index: usize| {
                let mut stream = TcpStream::connect(&addresses[index % 2]).unwrap();
                let text: &[u8] = match index % 4 {
                    0 | 1 => b"",
                    2 => b"GET / HTTP/1.1\r\n\r\n",
                    _ => &[0xff; 4096],
                };
                // The other end may have closed the connection already.
                let _ = stream.write_all(text);
                stream
            };
            (0..count).map(connect).collect()
        };
        // More than may stay: the oldest have to go.
        let unauthenticated = disturb(200);
        let start = |(rank, listener): (usize, BoundListener)| {
            let options = options(rank, &addresses);
            std::thread::spawn(move || join(options, listener).unwrap())
        };
        let threads: Vec<_> = sockets.into_iter().enumerate().map(start).collect();
        let members: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        let more = disturb(200);
        gather_once(&[&members[0], &members[1]]);
        for member in &members {
            assert_eq!(member.status.failures(), []);
        }
        drop((unauthenticated, more));
    });
}

/// Connects again and again, says this, and stays as long as it may.
fn flood(address: &str, words: &[u8], is_over: &AtomicBool) {
    let mut open = VecDeque::new();
    let (address, limit) = (address.parse().unwrap(), Duration::from_millis(100));
    while !is_over.load(Ordering::Relaxed) {
        if let Ok(mut stream) = TcpStream::connect_timeout(&address, limit) {
            // The other end may have closed it already.
            let _ = stream.write_all(words);
            open.push_back(stream);
        }
        if open.len() > 100 {
            open.pop_front();
        }
    }
}

/// From the same address as the ranks, so that nothing but what they say tells them apart.
#[test]
fn a_flood_of_silent_and_of_talking_peers_keeps_no_rank_out() {
    let floods: [&[u8]; 3] = [
        b"",
        b"GET / HTTP/1.1\r\n",
        // All that a client of HTTP/2 says before its first request.
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0",
    ];
    within_limit(move || {
        for words in floods {
            let (sockets, addresses) = listeners(4);
            let is_over = AtomicBool::new(false);
            let joined = std::thread::scope(|scope| {
                // Also of rank 0, which takes no connections yet: its queue is full.
                for address in &addresses[..2] {
                    scope.spawn(|| flood(address, words, &is_over));
                }
                std::thread::sleep(Duration::from_millis(100));
                let start = |(rank, listener)| {
                    let mut options = options(rank, &addresses);
                    options.rendezvous_timeout = Duration::from_secs(10);
                    scope.spawn(move || join(options, listener))
                };
                let ranks: Vec<_> = sockets.into_iter().enumerate().map(start).collect();
                let joined: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
                is_over.store(true, Ordering::Relaxed);
                joined
            });
            let members: Vec<_> = joined.into_iter().map(Result::unwrap).collect();
            gather_once(&members.iter().collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_control_port_without_descriptors_pauses() {
    if !is_alone(module_path!(), "a_control_port_without_descriptors_pauses") {
        return;
    }
    let (mut sockets, addresses) = listeners(2);
    let (listener, mut options) = (sockets.remove(0), options(0, &addresses));
    options.rendezvous_timeout = Duration::from_secs(3);
    let zero = std::thread::spawn(move || join(options, listener));
    std::thread::sleep(Duration::from_millis(300));
    let busy = busy_without_descriptors(|| TcpStream::connect(&addresses[0]));
    assert!(busy < Duration::from_millis(300), "{busy:?}");
    let error = error_of(zero.join().unwrap()).to_string();
    let cause = "this process has no file descriptors left (limit 256)";
    assert!(
        error.contains(cause) && error.contains("`ulimit -n`"),
        "{error}"
    );
}

#[test]
fn nothing_is_left_of_100_groups() {
    // Other tests of this process open descriptors of their own.
    if !is_alone(module_path!(), "nothing_is_left_of_100_groups") {
        return;
    }
    let count = |what: &str| {
        std::fs::read_dir(format!("/proc/self/{what}"))
            .unwrap()
            .count()
    };
    drop(group(2));
    let before = (count("task"), count("fd"));
    for _ in 0..50 {
        let named = join_all(2, |_, options| {
            for address in options.addresses.iter_mut().flatten() {
                *address = address.replace("127.0.0.1", "localhost");
            }
        });
        assert!(named.iter().all(Result::is_ok));
        drop(named);
        let ranks = group(3);
        ranks[0].abort("enough");
        drop(ranks);
    }
    assert_eq!((count("task"), count("fd")), before);
}
