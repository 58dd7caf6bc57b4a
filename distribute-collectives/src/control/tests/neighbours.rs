//! Whatever a neighbour says, and in whatever order: no panic, and no more memory than there are
//! ranks.

use proptest::collection::vec;
use proptest::prelude::*;

use super::simulation::{RANKS, joined_to_rank_0, with_children};
use super::*;
use crate::control::convert;
use crate::control::generated::envelope::Message;
use crate::control::generated::{
    Gather, Gone, Goodbye, Heartbeat, Left, Member as MemberMessage, Members, Part, RankAddress,
    Ready, Redirect, Reports,
};
use crate::control::membership::{Phase, envelope};

fn rank() -> impl Strategy<Value = u32> {
    prop_oneof![0..RANKS as u32 + 2, Just(u32::MAX)]
}

fn text() -> impl Strategy<Value = String> {
    "[a-z0-9.:]{0,12}"
}

fn members() -> impl Strategy<Value = Message> {
    let entry = (rank(), text(), text(), rank());
    let entry = entry.prop_map(|(rank, address, run, parent)| MemberMessage {
        rank,
        address,
        run,
        announcement: (parent % 2 == 0).then(Announcement::default),
        parent,
    });
    let gone = (rank(), text(), vec(rank(), 0..3)).prop_map(|(rank, reason, waited_for)| Gone {
        rank,
        reason,
        waited_for,
    });
    let left = (rank(), any::<u64>(), text()).prop_map(|(rank, completed, reason)| Left {
        rank,
        completed,
        reason,
    });
    (vec(entry, 0..4), vec(gone, 0..4), vec(left, 0..4)).prop_map(|(entries, gone, left)| {
        Message::Members(Members {
            entries,
            gone,
            left,
        })
    })
}

fn heartbeat() -> impl Strategy<Value = Message> {
    let reports = (
        vec(any::<u8>(), 0..40),
        any::<u64>(),
        any::<u64>(),
        vec(any::<u8>(), 0..9),
    )
        .prop_map(|(running, completed, age_ms, ranks)| Reports {
            running,
            completed,
            age_ms,
            ranks,
        });
    (vec(reports, 0..4), any::<bool>(), any::<u32>()).prop_map(
        |(reports, answer, lost_permille)| {
            Message::Heartbeat(Heartbeat {
                answer,
                lost_permille,
                reports,
                ..Heartbeat::default()
            })
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    let part = (rank(), 0..40_000_usize).prop_map(|(rank, bytes)| Part {
        rank,
        value: vec![7; bytes],
    });
    let number = prop_oneof![0..4_u64, Just(u64::MAX)];
    let gather = (number, vec(part, 0..3))
        .prop_map(|(number, parts)| Message::Gather(Gather { number, parts }));
    let address = (rank(), text()).prop_map(|(rank, address)| RankAddress { rank, address });
    let addresses = vec(address, 0..4);
    let goodbye = (vec(rank(), 0..3), addresses).prop_map(|(waited_for, successors)| {
        Message::Goodbye(Goodbye {
            waited_for,
            successors,
            ..Goodbye::default()
        })
    });
    prop_oneof![
        4 => members(),
        3 => heartbeat(),
        2 => gather,
        1 => goodbye,
        1 => Just(Message::Ready(Ready {})),
        1 => Just(Message::Announcement(Announcement::default())),
        1 => Just(Message::Redirect(Redirect::default())),
    ]
}

proptest! {
    #[test]
    fn nothing_that_a_neighbour_says_makes_a_rank_panic_or_grow(
        messages in vec(message(), 1..30),
        has_formed in any::<bool>(),
    ) {
        let (shared, id) = joined_to_rank_0(5);
        if has_formed {
            shared.state().phase = Phase::Formed;
        }
        for message in messages {
            shared.handle(0, id, envelope(message));
            shared.spread(true);
        }
        let state = shared.state();
        prop_assert!(state.links.len() == 1 && state.members.len() == RANKS);
        prop_assert!(state.left.len() < RANKS && state.gathers.len() <= 3);
        let parts = state.gathers.values().flat_map(|gathering| gathering.parts.iter().flatten());
        prop_assert!(parts.map(Vec::len).sum::<usize>() <= 3 * RANKS * (16 << 10));
    }
}

/// What a rank ends because of must come before it has left, or it is blamed for that.
#[test]
fn a_neighbour_hears_of_a_failure_before_it_hears_who_left_because_of_it() {
    let (shared, [(_, mut told), (from, _)]) = with_children();
    shared.spread(true);
    while told.try_recv().is_ok() {}
    let failure = Failure::aborted(2, "it had enough");
    shared.handle(
        2,
        from,
        envelope(Message::Notice(convert::notice(2, &failure))),
    );
    shared.handle(2, from, envelope(Message::Ready(Ready {})));
    shared.handle(2, from, envelope(Message::Goodbye(Goodbye::default())));
    // Whichever task comes first.
    shared.spread(false);
    let told = std::iter::from_fn(|| told.try_recv().ok()).filter_map(|it| it.unwrap().message);
    let told: Vec<_> = told.collect();
    let failed = told.iter().position(|it| matches!(it, Message::Notice(_)));
    let left = told
        .iter()
        .position(|it| matches!(it, Message::Members(it) if it.left.iter().any(|it| it.rank == 2)));
    assert!(
        failed.is_some() && left.is_some() && failed < left,
        "{told:?}"
    );
}
