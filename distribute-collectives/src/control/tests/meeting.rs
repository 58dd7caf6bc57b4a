//! Ranks that are not listed: they tell rank 0 where they listen, and rank 0 tells the others.

use super::*;
use distribute_net::security::Token;

/// The options of a rank where only rank 0 is listed.
fn unlisted(rank: usize, addresses: &[String]) -> JoinOptions {
    let mut options = options(rank, addresses);
    options.addresses[1..].fill(None);
    options.told_address = (rank > 0).then(|| addresses[rank].clone());
    let token = Token::new("0123456789 of this job").unwrap();
    options.security = Security::default().token(token);
    options
}

fn missing(error: &CollectiveError) -> Vec<usize> {
    let CollectiveError::Rendezvous { missing, .. } = error else {
        panic!("{error:?}");
    };
    missing.iter().map(|missing| missing.rank).collect()
}

#[test]
fn ranks_that_are_not_listed_know_each_other_in_the_end() {
    within_limit(|| {
        let (listeners, addresses) = listeners(5);
        // The last one first: rank 0 is dialled before it listens to it.
        let ranks = listeners.into_iter().enumerate().rev();
        let mut members = on_threads(ranks, |(rank, listener)| {
            (rank, join(unlisted(rank, &addresses), listener).unwrap())
        });
        members.sort_by_key(|(rank, _)| *rank);
        for (_, member) in &members {
            for peer in member.plane.peers() {
                assert_eq!(peer.address, addresses[peer.rank]);
            }
        }
        let members: Vec<&Member> = members.iter().map(|(_, member)| member).collect();
        gather_once(&members);
    });
}

#[test]
fn without_rank_0_it_alone_is_missing() {
    within_limit(|| {
        let (mut sockets, addresses) = listeners(4);
        sockets.remove(0);
        let mut options = unlisted(1, &addresses);
        options.rendezvous_timeout = Duration::from_millis(500);
        let error = error_of(join(options, sockets.remove(0)));
        assert_eq!(missing(&error), [0], "{error}");
    });
}

#[test]
fn a_rank_that_did_not_tell_where_it_is_is_named_by_all() {
    within_limit(|| {
        for deadlines_ms in [[1000, 1000, 1000], [500, 1000, 1500], [1500, 500, 1000]] {
            let (sockets, addresses) = listeners(4);
            let ranks = sockets.into_iter().take(3).zip(deadlines_ms).enumerate();
            let errors = on_threads(ranks, |(rank, (listener, deadline_ms))| {
                let mut options = unlisted(rank, &addresses);
                options.rendezvous_timeout = Duration::from_millis(deadline_ms);
                error_of(join(options, listener))
            });
            for error in errors {
                assert_eq!(missing(&error), [3], "{deadlines_ms:?}: {error}");
            }
        }
    });
}

/// As when a process ended before all had come, and another one was started in its place.
#[test]
fn a_rank_that_comes_again_elsewhere_is_found_there() {
    within_limit(|| {
        let (mut sockets, addresses) = listeners(3);
        let (again, moved) = listeners(1);
        let [third, second, first] = [(); 3].map(|()| sockets.pop().unwrap());
        std::thread::scope(|scope| {
            let start = |rank, listener| {
                let options = unlisted(rank, &addresses);
                scope.spawn(move || join(options, listener))
            };
            let zero = start(0, first);
            let mut short = unlisted(2, &addresses);
            short.rendezvous_timeout = Duration::from_millis(400);
            assert!(join(short, third).is_err());
            let mut moved_options = unlisted(2, &addresses);
            moved_options.told_address = Some(moved[0].clone());
            let listener = again.into_iter().next().unwrap();
            let two = scope.spawn(move || join(moved_options, listener));
            let one = start(1, second);
            let joined = [zero, one, two].map(|rank| rank.join().unwrap().unwrap());
            let peers = joined[1].plane.peers();
            assert_eq!(peers[1].address, moved[0]);
        });
    });
}

#[test]
fn a_rank_that_tells_nothing_or_an_address_of_others_is_refused() {
    within_limit(|| {
        let refused = |change: fn(&mut JoinOptions, &[String])| {
            let (listeners, addresses) = listeners(2);
            let ranks = listeners.into_iter().enumerate();
            let reasons = on_threads(ranks, |(rank, listener)| {
                let mut options = unlisted(rank, &addresses);
                if rank == 1 {
                    change(&mut options, &addresses);
                }
                refusal(join(options, listener))
            });
            reasons.join("; ")
        };
        let text = refused(|options, addresses| {
            options.told_address = None;
            options.addresses[1] = Some(addresses[1].clone());
        });
        assert!(text.contains("does not say where it listens"), "{text}");
        let text = refused(|options, addresses| {
            options.told_address = Some(addresses[0].clone());
        });
        assert!(text.contains("where rank 0 is"), "{text}");
        let text = refused(|options, _| {
            options.told_address = Some("0.0.0.0:7".to_string());
        });
        assert!(
            text.contains("others cannot connect to 0.0.0.0:7"),
            "{text}"
        );
    });
}
