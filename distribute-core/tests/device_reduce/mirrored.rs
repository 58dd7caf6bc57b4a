//! The replicas of one process.

use distribute_core::collectives::CollectiveError;
use distribute_core::{
    Error, HierarchicalCopy, LossScale, MirroredStrategy, NcclAllReduce, ReduceOp, Strategy,
    TrainState,
};
use rstest::rstest;

use crate::common::{Between, close, nothing, train, within_limit};
use crate::fake::Fake;
use crate::memory::HostMemory;
use crate::odd_gradients::Odd;

fn on_host(replicas: usize) -> MirroredStrategy {
    MirroredStrategy::builder()
        .replicas(replicas)
        .build()
        .unwrap()
}

fn with(memory: &HostMemory, fake: &Fake, replicas: usize) -> MirroredStrategy {
    MirroredStrategy::builder()
        .replicas(replicas)
        .device_reducers(memory.reducers(fake))
        .build()
        .unwrap()
}

type Configure = fn(TrainState<Odd>) -> TrainState<Odd>;

/// Trains with gradients on the devices and through the host.
fn compare(replicas: usize, configure: Configure, between: Between) {
    within_limit(move || {
        let (fake, memory) = (Fake::new(""), HostMemory::default());
        let strategy = with(&memory, &fake, replicas);
        let told = strategy.device_reduction()[0];
        assert!(
            told.starts_with("gradients stay on the devices: "),
            "{told}"
        );
        let found = train(&strategy, configure, between).unwrap();
        assert!(memory.calls() > 0);
        let expected = train(&on_host(replicas), configure, between).unwrap();
        close(&found, &expected);
        drop(strategy);
        fake.assert_clean();
    });
}

#[rstest]
fn training_gives_what_it_gives_through_the_host(#[values(2, 3, 4)] replicas: usize) {
    compare(replicas, |state| state, nothing);
}

#[test]
fn gradients_are_clipped_by_the_same_norm() {
    compare(2, |state| state.clip_by_global_norm(0.05), nothing);
}

/// Divided, and looked at, where they are: one that is infinite on one replica skips every update.
#[test]
fn a_loss_scale_looks_at_gradients_on_devices() {
    let configure: Configure = |state| state.with_loss_scale(LossScale::dynamic());
    compare(2, configure, nothing);
    compare(2, configure, |gradients, ctx| {
        let first = gradients.iter_mut()?.flatten().next();
        if let (Some(data), 1) = (first, ctx.replica_id()) {
            data.as_mut_slice::<f32>().map_err(Error::step)?[0] = f32::INFINITY;
        }
        Ok(())
    });
}

#[test]
fn micro_batches_are_added_up() {
    compare(2, |state| state.accumulate(3), nothing);
}

/// What looks at gradients gets them from the device; what changes them is what is applied.
#[test]
fn gradients_can_be_read_and_changed() {
    compare(
        2,
        |state| state,
        |gradients, ctx| {
            let norm = gradients.global_norm()?;
            let first = gradients.get(0)?.unwrap().iter::<f32>().sum::<f32>();
            assert!(norm > 0.0 && first.is_finite());
            assert_eq!(gradients.get(0)?.unwrap().shape().to_vec(), [3, 8]);
            assert!(
                gradients.get(gradients.len() - 1)?.is_none(),
                "nothing depends on it"
            );
            if ctx.replica_id() == 1 {
                for data in gradients.iter_mut()?.flatten() {
                    let values = data.as_mut_slice::<f32>().map_err(Error::step)?;
                    values.iter_mut().for_each(|value| *value *= 3.0);
                }
            }
            Ok(())
        },
    );
}

/// Asked for before the update as well: what is applied is the sum of the sums, as on the host.
#[test]
fn the_mean_of_gradients_is_that_of_the_host() {
    compare(
        3,
        |state| state,
        |gradients, ctx| {
            gradients.all_reduce(ctx, ReduceOp::Mean)?;
            let unused = gradients.get(gradients.len() - 1)?;
            assert!(unused.is_none(), "none on any replica");
            let first = gradients.get(gradients.len() - 2)?;
            assert!(first.is_some(), "one on replica 0");
            Ok(())
        },
    );
}

/// Parameters that nothing depends on do not travel.
#[test]
fn gradients_that_no_replica_has_are_not_reduced() {
    within_limit(|| {
        let (fake, memory) = (Fake::new(""), HostMemory::default());
        train(&with(&memory, &fake, 2), |state| state, nothing).unwrap();
        // hidden 3 x 8 + 8, output 8 + 1, left 5, right 5, wide 7, table 12, cut 11, one 1, first
        // 4; 6 steps of 2 replicas.
        assert_eq!(memory.elements(), (32 + 9 + 45) * 6 * 2);
        assert_eq!(memory.calls(), 12);
    });
}

#[test]
fn auto_goes_through_the_host_where_nccl_is_absent_and_says_so() {
    within_limit(|| {
        let (fake, memory) = (Fake::new(""), HostMemory::default());
        let missing = fake.options().nccl_library("/nowhere/libnccl.so.2");
        let reducers = || memory.reducers_of(&fake, missing.clone());
        let builder = || {
            MirroredStrategy::builder()
                .replicas(2)
                .device_reducers(reducers())
        };
        let strategy = builder().build().unwrap();
        let told = strategy.device_reduction()[0];
        assert!(
            told.starts_with("gradients go through host memory: NCCL"),
            "{told}"
        );
        assert!(told.contains("/nowhere/libnccl.so.2"), "{told}");
        let found = train(&strategy, |state| state, nothing).unwrap();
        assert_eq!(memory.calls(), 0);
        assert_eq!(found, train(&on_host(2), |state| state, nothing).unwrap());
        // By name it is an error, with the places as values.
        let outcome = builder().cross_device_ops(NcclAllReduce::new()).build();
        let error = outcome.unwrap_err();
        let Error::Collective(CollectiveError::BackendUnavailable { searched, .. }) = &error else {
            panic!("{error}");
        };
        assert_eq!(searched[0].path, "/nowhere/libnccl.so.2");
    });
}

#[test]
fn two_replicas_on_one_gpu_go_through_the_host() {
    within_limit(|| {
        let (fake, memory) = (Fake::new("one_uuid=1"), HostMemory::default());
        let strategy = with(&memory, &fake, 2);
        let told = strategy.device_reduction()[0];
        assert!(told.contains("rank 0 and rank 1 are on one GPU"), "{told}");
        train(&strategy, |state| state, nothing).unwrap();
        assert_eq!(memory.calls(), 0);
    });
}

/// Ops of one's own get gradients in host memory.
#[test]
fn other_ops_get_host_memory() {
    within_limit(|| {
        let (fake, memory) = (Fake::new(""), HostMemory::default());
        let strategy = MirroredStrategy::builder()
            .replicas(2)
            .cross_device_ops(HierarchicalCopy::default())
            .device_reducers(memory.reducers(&fake))
            .build()
            .unwrap();
        train(&strategy, |state| state, nothing).unwrap();
        assert_eq!((memory.calls(), strategy.device_reduction().len()), (0, 0));
    });
}

#[test]
fn nccl_by_name_on_cpus_is_an_error() {
    let ops = [NcclAllReduce::new(), NcclAllReduce::by_burn()];
    for (ops, name) in ops.into_iter().zip(["nccl", "burn"]) {
        let builder = MirroredStrategy::builder().replicas(2);
        let error = builder.cross_device_ops(ops).build().unwrap_err();
        let Error::Collective(CollectiveError::BackendUnavailable { backend, .. }) = &error else {
            panic!("{error}");
        };
        assert_eq!(backend, name);
        assert!(error.to_string().contains("is on a CPU"), "{error}");
    }
}
