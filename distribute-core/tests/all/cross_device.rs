//! Training with each of the cross-device ops. Their results are compared with TensorFlow's by the
//! crate `conformance`.

use std::backtrace::Backtrace;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::Tensor;
use distribute_collectives::{Buffer, Communicator, ReduceOp};
use distribute_core::{
    CrossDeviceOps, DirectAllReduce, HierarchicalCopy, MirroredStrategy, ReductionToOneDevice,
    Result, Sgd, StrategyExt, TrainState,
};

/// A step with a hand-made gradient per replica; the weights after three updates, of all copies.
fn trained(replicas: usize, ops: impl CrossDeviceOps + 'static) -> Vec<Vec<f32>> {
    let builder = MirroredStrategy::builder().replicas(replicas);
    let strategy = builder.cross_device_ops(ops).build().unwrap();
    let weights = Initializer::Constant { value: 0.5 };
    let layer = LinearConfig::new(3, 2).with_initializer(weights);
    let mut state = strategy
        .scope(|device| TrainState::new(layer.init(device), Sgd::new(0.25).momentum(0.5)))
        .unwrap();
    for step in 0..3 {
        strategy
            .run(&mut state, |ctx, state| {
                let scale = (ctx.replica_id() + step) as f32;
                let input = Tensor::<2>::ones([4, 3], ctx.device()).mul_scalar(scale);
                let loss = state.model.forward(input).sum();
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(())
            })
            .unwrap();
    }
    let copies = state.values().unwrap().iter();
    copies
        .map(|state: &TrainState<Linear>| {
            let tensors = state.to_tensors().unwrap();
            tensors
                .values()
                .flat_map(|data| data.iter::<f32>().collect::<Vec<_>>())
                .collect()
        })
        .collect()
}

/// Whole numbers in every gradient, so that all orders of summation give the same bits.
#[test]
fn training_gives_the_same_weights_with_every_cross_device_ops() {
    for replicas in 1..=9 {
        let expected = trained(replicas, DirectAllReduce);
        assert_eq!(expected, vec![expected[0].clone(); replicas]);
        assert_eq!(trained(replicas, ReductionToOneDevice::default()), expected);
        for num_packs in [0, 1, 3] {
            assert_eq!(trained(replicas, HierarchicalCopy { num_packs }), expected);
        }
    }
}

/// Notes by which functions a gradient has come here.
#[derive(Debug, Clone, Default)]
struct Traced(Arc<Mutex<String>>);

impl CrossDeviceOps for Traced {
    fn name(&self) -> &str {
        "traced"
    }

    fn all_reduce(
        &self,
        communicator: &mut dyn Communicator,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        *self.0.lock().unwrap() = Backtrace::force_capture().to_string();
        DirectAllReduce.all_reduce(communicator, op, buffers)
    }
}

/// The functions of this library that a gradient passes, innermost first, and their files, where
/// the build notes lines. A closure is of the function that it stands in.
fn passed(backtrace: &str) -> (Vec<String>, BTreeSet<String>) {
    let (mut functions, mut files) = (Vec::new(), BTreeSet::new());
    let mut lines = backtrace.lines().peekable();
    while let Some(line) = lines.next() {
        let name = line.trim().split_once(": ").map_or("", |(_, name)| name);
        if !name.starts_with("distribute_core::") && !name.starts_with("<distribute_core::") {
            continue;
        }
        let name = name
            .replace("::{{closure}}", "")
            .replace("::{closure#0}", "");
        let place = lines
            .peek()
            .and_then(|next| next.trim().strip_prefix("at "));
        files.extend(
            place
                .and_then(|at| at.split(".rs:").next())
                .map(str::to_owned),
        );
        let is_first = name.ends_with("apply_gradients");
        if !functions.contains(&name) {
            functions.push(name);
        }
        if is_first {
            break;
        }
    }
    (functions, files)
}

/// What comes in between is read by everybody who asks what happens to a gradient.
#[test]
fn a_gradient_passes_at_most_eight_functions_of_four_files() {
    let traced = Traced::default();
    trained(2, traced.clone());
    let (mut functions, files) = passed(&traced.0.lock().unwrap());
    let first = functions
        .last()
        .is_some_and(|it| it.ends_with("apply_gradients"));
    assert!(first, "{functions:#?}");
    // In the place of `Traced`; it stands in a file that is passed anyway.
    functions.push("DirectAllReduce::all_reduce".to_owned());
    assert!(functions.len() <= 8, "{functions:#?}");
    if files.is_empty() {
        println!("SKIPPED: the build has no line numbers");
    }
    assert!(files.len() <= 4, "{files:#?}");
}
