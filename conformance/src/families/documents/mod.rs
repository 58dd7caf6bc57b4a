//! `documents.json`: what TensorFlow's documents print, count and say.
//!
//! A case that another family has an operation for names that family (`inputs.family`) and is
//! checked by its adapter; what stands here is what only a document does: whole loops, the text
//! that they print, batches of an epoch.

mod data;
mod measures;
mod saved;
mod training;

use distribute_core::cluster::Cluster;
use distribute_core::{
    MultiWorkerMirroredStrategy, ReduceOp, Strategy, StrategyExt, Tensor, VariableOptions,
};
use distribute_tpu_xla::TpuClusterResolver;
use serde_json::json;

use super::support::{class, expected};
use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::golden::FamilyName;
use crate::json::Fields;
use crate::outcome::{Checked, Failure, Outcome, passed};
use crate::tensors::scalar;

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    if let Some(family) = case.inputs["family"].as_str() {
        let family = family.parse::<FamilyName>().ok();
        let family = family.filter(|family| *family != FamilyName::Documents);
        let adapter = family.and_then(super::adapter);
        let adapter = adapter.ok_or_else(|| Failure::schema("an unknown `family`"))?;
        return adapter(case, env);
    }
    match case.op() {
        "print" => print(case, env),
        "batch sizes" => data::batch_sizes(case, env),
        "one epoch" => data::one_epoch(case, env),
        "train one weight" => training::one_weight(case, env),
        "one update" => training::one_update(case, env),
        "training loop" => training::training_loop(case, env),
        "reduce_mean" => training::reduce_mean(case, env),
        "accuracy" => measures::accuracy(case, env),
        "EarlyStopping" => measures::early_stopping(case, env),
        "TensorBoard" => measures::tensor_board(case, env),
        "checkpoints" => saved::checkpoints(case, env),
        "results of run" => results(case, env),
        "tf.Variable(1.)" => variable(case, env),
        "TPUClusterResolver" => tpu_resolver(case),
        "TPU that is not there" => no_tpu(case),
        "MultiWorkerMirroredStrategy()" => single_worker(case),
        other => Err(Failure::schema(format!("unknown operation `{other}`"))),
    }
}

/// A text with the number of replicas in it.
fn print(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = env.strategy(case)?;
    let replicas = strategy.num_replicas_in_sync().to_string();
    let found = case.inputs.text("format")?.replace("{}", &replicas);
    passed(equal(expected(case)?, &json!(found)))
}

/// `run` gives one result per replica, `experimental_local_results` their list, `reduce` their sum.
fn results(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = &*env.strategy(case)?;
    let ones = || strategy.run((), |ctx, ()| Ok(Tensor::<1>::ones([1], ctx.device())));
    let local = strategy.local_results(ones()?).len();
    let sum = strategy.reduce(ReduceOp::Sum, ones()?)?;
    let expected = expected(case)?;
    equal(expected.field("local_results")?, &json!(local))?;
    let sum = f64::from(sum.into_scalar::<f32>());
    passed(env.tolerance().same_number(expected.field("reduced")?, sum))
}

/// What a variable is that is made in the strategy's scope.
fn variable(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = &*env.strategy(case)?;
    let variable = strategy.variable(scalar(1.0), VariableOptions::default())?;
    let value = variable.read(strategy)?;
    let found = json!({
        "class": class(variable.kind()),
        "copies": variable.local_values()?.len(),
        "shape": value.shape().to_vec(),
        "dtype": "float32",
        "numpy": value.iter::<f64>().next(),
    });
    equal(&json!(value.dtype().name()), &json!("f32"))?;
    passed(equal(expected(case)?, &found))
}

fn tpu_resolver(case: &Case) -> Checked {
    let resolver = TpuClusterResolver::new(case.inputs.text("tpu")?).map_err(Failure::got)?;
    passed(equal(
        expected(case)?,
        &json!({"worker": resolver.addresses()}),
    ))
}

/// `except ValueError: print('TPU failed to initialize.')`.
fn no_tpu(case: &Case) -> Checked {
    let resolver = TpuClusterResolver::new(case.inputs.text("tpu")?).map_err(Failure::got)?;
    match (resolver.connect(), case.error_class()) {
        (Err(_), Some("ValueError")) => Ok(Outcome::Passed),
        (Err(error), _) => Err(Failure::got(error)),
        (Ok(_), _) => Err(Failure::got("a TPU")),
    }
}

/// Without a cluster there is one worker.
fn single_worker(case: &Case) -> Checked {
    let strategy = MultiWorkerMirroredStrategy::builder()
        .cluster(None::<Cluster>)
        .build()?;
    let found = json!({
        "num_replicas_in_sync": strategy.num_replicas_in_sync(),
        "is_single_worker": strategy.workers().is_none() && strategy.cluster().is_none(),
        "is_chief": strategy.is_chief(),
    });
    passed(equal(expected(case)?, &found))
}
