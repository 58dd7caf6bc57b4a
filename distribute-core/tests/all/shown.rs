//! What people see of values: what they hold, and no word of what burn is made of inside.

use std::fmt::Debug;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use distribute_core::{
    Device, Mirrored, MirroredStrategy, PerReplica, Sgd, StrategyExt, Tensor, TrainState,
    VariableOptions,
};

#[derive(Debug, Clone)]
#[expect(dead_code, reason = "only shown")]
struct Batch {
    x: Tensor<2>,
    names: Vec<(Tensor<1>, Option<Tensor<3>>)>,
}

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    rest: Vec<Linear>,
}

fn net(device: &Device) -> Net {
    let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
    Net {
        first: linear(2, 3),
        rest: vec![linear(3, 1)],
    }
}

#[track_caller]
fn plain(value: &impl Debug) -> String {
    let mut shown = String::new();
    for text in [format!("{value:?}"), format!("{value:#?}")] {
        for word in [
            "BridgeTensor",
            "DispatchTensor",
            "FlexTensor",
            "Autodiff",
            "primitive",
            "Arc",
        ] {
            assert!(!text.contains(word), "{word} in {text}");
        }
        shown = text;
    }
    shown
}

fn of_two<T: Clone>(value: T) -> PerReplica<T> {
    PerReplica::new(vec![value.clone(), value])
}

#[test]
fn nests_of_any_depth_show_no_inside_of_burn() {
    let device = Device::flex();
    let one = Tensor::<1>::from_floats([1.0, 2.5], &device);
    let two = Tensor::<2>::ones([2, 2], &device);
    let three = Tensor::<3>::ones([1, 1, 2], &device);
    let triple = (one.clone(), two.clone(), three.clone());
    plain(&of_two(triple.clone()));
    let text = format!("{:?}", PerReplica::new(vec![triple.clone()]));
    assert_eq!(text, "PerReplica [(Tensor, Tensor, Tensor)]");
    let text = format!("{:?}", PerReplica::new(vec!["BridgeTensor }"]));
    assert_eq!(text, "PerReplica [\"BridgeTensor }\"]");
    plain(&of_two((triple.clone(), (one.clone(), triple))));
    plain(&of_two(vec![(one.clone(), vec![two.clone()])]));
    plain(&of_two([Some(one.clone()), None]));
    plain(&of_two(Batch {
        x: two,
        names: vec![(one.clone(), Some(three))],
    }));
    assert!(plain(&of_two(one)).contains("2.5"));
}

#[test]
fn modules_states_and_gradients_show_no_inside_of_burn() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let model: Mirrored<Net> = strategy.scope(net).unwrap();
    plain(&model);
    let state = strategy.scope(|device| TrainState::new(net(device), Sgd::new(0.1)));
    let mut state = state.unwrap();
    plain(&state);
    strategy
        .run(&mut state, |ctx, state| {
            let x = Tensor::<2>::ones([4, 2], ctx.device());
            let loss = state.model.rest[0]
                .forward(state.model.first.forward(x))
                .sum();
            plain(&loss_of(ctx, &loss, state)?);
            Ok(())
        })
        .unwrap();
}

fn loss_of(
    ctx: &distribute_core::ReplicaContext,
    loss: &Tensor<1>,
    state: &TrainState<Net>,
) -> distribute_core::Result<distribute_core::Gradients> {
    ctx.gradient(loss, &state.model)
}

/// TensorFlow: `PerReplica:{0: <tf.Tensor ...>, 1: <tf.Tensor ...>}`.
#[test]
fn what_is_printed_shows_the_value_of_every_replica() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let losses = strategy.run((), |ctx, ()| {
        let loss = Tensor::<1>::from_floats([2.5], ctx.device());
        Ok(loss + ctx.replica_id() as f32)
    });
    let losses = losses.unwrap();
    assert_eq!(
        losses.to_string(),
        "PerReplica:{0: f32[1] [2.5], 1: f32[1] [3.5]}"
    );
    let numbers = PerReplica::new(vec![1, 2]);
    assert_eq!(numbers.to_string(), "PerReplica:{0: 1, 1: 2}");
    let variable = strategy.variable(1.5_f32, VariableOptions::default());
    assert_eq!(
        variable.unwrap().to_string(),
        "MirroredVariable:{0: f32[] [1.5], 1: f32[] [1.5]}"
    );
    let counts = VariableOptions::on_read_sum();
    let count = strategy.variable(0_i64, counts).unwrap();
    strategy
        .run((), |ctx, ()| count.assign_add(ctx, ctx.replica_id() as i64))
        .unwrap();
    assert_eq!(
        count.to_string(),
        "SyncOnReadVariable:{0: i64[] [0], 1: i64[] [1]}"
    );
    let state: Mirrored<Net> = strategy.scope(net).unwrap();
    assert!(
        state.to_string().starts_with("Mirrored:{0: Net {"),
        "{state}"
    );
}
