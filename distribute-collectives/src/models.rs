//! Models of what threads and processes meet by, for loom: it runs each in every order of its
//! threads and with every value that the memory model lets a load return. A model that stands
//! still, or in which two threads access the same bytes, fails.
//!
//! The code is that of the crate, see [`sync`](crate::sync). Naps have no end in a model, so that
//! a wake that is missing stands out. Run them with
//! `cargo test -p distribute-collectives --features loom --lib models`.

use std::sync::Arc;
use std::time::Duration;

use crate::bookkeeping::RunningOperation;
use crate::error::CollectiveError;
use crate::failure::{Failure, FailureKind};
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::status::GroupStatus;

/// How often a thread may lose its core where it need not: nearly all errors of this kind need two.
const PREEMPTIONS: usize = 3;

/// Longer than any model runs.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// Runs a model in all its orders.
pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// The first operation of a group.
pub(crate) fn first(kind: OperationKind) -> RunningOperation {
    RunningOperation::new(&OperationHeader::new(kind, 0, 0), LONG)
}

/// Rank 1 was lost.
pub(crate) fn lost() -> Failure {
    let reason = "killed".to_string();
    Failure {
        kind: FailureKind::Lost { rank: 1, reason },
        from_sequence: 0,
    }
}

/// Must fail when a failure is made known (`failed`) before it is in the list.
#[test]
fn of_two_failures_all_threads_report_the_same() {
    explore(|| {
        let status = Arc::new(GroupStatus::default());
        let header = first(OperationKind::Barrier).header;
        let other = status.clone();
        let thread = loom::thread::spawn(move || {
            other.record_if_first(Failure::aborted(2, "the loss is NaN"));
            other.check(&header)
        });
        let third = status.clone();
        let looking = loom::thread::spawn(move || third.check(&header));
        status.record_failure(lost());
        let reported = status.check(&header);
        assert!(reported.is_err());
        assert_eq!(thread.join().unwrap(), reported);
        let seen = looking.join().unwrap();
        assert!(seen.is_ok() || seen == reported);
    });
}

/// Must fail when the wakers are called before the failure is in the list.
#[test]
fn who_is_woken_finds_the_failure() {
    explore(|| {
        let status = Arc::new(GroupStatus::default());
        let bell = Arc::new((crate::sync::Mutex::new(false), crate::sync::Condvar::new()));
        let rung = bell.clone();
        status.on_failure(move || {
            *rung.0.lock().unwrap() = true;
            rung.1.notify_all();
        });
        let other = status.clone();
        let thread = loom::thread::spawn(move || other.goodbye(1, 0, "it left".to_string()));
        let mut woken = bell.0.lock().unwrap();
        while !*woken {
            woken = bell.1.wait(woken).unwrap();
        }
        drop(woken);
        let error = status.check(&first(OperationKind::Barrier).header);
        assert!(matches!(
            error,
            Err(CollectiveError::PeerLost { rank: 1, .. })
        ));
        thread.join().unwrap();
    });
}
