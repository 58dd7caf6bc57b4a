//! Reductions of nested values, gradients through them, and replicas that disagree. What they have
//! in common with TensorFlow's is checked by the crate `conformance`.

use burn::module::{Module, Param};
use burn::tensor::{Tensor, TensorData};
use distribute_core::{Error, PerReplica, ReduceOp, StrategyExt};

use crate::mirrored;

#[derive(Module, Debug)]
struct Input {
    x: Param<Tensor<1>>,
}

#[test]
fn a_nested_list_is_reduced_element_by_element() {
    let strategy = mirrored(2);
    let lists = PerReplica::new(vec![vec![1.0_f32, 10.0], vec![2.0, 20.0]]);
    assert_eq!(strategy.reduce(ReduceOp::Sum, lists).unwrap(), [3.0, 30.0]);
}

#[test]
fn all_reduce_of_equal_counts_but_different_shapes_is_an_error_on_all_replicas() {
    let strategy = mirrored(2);
    let errors = std::sync::Mutex::new(Vec::new());
    let shapes = PerReplica::new(vec![[2, 3], [3, 2]]);
    let result = strategy.run(shapes, |ctx, shape| {
        let value = TensorData::new(vec![1.0_f32; 6], shape);
        let result = ctx.all_reduce(ReduceOp::Sum, value);
        if let Err(error) = &result {
            errors.lock().unwrap().push(error.clone());
        }
        result
    });
    assert!(matches!(
        result.unwrap_err().root_cause(),
        Error::Shape { expected, found, .. } if *expected == [2, 3] && *found == [3, 2]
    ));
    assert_eq!(errors.lock().unwrap().len(), 2, "both replicas saw it");
    let again = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1.0_f32));
    assert_eq!(
        again.unwrap().values(),
        [2.0, 2.0],
        "the strategy stays usable"
    );
}

#[test]
fn different_numbers_of_leaves_are_an_error() {
    let strategy = mirrored(2);
    let lists = PerReplica::new(vec![vec![1.0_f32], vec![1.0, 2.0]]);
    let result = strategy.run(lists, |ctx, list| ctx.all_reduce(ReduceOp::Sum, list));
    assert!(result.unwrap_err().to_string().contains("structure"));
}

/// Two all-reduces in one graph: d(sum((S x)^2 + M x))/dx with S = SUM and M = MEAN.
#[test]
fn gradients_flow_through_several_all_reduces() {
    let strategy = mirrored(3);
    let result = strategy.run((), |ctx, ()| {
        let value = TensorData::new(vec![ctx.replica_id() as f32 + 1.0], [1]);
        let x = Tensor::<1>::from_data(value, ctx.device()).require_grad();
        let model = Input {
            x: Param::from_tensor(x),
        };
        let sum = ctx.all_reduce_tensor(ReduceOp::Sum, model.x.val())?;
        let mean = ctx.all_reduce_tensor(ReduceOp::Mean, model.x.val())?;
        let loss = sum.clone() * sum + mean;
        let gradients = ctx.gradient(&loss, &model)?;
        let gradient = gradients.get(0)?.cloned();
        gradient.ok_or_else(|| Error::invalid("no gradient"))
    });
    // 2 * (1 + 2 + 3) from each of 3 replicas, and the mean of three ones.
    for gradient in result.unwrap().values() {
        assert_eq!(gradient.as_slice::<f32>().unwrap(), [37.0]);
    }
}

#[test]
fn a_backward_pass_on_one_replica_only_is_an_error() {
    let strategy = mirrored(2);
    let result = strategy.run((), |ctx, ()| {
        let x = Tensor::<1>::ones([1], ctx.device()).require_grad();
        let model = Input {
            x: Param::from_tensor(x),
        };
        let sum = ctx.all_reduce_tensor(ReduceOp::Sum, model.x.val())?;
        if ctx.replica_id() == 0 {
            ctx.gradient(&sum, &model)?;
        }
        Ok(())
    });
    assert!(result.is_err(), "the other replica never comes: {result:?}");
    let max = strategy.run((), |ctx, ()| {
        ctx.all_reduce_tensor(ReduceOp::Max, Tensor::<1>::ones([1], ctx.device()))
    });
    assert!(max.unwrap_err().to_string().contains("SUM or MEAN"));
}

#[test]
fn run_in_a_merge_call_is_an_error_and_no_deadlock() {
    let strategy = mirrored(2);
    let result = strategy.run((), |ctx, ()| {
        ctx.merge_call(1.0_f32, |values| {
            strategy.run((), |_, ()| Ok(()))?;
            Ok(values)
        })
    });
    assert!(matches!(
        result.unwrap_err().root_cause(),
        Error::InsideStep { what: "run", .. }
    ));
}
