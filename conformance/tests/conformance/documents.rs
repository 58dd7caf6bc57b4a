//! The numbers that TensorFlow's documents work out, and what this crate's README promises.

use conformance::{Deviation, Rule};
use distribute_core::metric::Mean;
use distribute_core::{PerReplica, ReduceOp, Strategy, StrategyExt, Tensor};
use distribute_data::{AverageLoss, average_loss};

use crate::mirrored;

/// "With 4 replicas and a global batch of 64, each replica gets 16 examples; divide by 64."
#[test]
fn a_batch_of_64_on_4_replicas_of_16_divides_by_64() {
    let strategy = mirrored(4);
    let context = strategy.input_context();
    assert_eq!(context.per_replica_batch_size(64).unwrap(), 16);
    let losses = strategy.run((), |ctx, ()| {
        let per_example = Tensor::<1>::ones([16], ctx.device());
        let by_default = average_loss(ctx, per_example.clone())?;
        let explicit = AverageLoss::new()
            .global_batch_size(64)
            .of(ctx, per_example)?;
        Ok((
            by_default.into_scalar::<f32>(),
            explicit.into_scalar::<f32>(),
        ))
    });
    let (by_default, explicit) = losses.unwrap().unzip();
    assert_eq!(by_default.values(), [16.0 / 64.0; 4]);
    assert_eq!(explicit.values(), [16.0 / 64.0; 4]);
    assert_eq!(strategy.reduce(ReduceOp::Sum, explicit).unwrap(), 1.0);
}

#[test]
fn losses_2_3_and_4_5_are_1_25_and_2_25_their_sum_3_5_and_their_mean_1_75() {
    let strategy = mirrored(2);
    let mean = Mean::new(&strategy);
    let values = PerReplica::new(vec![[2.0_f32, 3.0], [4.0, 5.0]]);
    let losses = strategy.run(values, |ctx, values| {
        let per_example = Tensor::<1>::from_floats(values, ctx.device());
        let loss = average_loss(ctx, per_example)?;
        mean.update_state(ctx, loss.clone())?;
        Ok(loss.into_scalar::<f32>())
    });
    let losses = losses.unwrap();
    assert_eq!(losses.values(), [1.25, 2.25]);
    assert_eq!(strategy.reduce(ReduceOp::Sum, losses).unwrap(), 3.5);
    assert_eq!(mean.result().unwrap(), 1.75);
}

/// "BATCH_SIZE_PER_REPLICA = 64; GLOBAL_BATCH_SIZE = 64 * num_replicas_in_sync".
#[test]
fn a_global_batch_of_256_is_4_times_64() {
    let strategy = mirrored(4);
    let global = 64 * strategy.num_replicas_in_sync();
    assert_eq!(global, 256);
    assert_eq!(
        strategy
            .input_context()
            .per_replica_batch_size(global)
            .unwrap(),
        64
    );
}

fn readme() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_readme_lists_every_rule_and_deviation() {
    let readme = readme();
    for rule in Rule::ALL {
        let row = format!("| `{rule}` | {} |", rule.reason());
        assert!(readme.contains(&row), "README.md lacks: {row}");
    }
    for deviation in Deviation::ALL {
        let row = format!("| `{deviation}` | {} |", deviation.reason());
        assert!(readme.contains(&row), "README.md lacks: {row}");
    }
    let rows = readme
        .lines()
        .filter(|line| line.starts_with("| `"))
        .count();
    assert_eq!(
        rows,
        Rule::ALL.len() + Deviation::ALL.len(),
        "rows of something else"
    );
}
