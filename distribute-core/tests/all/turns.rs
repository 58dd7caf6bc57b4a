//! Several replicas on one device: they compute one after the other, are suspended in collective
//! calls, and give the bits of replicas that have a device each.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::optim::{Optimizer, ParameterUpdate, Updated};
use distribute_core::{
    Adam, CentralStorageStrategy, DeviceReducer, DeviceReducers, DeviceReduction, Error, GpuKind,
    LogicalDevice, LossScale, MirroredStrategy, MirroredStrategyBuilder,
    MultiWorkerMirroredStrategy, NcclAllReduce, PerReplica, ReduceOp, ReplicaContext, Result, Sgd,
    Strategy, StrategyExt, SyncBatchNorm, SyncBatchNormConfig, TrainState, dropout,
};
use rstest::rstest;

use crate::multi_worker::group::{THREADS, try_workers_with};
use crate::sync_batch_norm::linear;

fn mirrored(of: impl Fn(MirroredStrategyBuilder) -> MirroredStrategyBuilder) -> MirroredStrategy {
    of(MirroredStrategy::builder()).build().unwrap()
}

/// Two devices of two replicas.
fn two_by_two() -> MirroredStrategy {
    mirrored(|builder| builder.replicas(4).replicas_per_device(2).cores(2))
}

#[test]
fn replicas_of_a_device_have_ids_of_their_own() {
    let strategy = two_by_two();
    assert_eq!(strategy.num_replicas_in_sync(), 4);
    let names = |strategy: &dyn Strategy| -> Vec<String> {
        let replicas = strategy.replicas().iter();
        replicas
            .map(|replica| format!("{} {}", replica.id, replica.logical))
            .collect()
    };
    let expected = ["0 cpu:0", "1 cpu:0", "2 cpu:1", "3 cpu:1"];
    assert_eq!(names(&strategy), expected);
    let devices = [0, 1].map(LogicalDevice::cpu);
    let central = CentralStorageStrategy::with_replicas_per_device(devices, 2).unwrap();
    assert_eq!(names(&central), expected);
    let worker = MultiWorkerMirroredStrategy::builder().cluster(None);
    let worker = worker.devices(devices).replicas_per_device(2);
    assert_eq!(names(&worker.build().unwrap()), expected);
    let drawn = strategy.run((), |ctx, ()| {
        let mut rng = ctx.rng(1, 2);
        Ok(rand::Rng::next_u64(&mut rng))
    });
    let mut drawn = drawn.unwrap().into_values();
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn.len(), 4, "a random stream each");
}

#[test]
fn replicas_that_cannot_be_divided_as_asked_are_refused() {
    let of = |builder: MirroredStrategyBuilder| builder.build().unwrap_err().to_string();
    let builder = MirroredStrategy::builder;
    let uneven = of(builder().replicas(3).replicas_per_device(2));
    assert!(uneven.contains("3 replicas cannot be divided"), "{uneven}");
    assert!(of(builder().replicas_per_device(0)).contains("at least 1 replica"));
    assert!(CentralStorageStrategy::with_replicas_per_device([], 0).is_err());
    let worker = MultiWorkerMirroredStrategy::builder().cluster(None);
    assert!(worker.replicas(5).replicas_per_device(2).build().is_err());
}

/// A computation that must not run beside another one of its device.
#[derive(Default)]
struct Busy {
    computing: AtomicUsize,
    most: AtomicUsize,
    order: Mutex<Vec<usize>>,
}

impl Busy {
    fn compute(&self, replica: usize) {
        let now = self.computing.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.order.lock().unwrap().push(replica);
        let ones = Tensor::<2>::ones([32, 32], &Device::flex());
        assert_eq!(
            ones.clone().matmul(ones).sum().into_scalar::<f32>(),
            32768.0
        );
        self.computing.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn one_replica_of_a_device_computes_at_a_time_in_replica_order() {
    let strategy = mirrored(|builder| builder.replicas(6).cores(1));
    let busy = Busy::default();
    for _ in 0..20 {
        let sums = strategy.run((), |ctx, ()| {
            let replica = ctx.replica_id();
            busy.compute(replica);
            let sum = ctx.all_reduce(ReduceOp::Sum, 1_i64)?;
            busy.compute(replica);
            let all = ctx.all_gather(TensorData::new(vec![1.0_f32], [1]), 0)?;
            busy.compute(replica);
            let merged = ctx.merge_call(replica, |replicas| Ok(replicas.map(|id| id * 2)))?;
            busy.compute(replica);
            let first = ctx.broadcast(5, replica as i64)?;
            busy.compute(replica);
            Ok((sum, all.num_elements(), merged, first))
        });
        let expected = (0..6).map(|replica| (6, 6, 2 * replica, 5));
        assert_eq!(sums.unwrap().into_values(), expected.collect::<Vec<_>>());
        let order = std::mem::take(&mut *busy.order.lock().unwrap());
        assert_eq!(order[..6], [0, 1, 2, 3, 4, 5], "{order:?}");
        for part in order.chunks(6) {
            let mut part = part.to_vec();
            part.sort_unstable();
            assert_eq!(
                part,
                [0, 1, 2, 3, 4, 5],
                "suspended in each call: {order:?}"
            );
        }
    }
    assert_eq!(busy.most.load(Ordering::SeqCst), 1);
}

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: SyncBatchNorm,
    last: Linear,
    never_used: Param<Tensor<1>>,
}

impl Net {
    fn new(device: &Device) -> Self {
        let norm = SyncBatchNormConfig::new(8).init(device).unwrap();
        Self {
            first: linear(3, 8, 1.0, device),
            norm,
            last: linear(8, 1, 2.0, device),
            never_used: Param::from_tensor(Tensor::ones([2], device).require_grad()),
        }
    }

    fn loss(&self, ctx: &ReplicaContext, step: u64, x: Tensor<2>) -> Result<Tensor<1>> {
        let hidden = self.norm.forward(self.first.forward(x));
        let mut rng = ctx.rng(7, step);
        let hidden = dropout(relu(hidden), 0.25, &mut rng);
        let error = self.last.forward(hidden) - 0.5;
        Ok((error.clone() * error).sum().div_scalar(20.0))
    }
}

/// What a training ends with: every tensor of a replica's state, bit by bit.
type Bits = Vec<(String, Vec<u8>)>;

/// Five steps of 2 to 6 examples on each of four replicas; the states of this process' replicas.
fn train(
    strategy: &dyn Strategy,
    state: impl Fn(TrainState<Net>) -> TrainState<Net> + Send + Sync,
) -> Vec<Bits> {
    let built = |device: &Device| state(TrainState::new(Net::new(device), Adam::new(0.05)));
    let mut mirrored = strategy.scope(built).unwrap();
    for step in 0..5_u64 {
        let parts = strategy.replicas().iter().map(|replica| {
            let rows = 2 + (replica.id + step as usize) % 4;
            let value = |i: usize| ((replica.id * 97 + i + step as usize) as f32 * 78.2).sin();
            let data = TensorData::new((0..rows * 3).map(value).collect(), [rows, 3]);
            Tensor::<2>::from_data(data, &replica.device)
        });
        let parts = PerReplica::new(parts.collect());
        let done = strategy.run((&mut mirrored, parts), |ctx, (state, x)| {
            let loss = state.model.loss(ctx, step, x)?;
            let loss = state.scale_loss(&loss);
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        });
        done.unwrap();
    }
    let states = strategy.run(&mut mirrored, |_, state| state.to_tensors());
    let bits = |state: std::collections::BTreeMap<String, TensorData>| {
        let tensors = state.into_iter();
        tensors
            .map(|(name, tensor)| (name, tensor.as_bytes().to_vec()))
            .collect()
    };
    states
        .unwrap()
        .into_values()
        .into_iter()
        .map(bits)
        .collect()
}

type Configured = fn(TrainState<Net>) -> TrainState<Net>;

#[rstest]
#[case::plain(|state: TrainState<Net>| state)]
#[case::clipped(|state: TrainState<Net>| state.clip_by_global_norm(0.1))]
#[case::accumulated(|state: TrainState<Net>| state.accumulate(2))]
#[case::scaled(|state: TrainState<Net>| state.with_loss_scale(LossScale::dynamic()))]
fn sharing_a_device_changes_no_bit(#[case] configured: Configured) {
    let alone = mirrored(|builder| builder.replicas(4).cores(4));
    let expected = train(&alone, configured);
    assert_eq!(expected.len(), 4);
    let devices = [0, 1].map(LogicalDevice::cpu);
    let strategies: Vec<Box<dyn Strategy>> = vec![
        Box::new(mirrored(|builder| builder.replicas(4).cores(1))),
        Box::new(mirrored(|builder| builder.replicas(4).cores(3))),
        Box::new(two_by_two()),
        Box::new(mirrored(|builder| {
            builder.devices([devices[0]]).replicas_per_device(4)
        })),
        Box::new(CentralStorageStrategy::with_replicas_per_device(devices, 2).unwrap()),
    ];
    for strategy in strategies {
        assert!(train(&*strategy, configured) == expected, "{strategy:?}");
    }
}

#[test]
fn workers_whose_replicas_share_a_device_send_packs_and_change_no_bit() {
    let program = |cores: usize| {
        let of_worker =
            move |strategy: MultiWorkerMirroredStrategy| Ok(train(&strategy, |state| state));
        let results = try_workers_with(
            THREADS,
            &[3, 1],
            of_worker,
            match cores {
                1 => |builder| {
                    let options = distribute_core::CommunicationOptions {
                        bytes_per_pack: 16,
                        ..Default::default()
                    };
                    builder.cores(1).communication_options(options)
                },
                _ => |builder| builder.cores(4),
            },
        );
        let results = results.into_iter().map(Result::unwrap);
        results.collect::<Vec<_>>()
    };
    let (alone, shared) = (program(4), program(1));
    assert_eq!(alone[0].len(), 3);
    assert!(alone == shared);
}

/// Counts the updates of parameters.
#[derive(Debug)]
struct Counted {
    inner: Sgd,
    updates: Arc<AtomicUsize>,
}

impl Optimizer for Counted {
    fn name(&self) -> &'static str {
        "counted"
    }

    fn slots(&self) -> &[&'static str] {
        self.inner.slots()
    }

    fn learning_rate(&self) -> f64 {
        self.inner.learning_rate()
    }

    fn config(&self) -> serde_json::Value {
        self.inner.config()
    }

    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated> {
        self.updates.fetch_add(1, Ordering::SeqCst);
        self.inner.update(of)
    }
}

#[test]
fn an_update_is_computed_once_per_device() {
    for (cores, per_step) in [(1, 1), (2, 2), (4, 4)] {
        let updates = Arc::new(AtomicUsize::new(0));
        let strategy = mirrored(|builder| builder.replicas(4).cores(cores));
        let counted = Counted {
            inner: Sgd::new(1.0).momentum(0.5),
            updates: Arc::clone(&updates),
        };
        let counted = Arc::new(counted);
        let build = |device: &Device| {
            let weight = Param::from_tensor(Tensor::<1>::zeros([1], device).require_grad());
            TrainState::with_optimizer(vec![weight], counted.clone())
        };
        let mut state = strategy.scope(build).unwrap();
        for _ in 0..3 {
            let step = |ctx: &ReplicaContext, state: &mut TrainState<Vec<Param<Tensor<1>>>>| {
                let loss = state.model[0].val() * 1.0;
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(state.model[0].val().into_scalar::<f32>())
            };
            strategy.run(&mut state, step).unwrap();
        }
        assert_eq!(updates.load(Ordering::SeqCst), 3 * per_step);
        let weights = strategy.run(&mut state, |_, state| {
            Ok(state.model[0].val().into_scalar::<f32>())
        });
        // 4 a step, with momentum: 4 + 6 + 7.
        assert_eq!(weights.unwrap().values(), [-17.0; 4]);
    }
}

/// A copy whose learning rate is another one than its neighbour's is updated by itself.
#[test]
fn copies_that_are_told_apart_do_not_share_an_update() {
    let strategy = mirrored(|builder| builder.replicas(2).cores(1));
    let build = |device: &Device| {
        let weight = Param::from_tensor(Tensor::<1>::zeros([1], device).require_grad());
        TrainState::new(vec![weight], Sgd::new(1.0))
    };
    let mut state = strategy.scope(build).unwrap();
    let weights = strategy.run(&mut state, |ctx, state| {
        state.set_learning_rate(1.0 + ctx.replica_id() as f64);
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&(state.model[0].val() * 1.0), &state.model)?;
        state.apply_gradients(ctx, gradients)?;
        Ok(state.model[0].val().into_scalar::<f32>())
    });
    assert_eq!(weights.unwrap().values(), [-2.0, -4.0]);
}

/// How a replica fails.
#[derive(Debug, Clone, Copy)]
enum Failure {
    Error,
    Panic,
    LeftOut,
}

#[rstest]
fn a_replica_that_fails_is_named_and_gives_its_turn_back(
    #[values(0, 1, 3)] who: usize,
    #[values(0, 1, 2)] when: usize,
    #[values(Failure::Error, Failure::Panic, Failure::LeftOut)] how: Failure,
) {
    let strategy = mirrored(|builder| {
        let timeout = Duration::from_secs(60);
        builder.replicas(4).cores(1).timeout(timeout)
    });
    let started = Instant::now();
    let error = strategy.run((), |ctx, ()| {
        for round in 0..3 {
            if (ctx.replica_id(), round) == (who, when) {
                match how {
                    Failure::Error => return Err(Error::invalid("no data")),
                    Failure::Panic => std::panic::resume_unwind(Box::new("no data")),
                    Failure::LeftOut => return Ok(()),
                }
            }
            if round == 1 {
                ctx.merge_call((), Ok)?;
            } else {
                ctx.all_reduce(ReduceOp::Sum, 1.0_f32)?;
            }
        }
        Ok(())
    });
    assert!(started.elapsed() < Duration::from_secs(20), "found at once");
    let error = error.unwrap_err();
    match how {
        Failure::Error => assert_eq!(error.to_string(), format!("replica {who}: no data")),
        Failure::Panic => assert!(
            matches!(&error, Error::ReplicaPanicked { replica, .. } if *replica == who),
            "{error:?}"
        ),
        Failure::LeftOut => {
            let named = error.root_cause();
            let named = matches!(named, Error::ReplicaMissing { replica, .. } if *replica == who);
            assert!(named, "{error:?}");
        }
    }
    let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1.0_f32));
    assert_eq!(sums.unwrap().values(), [4.0; 4], "usable again");
}

/// A replica is late until one on another device has given up.
#[test]
fn a_deadline_counts_once_for_each_replica_of_a_device() {
    let strategy = mirrored(|builder| {
        let timeout = Duration::from_millis(100);
        let builder = builder.replicas(4).replicas_per_device(2).cores(2);
        builder.timeout(timeout)
    });
    let (ends, ended) = std::sync::mpsc::channel::<()>();
    let (ends, ended) = (Mutex::new(Some(ends)), Mutex::new(ended));
    let started = Instant::now();
    let error = strategy.run((), |ctx, ()| {
        if ctx.replica_id() == 3 {
            let _ = ended.lock().unwrap().recv();
            return Ok(());
        }
        let sum = ctx.all_reduce(ReduceOp::Sum, 1.0_f32);
        if ctx.replica_id() == 0 {
            ends.lock().unwrap().take();
        }
        sum.map(drop)
    });
    assert!(error.is_err());
    let waited = started.elapsed();
    assert!(waited >= Duration::from_millis(200), "{waited:?}");
}

#[test]
fn a_collective_in_a_backward_pass_suspends_too() {
    let strategy = mirrored(|builder| builder.replicas(3).cores(1));
    let gradients = strategy.run((), |ctx, ()| {
        let weight = Param::from_tensor(Tensor::<1>::ones([1], ctx.device()).require_grad());
        let all = ctx.all_reduce_tensor(ReduceOp::Sum, weight.val() * 2.0)?;
        let loss = all * (1.0 + ctx.replica_id() as f32);
        let gradients = ctx.gradient(&loss, &vec![weight])?;
        Ok(gradients.len())
    });
    assert_eq!(gradients.unwrap().values(), [1, 1, 1]);
}

/// A GPU that several replicas share is refused for reductions in its memory.
#[derive(Debug)]
struct NoReducers;

impl DeviceReducers for NoReducers {
    fn connect(&self, _: &[LogicalDevice], _: u64) -> Result<Vec<Box<dyn DeviceReducer>>> {
        Err(Error::invalid("it was asked"))
    }
}

/// GPUs whose memory is that of the host.
#[derive(Debug)]
struct Pretended;

impl GpuKind for Pretended {
    fn name(&self) -> &'static str {
        "pretended"
    }

    fn burn_device(&self, _: usize) -> Device {
        Device::flex()
    }

    fn check(&self, _: usize) -> Result<()> {
        Ok(())
    }

    fn reducers(&self, _: DeviceReduction, _: Duration) -> Arc<dyn DeviceReducers> {
        Arc::new(NoReducers)
    }
}

#[test]
fn a_gpu_that_replicas_share_takes_turns_and_reduces_through_the_host() {
    let gpus = [0, 1].map(|index| LogicalDevice::Gpu(&Pretended, index));
    let strategy = mirrored(|builder| builder.devices(gpus).replicas_per_device(2));
    let told = strategy.device_reduction().concat();
    assert!(told.contains("several replicas share a GPU"), "{told}");
    let busy = [Busy::default(), Busy::default()];
    let sums = strategy.run((), |ctx, ()| {
        let gpu = ctx.replica_id() / 2;
        busy[gpu].compute(ctx.replica_id());
        let sum = ctx.all_reduce(ReduceOp::Sum, 1.0_f32)?;
        busy[gpu].compute(ctx.replica_id());
        Ok(sum)
    });
    assert_eq!(sums.unwrap().values(), [4.0; 4]);
    for busy in &busy {
        assert_eq!(busy.most.load(Ordering::SeqCst), 1);
    }
    let by_name = MirroredStrategy::builder()
        .devices(gpus)
        .replicas_per_device(2);
    let refused = by_name.cross_device_ops(NcclAllReduce::new()).build();
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("several replicas share one"), "{text}");
}
