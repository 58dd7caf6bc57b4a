//! Packing and options against values recorded from TensorFlow 2.21 (`cross_device.json`).

use std::time::Duration;

use distribute_core::collectives::{Communicator, GroupOptions, InProcessCommunicator, in_process};
use distribute_core::communication::pack::{concat_and_split, group_by_size, reversed_packs};
use distribute_core::{CommunicationImplementation, CommunicationOptions, ReduceOp};
use rstest::rstest;

/// Runs `f` for every rank of a new group, each on its own thread.
fn on_ranks<R: Send>(
    world_size: usize,
    options: GroupOptions,
    f: impl Fn(InProcessCommunicator) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|scope| {
        let f = &f;
        let start = |rank| scope.spawn(move || f(rank));
        let threads: Vec<_> = in_process(world_size, options)
            .unwrap()
            .into_iter()
            .map(start)
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

#[rstest]
#[case::small(&[8, 16, 4, 32], &[
    (0, &[&[0, 1, 2, 3][..]][..]),
    (1, &[&[0], &[1], &[2], &[3]]),
    (8, &[&[0, 1], &[2, 3]]),
    (16, &[&[0, 1], &[2, 3]]),
    (17, &[&[0, 1], &[2, 3]]),
    (32, &[&[0, 1, 2, 3]]),
    (1000, &[&[0, 1, 2, 3]]),
])]
#[case::mixed_dtypes(&[32, 12, 10, 8, 24], &[
    (0, &[&[0, 1, 2, 3, 4][..]][..]),
    (1, &[&[0], &[1], &[2], &[3], &[4]]),
    (8, &[&[0], &[1], &[2], &[3, 4]]),
    (16, &[&[0], &[1, 2], &[3, 4]]),
    (17, &[&[0], &[1, 2], &[3, 4]]),
    (32, &[&[0, 1], &[2, 3, 4]]),
])]
#[case::with_empty(&[0, 16, 0, 8], &[
    (1, &[&[0, 1][..], &[2, 3]][..]),
    (8, &[&[0, 1], &[2, 3]]),
    (16, &[&[0, 1, 2, 3]]),
])]
#[case::none(&[], &[(0, &[&[][..]][..]), (1, &[])])]
fn group_by_size_is_tensorflows(
    #[case] sizes: &[usize],
    #[case] expected: &[(usize, &[&[usize]])],
) {
    for (bytes_per_pack, packs) in expected {
        assert_eq!(
            group_by_size(sizes, *bytes_per_pack),
            *packs,
            "limit {bytes_per_pack}"
        );
    }
}

#[rstest]
#[case(9, 1, &[9])]
#[case(9, 2, &[4, 5])]
#[case(9, 4, &[2, 2, 2, 3])]
#[case(9, 12, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9])]
#[case(1, 3, &[0, 0, 1])]
#[case(30, 12, &[2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 8])]
#[case(6, 4, &[1, 1, 1, 3])]
fn concat_and_split_is_tensorflows(
    #[case] elements: usize,
    #[case] num_packs: usize,
    #[case] sizes: &[usize],
) {
    assert_eq!(concat_and_split(elements, num_packs).unwrap(), sizes);
    let error = concat_and_split(elements, 0).unwrap_err();
    assert_eq!(error.to_string(), "num_packs must be greater than zero.");
}

#[test]
fn packs_of_gradients_start_at_the_end_and_cover_the_list() {
    assert_eq!(reversed_packs(&[8, 16, 4, 32], 8), [3..4, 1..3, 0..1]);
    assert_eq!(reversed_packs(&[8, 16, 4, 32], 0).first(), Some(&(0..4)));
    assert!(reversed_packs(&[], 8).is_empty());
}

#[test]
fn options_have_tensorflows_defaults_and_texts() {
    assert_eq!(
        CommunicationOptions::default().to_string(),
        "Options(bytes_per_pack=0,timeout_seconds=None, \
         implementation=CommunicationImplementation.AUTO)"
    );
    let timeout = Some(Duration::from_millis(2500));
    let ring = "ring".parse().unwrap();
    let options = CommunicationOptions::new(1024, timeout, ring).unwrap();
    assert_eq!(
        options.to_string(),
        "Options(bytes_per_pack=1024,timeout_seconds=2.5, \
         implementation=CommunicationImplementation.RING)"
    );
    let error = CommunicationOptions::new(-1, None, ring).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Argument `bytes_per_pack` must be >=0, Received -1."
    );
    let error = "tree".parse::<CommunicationImplementation>().unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("'TREE' is not a valid CommunicationImplementation")
    );
}

#[test]
fn options_merge_as_in_tensorflow() {
    let auto = CommunicationImplementation::Auto;
    let ring = CommunicationImplementation::Ring;
    let options = |bytes, timeout: Option<u64>, implementation| {
        CommunicationOptions::new(bytes, timeout.map(Duration::from_secs), implementation).unwrap()
    };
    let base = options(5, Some(3), ring);
    assert_eq!(base.merge(&options(0, None, auto)), base);
    assert_eq!(
        base.merge(&options(9, None, auto)),
        options(9, Some(3), ring)
    );
    assert_eq!(
        base.merge(&options(0, Some(0), auto)),
        options(5, Some(0), ring)
    );
}

#[test]
fn every_option_takes_effect_or_is_an_error() {
    let ring = CommunicationOptions {
        timeout: Some(Duration::from_secs(2)),
        implementation: CommunicationImplementation::Ring,
        ..Default::default()
    };
    let group = ring.apply(GroupOptions::default()).unwrap();
    assert_eq!(group.get_timeout(), Duration::from_secs(2));
    let described = on_ranks(2, group, |endpoint| endpoint.describe().to_string());
    assert!(
        described[0].contains("ring all-reduce over in-process"),
        "{}",
        described[0]
    );
    let nccl = CommunicationOptions {
        implementation: CommunicationImplementation::Nccl,
        ..Default::default()
    };
    assert!(nccl.apply(GroupOptions::default()).is_err());
}

#[test]
fn batch_all_reduce_takes_mixed_types_in_packs() {
    for bytes_per_pack in [0, 1, 9, 1000] {
        let options = CommunicationOptions {
            bytes_per_pack,
            ..Default::default()
        };
        on_ranks(3, GroupOptions::default(), |mut endpoint| {
            let (mut a, mut b) = ([1.5_f32; 3], [2_i32; 2]);
            let (mut c, mut d) = ([3_i32; 1], [0.5_f32; 4]);
            let buffers = &mut [
                (&mut a[..]).into(),
                (&mut b[..]).into(),
                (&mut c[..]).into(),
                (&mut d[..]).into(),
            ];
            options
                .batch_all_reduce(&mut endpoint, ReduceOp::Sum, buffers)
                .unwrap();
            assert_eq!((a, b, c, d), ([4.5; 3], [6; 2], [9; 1], [1.5; 4]));
        });
    }
}
