//! Rules one by one; `simulation` has them all together.

use super::*;

mod simulation;

const MAX: usize = 8;

/// The address of a host.
fn host(number: u8) -> IpAddr {
    [127, 0, 0, number].into()
}

/// A crowd of connections of these hosts, numbered in this order, and when they have had their
/// time.
fn crowd(hosts: &[(u8, Progress)]) -> (Crowd<()>, Instant) {
    let (mut crowd, begin) = (Crowd::new(Charge::CLEAR), Instant::now());
    for (number, progress) in hosts {
        let id = crowd.enter(host(*number), begin, ());
        crowd.note(id, *progress);
    }
    (crowd, begin + TENURE)
}

/// Who may be ended for a connection of this host.
fn candidates(crowd: &Crowd<()>, number: u8, now: Instant) -> Vec<Id> {
    let room = |chance| crowd.room(host(number), MAX, now, chance);
    let all = (0..100).map(|chance| match room(chance) {
        Room::End(id) => id,
        other => panic!("{other:?}"),
    });
    let mut all: Vec<Id> = all.collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn the_source_with_most_connections_makes_room_and_who_has_come_least_far_first() {
    use Progress::{Idle, SentBytes, SentHello};
    assert_eq!(Crowd::<()>::new(Charge::CLEAR).one_to_end(0), None);
    let mut hosts = vec![(1, Idle), (1, Idle)];
    hosts.extend([(2, SentHello); MAX - 2]);
    let (of_hello, now) = crowd(&hosts);
    assert_eq!(candidates(&of_hello, 3, now), [2, 3, 4, 5, 6, 7]);
    for (progress, place) in [(SentBytes, 5), (Idle, 7)] {
        hosts[place] = (2, progress);
        let (crowd, now) = crowd(&hosts);
        assert_eq!(candidates(&crowd, 3, now), [place as Id]);
        assert_eq!(crowd.one_to_end(7), Some(place as Id));
    }
    // With another one both would have most.
    let equal = [
        (1, Idle),
        (1, Idle),
        (1, Idle),
        (2, Idle),
        (2, Idle),
        (2, Idle),
        (2, Idle),
    ];
    let (crowd, now) = crowd(&[&equal[..], &[(3, Idle)]].concat());
    assert_eq!(candidates(&crowd, 1, now), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(candidates(&crowd, 2, now), [3, 4, 5, 6]);
}

#[test]
fn a_connection_has_its_time_before_one_of_its_own_source_comes_in_its_place() {
    let (crowd, old) = crowd(&[(1, Progress::SentBytes); MAX]);
    let young = old - Duration::from_millis(1);
    let room = |number, now| crowd.room(host(number), MAX, now, 3);
    assert_eq!(room(1, young), Room::Refused);
    assert!(matches!(room(1, old), Room::End(_)));
    // Of old and young ones chance chooses.
    let (mut mixed, old) = self::crowd(&[(1, Progress::SentBytes); MAX - 1]);
    let late = mixed.enter(host(1), old, ());
    mixed.note(late, Progress::SentBytes);
    let rooms = (0..MAX as u64).map(|chance| mixed.room(host(1), MAX, old, chance));
    assert_eq!(rooms.filter(|room| *room == Room::Refused).count(), 1);
    // A member of another host makes a flood give way.
    assert!(matches!(room(2, young), Room::End(_)));
    // Who is silent gives way at once.
    let (silent, old) = self::crowd(&[(1, Progress::Idle); MAX]);
    let young = old - TENURE;
    assert!(matches!(silent.room(host(1), MAX, young, 3), Room::End(_)));
    // Among others also before ones that have said more for long.
    let mut hosts = [(1, Progress::SentHello); MAX];
    hosts[5].1 = Progress::Idle;
    let (mixed, old) = self::crowd(&hosts);
    assert_eq!(candidates(&mixed, 1, old), [5]);
}

#[test]
fn who_ends_makes_room_at_once_and_no_second_one_ends() {
    let (mut crowd, now) = crowd(&[(1, Progress::Idle); MAX]);
    assert_eq!(crowd.end(3), Some(&()));
    assert_eq!(crowd.room(host(1), MAX, now, 0), Room::Free);
    assert!((0..100).all(|chance| crowd.one_to_end(chance) != Some(3)));
    assert!(crowd.leave(3) && !crowd.leave(3));
    crowd.enter(host(1), now, ());
    assert!(matches!(crowd.room(host(2), MAX, now, 0), Room::End(_)));
    assert!(crowd.leave(4));
    assert_eq!(crowd.room(host(2), MAX, now, 0), Room::Free);
}

/// Reads as much as it may of a connection; whom it would end for more.
fn fill(crowd: &mut Crowd<()>, id: Id) -> More {
    loop {
        match crowd.reserve(id, usize::MAX, id) {
            More::Granted(granted) => crowd.settle(id, granted, granted),
            other => return other,
        }
    }
}

#[test]
fn bytes_of_one_and_of_all_have_a_limit_and_who_has_most_beyond_a_handshake_ends() {
    let (mut crowd, now) = crowd(&[(1, Progress::SentHello); 200]);
    // Members, with all that they say.
    for id in 0..100 {
        let granted = crowd.reserve(id, 2000, 0);
        assert_eq!(granted, More::Granted(2000));
        crowd.settle(id, 2000, 1500);
    }
    let mut ended = Vec::new();
    for id in 100..200 {
        match fill(&mut crowd, id) {
            More::TooMuch => assert_eq!(crowd.entries[&id].read, UNPROVEN_BYTES_MAX),
            More::Wait(Some(other)) => {
                ended.push(other);
                crowd.end(other);
                assert_eq!(fill(&mut crowd, id), More::Wait(None));
                crowd.leave(other);
            }
            other => panic!("{other:?}"),
        }
        let read: usize = crowd.entries.values().map(|entry| entry.read).sum();
        assert!(read <= crowd.all.held && crowd.all.held <= UNPROVEN_BYTES_OF_ALL_MAX);
    }
    assert!(
        ended.len() > 20 && ended.iter().all(|id| *id >= 100),
        "{ended:?}"
    );
    // A host that has no connection yet comes in all the same.
    let Room::End(id) = crowd.room(host(2), 1000, now, 9) else {
        panic!("there is room");
    };
    assert!(id >= 100);
    (0..200).for_each(|id| {
        crowd.leave(id);
    });
    let nothing = Totals::default();
    assert_eq!((crowd.all, crowd.staying), (nothing, nothing));
    assert!(crowd.sources.is_empty());
}

/// What is ending still holds its bytes: more of them wait until it has left.
#[test]
fn bytes_of_what_is_ending_count_until_it_has_left() {
    let (mut crowd, now) = crowd(&[(1, Progress::SentBytes); 80]);
    let end = (0..80).find(|id| matches!(fill(&mut crowd, *id), More::Wait(_)));
    let end = end.unwrap();
    (0..end).for_each(|id| {
        crowd.end(id);
    });
    assert_eq!(crowd.reserve(end, 4096, 0), More::Wait(None));
    assert_eq!(crowd.room(host(1), 1000, now, 0), Room::Wait);
    crowd.leave(0);
    assert_eq!(crowd.reserve(end, 4096, 0), More::Granted(4096));
    assert_eq!(crowd.room(host(1), 1000, now, 0), Room::Free);
}

#[test]
fn all_addresses_of_one_network_are_one_source() {
    let of = |text: &str| source_of(text.parse().unwrap());
    assert_eq!(of("::ffff:127.0.0.1"), of("127.0.0.1"));
    assert_eq!(of("fd00::1"), of("fd00::2:1"));
    assert_ne!(of("fd00::1"), of("fd00:0:0:1::1"));
}

#[test]
fn who_is_here_for_long_is_found() {
    let (mut crowd, now) = crowd(&[(1, Progress::Idle); 2]);
    crowd.enter(host(1), now, ());
    crowd.end(0);
    assert_eq!(crowd.older_than(TENURE / 2, now), [1]);
    assert_eq!(crowd.older_than(TENURE, now), [] as [Id; 0]);
}
