//! What users see of errors and values: `?` works on every error of the crates, an error that
//! `main` returns is a sentence, and a value shows what it holds.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use burn::module::{Module, Param};
use burn::tensor::{Int, TensorData};
use distribute_collectives::contract::ContractError;
use distribute_collectives::flight_record::FlightRecordError;
use distribute_collectives::{CollectiveError, HeaderError};
use distribute_core::checkpoint::{CheckpointError, CheckpointManager};
use distribute_core::cluster::ClusterError;
use distribute_core::{
    DistributedVariable, Error, Mirrored, MirroredStrategy, PerReplica, Result, Sgd, Strategy,
    StrategyExt, Tensor, TrainState, VariableOptions,
};
use distribute_fit::FitError;
use distribute_net::NetError;
use distribute_net::exchange::ExchangeError;
use distribute_net::handshake::HandshakeError;
use distribute_ps::PsError;
use distribute_readers as readers;
use distribute_tpu_xla::TpuError;
use distribute_tpu_xla::lower::LowerError;
use distribute_tpu_xla::pjrt::PjrtError;
use distribute_tpu_xla::stablehlo::StableHloError;

/// The messages of what caused an error, outermost first.
fn causes(error: &(dyn StdError + 'static)) -> Vec<String> {
    let causes = std::iter::successors(error.source(), |error| (*error).source());
    causes.map(ToString::to_string).collect()
}

/// `?` on an error keeps its message and causes, and tells none of them twice.
fn passed_on<E: StdError + 'static>(error: E)
where
    Error: From<E>,
{
    let own = (error.to_string(), causes(&error));
    let pass_on = |error: E| -> Result<()> { Err(error)? };
    let error = pass_on(error).unwrap_err();
    assert_eq!((error.to_string(), causes(&error)), own);
    assert!(error.wrapped().is_some(), "{error}");
    let (message, causes) = own;
    let printed = format!("{error:?}");
    assert!(printed.starts_with(&message), "{printed}");
    for (index, cause) in causes.iter().enumerate() {
        assert_eq!(printed.matches(cause).count(), 1, "{printed}");
        assert_ne!(*cause, message);
        assert!(!causes[..index].contains(cause), "{printed}");
    }
}

/// What credentials and connections fail with.
#[test]
fn errors_of_connections_are_passed_on() {
    let net = || NetError::InvalidOption {
        what: "the token is too short".to_string(),
    };
    passed_on(net());
    passed_on(HandshakeError::WrongProof);
    passed_on(HandshakeError::from(net()));
    passed_on(ExchangeError::Refused(HandshakeError::WrongProof));
    passed_on(ExchangeError::Broken(full()));
    assert!(matches!(Error::from(net()), Error::Connection(_)));
}

/// What a test of a communicator of one's own fails with.
#[test]
fn errors_of_communicators_are_passed_on() {
    passed_on(HeaderError::Number);
    passed_on(ContractError::Group {
        case: "sum".to_string(),
        cause: CollectiveError::Aborted {
            rank: 1,
            reason: "enough".to_string(),
        },
    });
    assert!(matches!(Error::from(HeaderError::Number), Error::Step(_)));
}

/// A cause that the message of the error around it tells, too.
fn full() -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, "the disk is full")
}

#[test]
fn errors_of_data_and_files_are_passed_on() {
    let path = || PathBuf::from("some/file");
    passed_on(full());
    passed_on(CheckpointError::DiskFull {
        path: path(),
        source: full(),
    });
    passed_on(readers::ReadError::Io {
        path: path(),
        source: full(),
    });
    passed_on(distribute_data::DataError::Thread { source: full() });
    passed_on(distribute_data::DataError::Unshardable);
    passed_on(FitError::File {
        path: path(),
        operation: "write",
        choice: "path",
        source: full(),
    });
    passed_on(distribute_keras::ModelError::Io {
        path: path(),
        source: full(),
    });
    passed_on(FlightRecordError::Io {
        path: "some/file".to_string(),
        reason: full().to_string(),
    });
    let golden = || conformance::GoldenError::Read {
        path: path(),
        source: full(),
    };
    passed_on(golden());
    passed_on(conformance::SelectionError::Golden(golden()));
}

#[test]
fn errors_of_jobs_are_passed_on() {
    passed_on(ClusterError::NoResolvers);
    passed_on(CollectiveError::Poisoned {
        cause: Box::new(CollectiveError::Aborted {
            rank: 1,
            reason: "enough".to_string(),
        }),
    });
    let launch = || distribute_launch::LaunchError::LogDirectory {
        path: PathBuf::from("some/file"),
        source: full(),
    };
    passed_on(launch());
    assert!(matches!(Error::from(launch()), Error::Launch(_)));
    passed_on(PsError::Closure {
        closure: 3,
        step: "train".to_string(),
        worker: 1,
        source: Arc::new(PsError::step(full())),
    });
    // One of core comes out as it went in.
    let inner = PsError::from(Error::input(full()));
    assert!(matches!(Error::from(inner), Error::Input(_)));
}

#[test]
fn errors_of_compiled_steps_are_passed_on() {
    let donated = || StableHloError::DonatedTwice {
        first: 0,
        second: 1,
        output: 2,
    };
    let plugin = PjrtError::InvalidArgument("no such device".to_string());
    passed_on(TpuError::Pjrt(plugin.clone()));
    passed_on(plugin);
    passed_on(LowerError::from(donated()));
    let error = Error::from(donated());
    assert!(error.to_string().ends_with(&donated().to_string()));
    passed_on(LowerError::Invalid {
        operation: "Float.Add".to_string(),
        position: 3,
        origin: None,
        source: Box::new(donated()),
    });
    let error = Error::from(TpuError::Timeout {
        limit: Duration::from_secs(1),
    });
    assert!(matches!(
        TpuError::of(&error),
        Some(TpuError::Timeout { .. })
    ));
}

fn no_checkpoints() -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
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
