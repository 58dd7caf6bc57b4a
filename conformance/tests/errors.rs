//! What users see of errors and values: `?` works on every error of the crates, an error that
//! `main` returns is a sentence, and a value shows what it holds.

use burn::module::{Module, Param};
use burn::tensor::{Int, TensorData};
use distribute_core::checkpoint::{CheckpointError, CheckpointManager};
use distribute_core::{
    DistributedVariable, Error, Mirrored, MirroredStrategy, PerReplica, Result, Sgd, Strategy,
    StrategyExt, Tensor, TrainState, VariableOptions,
};
use distribute_data::readers;

fn converts<E>()
where
    Error: From<E>,
{
}

/// Every public error of a crate that knows `distribute-core`, or that it knows.
#[test]
fn every_error_of_the_crates_converts() {
    converts::<CheckpointError>();
    converts::<distribute_data::fit::FitError>();
    converts::<distribute_core::cluster::ClusterError>();
    converts::<distribute_collectives::CollectiveError>();
    converts::<distribute_collectives::flight_record::FlightRecordError>();
    converts::<readers::ReadError>();
    converts::<distribute_data::DataError>();
    converts::<distribute_keras::ModelError>();
    converts::<distribute_ps::PsError>();
    converts::<distribute_tpu_xla::TpuError>();
    converts::<conformance::GoldenError>();
    converts::<conformance::SelectionError>();
}

fn no_checkpoints() -> Result<()> {
    let file = tempfile::NamedTempFile::new().map_err(Error::step)?;
    CheckpointManager::open(file.path().join("below a file"))?;
    Ok(())
}

fn no_data() -> Result<()> {
    readers::read_npy("no such file.npy")?;
    Ok(())
}

#[test]
fn a_converted_error_keeps_its_message_and_its_kind() {
    let error = no_checkpoints().unwrap_err();
    let Error::Checkpoint(source) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(source.to_string(), error.to_string());
    assert!(source.downcast_ref::<CheckpointError>().is_some());
    let error = no_data().unwrap_err();
    let Error::Input(source) = &error else {
        panic!("{error:?}");
    };
    assert!(source.downcast_ref::<readers::ReadError>().is_some());
    assert!(error.to_string().contains("no such file.npy"), "{error}");
}

/// What `main` prints after "Error: ".
#[test]
fn the_debug_form_of_an_error_is_its_message() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let failed = strategy.run((), |ctx, ()| match ctx.replica_id() {
        1 => Err(Error::step("the file of labels is empty")),
        _ => Ok(0.0_f32),
    });
    let error = failed.unwrap_err();
    assert_eq!(
        format!("{error:?}"),
        "replica 1: the file of labels is empty"
    );
    assert_eq!(format!("{error:#?}"), format!("{error:?}"));
    for error in [no_checkpoints().unwrap_err(), no_data().unwrap_err()] {
        let text = format!("{error:?}");
        assert!(text.starts_with(&error.to_string()), "{text}");
        assert!(!text.contains(" { "), "{text}");
    }
}

#[derive(Module, Debug)]
struct Weight {
    w: Param<Tensor<1>>,
}

#[test]
fn values_show_what_they_hold() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let losses = strategy.run((), |ctx, ()| {
        let id = ctx.replica_id() as f32;
        Ok(Tensor::<1>::from_floats([1.25 + id], ctx.device()))
    });
    let losses: PerReplica<Tensor<1>> = losses.unwrap();
    assert_eq!(
        format!("{losses:?}"),
        "PerReplica [f32[1] [1.25], f32[1] [2.25]]"
    );
    let pairs = strategy.run((), |ctx, ()| {
        let labels = Tensor::<1, Int>::from_ints([3, 4], ctx.device());
        Ok((Tensor::<2>::ones([1, 2], ctx.device()), labels))
    });
    let text = format!("{:?}", pairs.unwrap());
    assert!(text.contains("(f32[1, 2] [1, 1], "), "{text}");
    assert!(text.contains("[2] [3, 4])"), "{text}");
    let plain = PerReplica::new(vec![1.5_f32, 2.5]);
    assert_eq!(format!("{plain:?}"), "PerReplica [1.5, 2.5]");
    let data = PerReplica::new(vec![TensorData::from([7.0_f32, 8.0])]);
    assert_eq!(format!("{data:?}"), "PerReplica [f32[2] [7, 8]]");
    let long = PerReplica::new(vec![TensorData::full([101], 1.0_f32)]);
    assert!(format!("{long:?}").ends_with("1, ... 1 more]]"), "{long:?}");
}

#[test]
fn variables_and_mirrored_values_show_what_they_hold() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let variable: DistributedVariable<f32> = strategy
        .variable(1.5_f32, VariableOptions::default())
        .unwrap();
    let text = format!("{variable:?}");
    assert!(
        text.contains("values: [f32[] [1.5], f32[] [1.5]]"),
        "{text}"
    );
    let state: Mirrored<TrainState<Weight>> = strategy
        .scope(|device| {
            let w = Param::from_tensor(Tensor::from_floats([0.5], device));
            TrainState::new(Weight { w }, Sgd::new(0.1))
        })
        .unwrap();
    let text = format!("{state:?}");
    assert!(text.starts_with("Mirrored [TrainState"), "{text}");
    assert!(!text.contains("BridgeTensor"), "{text}");
    assert_eq!(strategy.num_replicas_in_sync(), 2);
}
