//! Libraries that are absent, too old or something else, and ranks that cannot work together.

use std::path::Path;

use distribute_collectives::nccl::{
    NcclCommunicator, NcclOptions, NcclRefused, NcclUnavailable, driver, library, probe,
};
use distribute_collectives::{
    CollectiveError, Communicator, GroupOptions, InProcessCommunicator, Order, in_process,
};

use super::fake::{Fake, Rank};
use crate::common::{on_threads, within_limit};

type Refused = Box<NcclRefused<InProcessCommunicator>>;

/// Sets up a group of two whose ranks have these options.
fn set_up(options: impl Fn(usize) -> NcclOptions + Sync) -> Vec<Result<Rank, Refused>> {
    let group = in_process(2, GroupOptions::default()).expect("a group");
    on_threads(group, |endpoint| {
        let options = options(endpoint.rank());
        NcclCommunicator::new(endpoint, options)
    })
}

/// All ranks are refused for one reason, and can go on without NCCL.
fn assert_refused(options: impl Fn(usize) -> NcclOptions + Sync, reason: &str) {
    on_threads(set_up(options), |result| {
        let Err(refused) = result else {
            panic!("not refused: {reason}");
        };
        let mut refused = *refused;
        let cause = refused.cause;
        assert!(
            matches!(cause, CollectiveError::BackendUnavailable { .. }),
            "{cause}"
        );
        assert!(cause.to_string().contains(reason), "{cause}, not {reason}");
        refused.group.barrier().expect("usable");
    });
}

#[test]
fn an_absent_library_says_where_it_was_searched() {
    within_limit(|| {
        let fake = Fake::new("");
        let missing = Path::new("/nowhere/libnccl.so.2");
        let error = probe(&fake.options(0).nccl_library(missing)).unwrap_err();
        let NcclUnavailable::Absent {
            library,
            variable,
            searched,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!((library.as_str(), searched.len()), ("NCCL", 1));
        assert_eq!(*variable, "DISTRIBUTE_NCCL_LIBRARY");
        assert_eq!(searched[0].path, "/nowhere/libnccl.so.2");
        assert!(searched[0].reason.contains("No such file"), "{error}");
        assert_eq!(
            error.to_string().matches("libnccl.so.2").count(),
            1,
            "{error}"
        );
        let error = probe(&fake.options(0).cuda_library("/nowhere/libcuda.so.1")).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("the CUDA driver was not found; searched: /nowhere/")
                && error.contains("DISTRIBUTE_CUDA_LIBRARY"),
            "{error}"
        );
        // On one rank only: the other one has it, and hears of it.
        let options = |rank: usize| match rank {
            0 => fake.options(0),
            _ => fake.options(1).nccl_library(missing),
        };
        assert_refused(
            options,
            "rank 1: NCCL was not found; searched: /nowhere/libnccl.so.2",
        );
        // As values too, on both ranks.
        for refused in set_up(options).into_iter().map(Result::err) {
            let cause = refused.expect("refused").cause;
            let CollectiveError::BackendUnavailable { searched, .. } = &cause else {
                panic!("{cause}");
            };
            assert_eq!(searched.len(), 1, "{cause}");
            assert_eq!(searched[0].path, "/nowhere/libnccl.so.2");
        }
    });
}

#[test]
fn libraries_that_are_too_old_say_so() {
    within_limit(|| {
        let fake = Fake::new("nccl=2804");
        let reason = "is too old: it has version 2.8.4, at least 2.19.0 is needed";
        assert_refused(|rank| fake.options(rank), reason);
        let fake = Fake::new("driver=10020");
        let error = probe(&fake.options(0)).unwrap_err();
        assert!(matches!(error, NcclUnavailable::TooOld { .. }), "{error}");
        assert!(error.to_string().contains("the CUDA driver at"), "{error}");
        assert!(
            error
                .to_string()
                .contains("version 10.2.0, at least 11.0.0 is needed")
        );
    });
}

#[test]
fn a_missing_function_is_named() {
    within_limit(|| {
        let fake = Fake::new("");
        let options = fake.options(0).nccl_library("libm.so.6");
        let error = probe(&options).unwrap_err();
        let expected = NcclUnavailable::MissingSymbol {
            path: "libm.so.6".to_string(),
            symbol: "ncclGetVersion".to_string(),
        };
        assert_eq!(error, expected);
        // A library of the right version without one function: its name is changed in the file.
        let mut library = std::fs::read(fake.path()).expect("a library");
        let name = b"\0ncclCommFinalize\0";
        let places: Vec<usize> = (0..library.len() - name.len())
            .filter(|at| library[*at..].starts_with(name))
            .collect();
        assert!(!places.is_empty());
        places.iter().for_each(|at| library[at + 1] = b'x');
        let without = fake.directory().join("libwithout.so");
        std::fs::write(&without, library).expect("written");
        let error = probe(&fake.options(0).nccl_library(without)).unwrap_err();
        let named = matches!(
            &error,
            NcclUnavailable::MissingSymbol { symbol, .. } if symbol == "ncclCommFinalize"
        );
        assert!(named, "{error}");
    });
}

#[test]
fn machines_without_a_gpu_say_so() {
    within_limit(|| {
        let fake = Fake::new("devices=0");
        let error = probe(&fake.options(0)).unwrap_err();
        assert!(error.to_string().contains("no GPU was found"), "{error}");
        let fake = Fake::new("devices=1");
        let reason = "rank 1: there is no GPU 1: the CUDA driver shows 1";
        assert_refused(|rank| fake.options(rank), reason);
    });
}

#[test]
fn ranks_that_cannot_work_together_are_refused() {
    within_limit(|| {
        let fake = Fake::new("one_uuid=1");
        let reason = "rank 0 and rank 1 are on one GPU";
        assert_refused(|rank| fake.options(rank), reason);
        let (old, new) = (Fake::new("nccl=21903"), Fake::new(""));
        let options = |rank: usize| [&old, &new][rank].options(rank);
        assert_refused(options, "rank 0 has NCCL 2.19.3 and rank 1 has 2.27.3");
        let options = |rank: usize| old.options(rank).staging_bytes(1024 << rank);
        assert_refused(options, "different staging_bytes");
        [old, new, fake].iter().for_each(Fake::assert_clean);
    });
}

#[test]
fn a_communicator_that_cannot_connect_leaves_the_group_usable() {
    within_limit(|| {
        let fake = Fake::new("refuse=1");
        let timeout = std::time::Duration::from_millis(300);
        let options = |rank| fake.options(rank).init_timeout(timeout).grace(timeout);
        assert_refused(options, "rank 1: an operation of NCCL failed with 2");
        fake.assert_clean();
    });
}

#[test]
fn options_that_cannot_be_are_refused() {
    let fake = Fake::new("");
    let results = set_up(|rank| fake.options(rank).staging_bytes(15));
    for result in results {
        let cause = CollectiveError::from(result.err().expect("refused"));
        assert!(
            cause.to_string().contains("staging_bytes is at least"),
            "{cause}"
        );
    }
}

#[test]
fn the_order_of_the_ranks_is_refused() {
    let fake = Fake::new("");
    let group = GroupOptions::default().order(Order::Canonical);
    let endpoint = in_process(1, group).expect("a group").remove(0);
    let cause = NcclCommunicator::new(endpoint, fake.options(0))
        .err()
        .expect("refused")
        .cause;
    assert!(
        matches!(cause, CollectiveError::InvalidOption { .. }),
        "{cause}"
    );
    assert!(cause.to_string().contains("in rank order"), "{cause}");
}

#[test]
fn what_is_installed_is_told() {
    let fake = Fake::new("devices=6");
    let installation = probe(&fake.options(0)).expect("all there");
    assert_eq!(installation.driver.to_string(), "12.8.0");
    assert_eq!(installation.nccl.to_string(), "2.27.3");
    assert_eq!(installation.devices.len(), 6);
    let device = &installation.devices[1];
    assert_eq!((device.ordinal, &device.peers[..]), (1, &[0, 2, 3][..]));
    let text = "GPU 1: Host memory (8.0 GiB) at 0000:01:00.0, accesses [0, 2, 3]";
    assert_eq!(device.to_string(), text);
    let links: Vec<String> = device.links.iter().map(ToString::to_string).collect();
    let expected = [
        "GPU 0 directly, with atomics (NVLink), rank 0",
        "GPU 2 directly, without atomics (PCIe), rank 1",
        "GPU 3 directly, without atomics (PCIe), rank 1",
        "GPU 4 through host memory",
        "GPU 5 through host memory",
    ];
    assert_eq!(links, expected);
}

/// A framework for GPUs needs no NCCL.
#[test]
fn the_driver_is_found_without_nccl() {
    let fake = Fake::new("devices=2");
    let options = fake.options(0).nccl_library("/nowhere/libnccl.so.2");
    let found = driver(&options).expect("a driver");
    assert_eq!(
        (found.version.to_string(), found.devices.len()),
        ("12.8.0".to_string(), 2)
    );
    found.check(1).expect("there");
    let error = found.check(2).unwrap_err();
    assert!(error.to_string().contains("there is no GPU 2"), "{error}");
    assert!(matches!(
        library(&options),
        Err(NcclUnavailable::Absent { .. })
    ));
}
