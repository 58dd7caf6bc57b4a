//! One checkpoint of a struct of several models and training states.

use std::collections::BTreeMap;

use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::checkpoint::{Checkpoint, CheckpointError, CheckpointManager, load_latest};
use distribute_core::{
    Adam, BurnOptimizer, DefaultStrategy, Error, LossScale, Mirrored, MirroredStrategy,
    MultiWorkerMirroredStrategy, Replicate, Result, Sgd, Strategy, StrategyExt, TrainState,
};
use distribute_fit::{restore, restore_weights, snapshot};
use rstest::rstest;

use crate::multi_worker::group::{SHARED_MEMORY, THREADS, workers};

/// Every kind of a part: states with optimizers of both kinds and a loss scale, a struct inside, a
/// model that is not trained, and a number, which is not saved.
#[derive(Replicate)]
struct All {
    encoder: TrainState<Linear>,
    heads: Heads,
    teacher: Linear,
    norm: BatchNorm,
    count: u64,
}

#[derive(Replicate)]
struct Heads(TrainState<Linear>, TrainState<Linear>);

fn linear(shape: [usize; 2], seed: f32, device: &Device) -> Linear {
    let mut layer = LinearConfig::new(shape[0], shape[1])
        .with_bias(false)
        .init(device);
    let count = shape[0] * shape[1];
    let values = (0..count).map(|i| ((i as f32 + seed) * 12.9898).sin() * 0.5);
    let data = TensorData::new(values.collect::<Vec<_>>(), shape);
    let weight = Tensor::from_data(data, device);
    layer.weight = layer.weight.map(|_| weight.clone().require_grad());
    layer
}

impl All {
    fn new(device: &Device, seed: f32) -> Self {
        let burns = BurnOptimizer::new(AdamConfig::new(), 0.01);
        let scale = LossScale::dynamic().growth_steps(2).unwrap();
        let state = |at| linear([2, 3], seed + at, device);
        Self {
            encoder: TrainState::new(linear([4, 2], seed, device), Adam::new(0.02))
                .with_loss_scale(scale.clone()),
            heads: Heads(
                TrainState::new(state(1.0), burns).with_loss_scale(scale.clone()),
                TrainState::new(state(2.0), Sgd::new(0.1).momentum(0.9)).with_loss_scale(scale),
            ),
            teacher: linear([2, 3], seed + 3.0, device),
            norm: BatchNormConfig::new(2).init(device),
            count: seed as u64,
        }
    }
}

type Built = Mirrored<All>;

fn built(strategy: &dyn Strategy, seed: f32) -> Built {
    strategy.scope(|device| All::new(device, seed)).unwrap()
}

fn train(strategy: &dyn Strategy, state: &mut Built, steps: std::ops::Range<usize>) {
    for step in steps {
        let trained = strategy.run(&mut *state, |ctx, all| {
            let number = |i: usize| ((step * 40 + ctx.replica_id() * 8 + i) as f32 * 78.233).sin();
            let values = TensorData::new((0..8).map(number).collect::<Vec<_>>(), [2, 4]);
            let code = all
                .encoder
                .model
                .forward(Tensor::<2>::from_data(values, ctx.device()));
            // Moves the running statistics, and nothing else.
            drop(all.norm.forward::<2>(code.clone()));
            let taught = all.teacher.forward(code.clone()).detach();
            let Heads(first, second) = &mut all.heads;
            let error = first.model.forward(code.clone()) - taught.clone();
            let other = second.model.forward(code) - taught;
            let loss = (error.clone() * error + other.clone() * other).sum() / 8.0;
            ctx.loss_is_scaled();
            let scaled = ctx.scale_loss(&loss, (&mut all.encoder, &mut *first, &mut *second))?;
            let models = (&all.encoder.model, &first.model, &second.model);
            let (of_encoder, of_first, of_second) = ctx.gradients(&scaled, models)?;
            all.encoder.apply_gradients(ctx, of_encoder)?;
            first.apply_gradients(ctx, of_first)?;
            second.apply_gradients(ctx, of_second)
        });
        trained.unwrap();
    }
}

fn mirrored() -> MirroredStrategy {
    MirroredStrategy::builder().replicas(2).build().unwrap()
}

/// Through a file.
fn written(checkpoint: &Checkpoint) -> Checkpoint {
    let directory = tempfile::tempdir().unwrap();
    let manager = CheckpointManager::open(directory.path()).unwrap();
    manager.save(checkpoint).unwrap();
    load_latest(directory.path()).unwrap().found.unwrap().1
}

fn saved(state: &Built) -> Checkpoint {
    snapshot(state.primary().unwrap()).unwrap()
}

/// The tensors but for the mean of the running statistics, which each replica goes on from.
fn trained(state: &Built) -> BTreeMap<String, TensorData> {
    let (_, mut tensors) = state.save().unwrap();
    tensors.retain(|name, _| !name.contains("running"));
    tensors
}

#[test]
fn a_struct_that_is_restored_from_a_file_goes_on_with_the_same_bits() {
    let strategy = mirrored();
    let mut whole = built(&strategy, 1.0);
    train(&strategy, &mut whole, 0..3);
    let checkpoint = written(&saved(&whole));
    assert_eq!(checkpoint.metadata.step, 3);
    let parts: Vec<_> = checkpoint
        .metadata
        .parts
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(parts, ["encoder", "heads.0", "heads.1", "norm", "teacher"]);
    for name in [
        "encoder/model/weight",
        "encoder/optimizer/velocity/weight",
        "encoder/loss_scale/step_counter",
        "heads.0/model/weight",
        "heads.1/optimizer/momentum/weight",
        "norm/model/running_mean",
        "teacher/model/weight",
    ] {
        assert!(checkpoint.tensors.contains_key(name), "{name}");
    }
    let records = checkpoint.tensors.keys();
    let mut records = records.filter(|name| name.starts_with("heads.0/optimizer_record/"));
    assert!(records.next().is_some());
    assert_eq!(whole.save().unwrap(), (3, checkpoint.tensors.clone()));

    let mut other = built(&strategy, 7.0);
    train(&strategy, &mut other, 5..6);
    restore(&mut other, &checkpoint).unwrap();
    assert_eq!(saved(&other).tensors, checkpoint.tensors);
    for copy in other.values().unwrap() {
        assert_eq!(copy.encoder.step(), 3);
        assert_eq!(copy.count, 7, "numbers stay");
    }
    let scale = other.primary().unwrap().heads.1.loss_scale().clone();
    assert_eq!((scale.scale(), scale.good_steps()), (65_536.0, 1));
    train(&strategy, &mut whole, 3..7);
    train(&strategy, &mut other, 3..7);
    assert_eq!(trained(&other), trained(&whole));
}

#[rstest]
fn workers_restore_what_the_chief_has_saved(#[values(1, 2)] replicas: usize) {
    for between in [THREADS, SHARED_MEMORY] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_path_buf();
        let program = move |strategy: MultiWorkerMirroredStrategy| {
            let mut whole = built(&strategy, 1.0);
            train(&strategy, &mut whole, 0..3);
            if strategy.is_chief() {
                CheckpointManager::open(&path)?.save(&saved(&whole))?;
            }
            // No worker reads before the chief has written.
            strategy.run((), |ctx, ()| {
                ctx.all_reduce(distribute_core::ReduceOp::Sum, 1.0_f32)
            })?;
            let found = load_latest(&path)?.found;
            let (_, checkpoint) = found.ok_or_else(|| Error::invalid("nothing was saved"))?;
            let mut other = built(&strategy, 7.0);
            restore(&mut other, &checkpoint)?;
            train(&strategy, &mut whole, 3..6);
            train(&strategy, &mut other, 3..6);
            Ok((trained(&whole), trained(&other)))
        };
        let all = workers(between, &[replicas, replicas], program);
        for (whole, other) in &all {
            assert_eq!(other, whole);
            assert_eq!(*whole, all[0].0, "workers differ");
        }
    }
}

/// A value with other fields.
#[derive(Replicate)]
struct Other {
    encoder: TrainState<Linear>,
    critic: TrainState<Linear>,
}

#[derive(Replicate)]
struct Alone {
    encoder: TrainState<Linear>,
}

fn adam(shape: [usize; 2], device: &Device) -> TrainState<Linear> {
    TrainState::new(linear(shape, 0.0, device), Adam::new(0.02))
}

/// The typed error of a restore that was refused.
fn parts_of(error: &Error) -> (Vec<String>, Vec<String>) {
    let Error::Checkpoint(source) = error.root_cause() else {
        panic!("{error:?}");
    };
    match source.downcast_ref() {
        Some(CheckpointError::WrongParts { missing, other }) => (missing.clone(), other.clone()),
        _ => panic!("{error:?}"),
    }
}

#[test]
fn a_file_with_a_missing_or_other_field_is_refused_by_its_name() {
    let strategy = mirrored();
    let two = |device: &Device| Other {
        encoder: adam([4, 2], device),
        critic: adam([2, 3], device),
    };
    let two = strategy.scope(two).unwrap();
    let two = written(&snapshot(two.primary().unwrap()).unwrap());
    let mut all = built(&strategy, 1.0);
    train(&strategy, &mut all, 0..2);
    let whole = saved(&all);
    let error = restore(&mut all, &two).unwrap_err();
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let missing = names(&["heads.0", "heads.1", "norm", "teacher"]);
    assert_eq!(parts_of(&error), (missing, names(&["critic"])));
    insta::assert_snapshot!(error, @"the checkpoint has no `heads.0`, `heads.1`, `norm`, `teacher`, and has `critic`, which the value has not: build the value that was saved, with the same fields");
    assert_eq!(saved(&all).tensors, whole.tensors, "unchanged");

    let mut alone = strategy
        .scope(|device| Alone {
            encoder: adam([4, 2], device),
        })
        .unwrap();
    let less = snapshot(alone.primary().unwrap()).unwrap();
    insta::assert_snapshot!(restore(&mut alone, &two).unwrap_err(), @"the checkpoint has `critic`, which the value has not: build the value that was saved, with the same fields");
    let build = |device: &Device| Other {
        encoder: adam([4, 2], device),
        critic: adam([2, 3], device),
    };
    let mut state = strategy.scope(build).unwrap();
    insta::assert_snapshot!(restore(&mut state, &less).unwrap_err(), @"the checkpoint has no `critic`: build the value that was saved, with the same fields");

    // One state alone into several, and several into one; each is known for what it is.
    let mut one = strategy.scope(|device| adam([4, 2], device)).unwrap();
    let single = snapshot(one.primary().unwrap()).unwrap();
    insta::assert_snapshot!(restore(&mut state, &single).unwrap_err(), @"the checkpoint is of one state alone and has no `critic`, `encoder`: build the value that was saved, with the same fields");
    insta::assert_snapshot!(restore(&mut one, &two).unwrap_err(), @r#"the checkpoint is of several models and states (`critic`, `encoder`), and the value is one: restore one of them, `checkpoint.part("critic")`"#);
    restore(&mut one, &two.part("encoder").unwrap()).unwrap();
}

#[test]
fn a_tensor_or_optimizer_that_does_not_fit_is_named_with_its_field() {
    let strategy = mirrored();
    let mut all = built(&strategy, 1.0);
    train(&strategy, &mut all, 0..2);
    let whole = saved(&all);
    train(&strategy, &mut all, 2..3);
    let now = saved(&all).tensors;
    let mut refused = |change: &dyn Fn(&mut Checkpoint)| {
        let mut changed = whole.clone();
        change(&mut changed);
        let error = restore(&mut all, &changed).unwrap_err();
        assert_eq!(saved(&all).tensors, now, "unchanged");
        error.to_string()
    };
    let wide = TensorData::from([[1.0_f32; 3]; 3]);
    let error = refused(&|it| {
        drop(
            it.tensors
                .insert("heads.1/model/weight".into(), wide.clone()),
        )
    });
    assert!(error.starts_with("`heads.1`: "), "{error}");
    assert!(error.contains("heads.1/model/weight"), "{error}");
    let error = refused(&|it| drop(it.tensors.remove("teacher/model/weight")));
    assert!(error.starts_with("`teacher`: "), "{error}");
    assert!(error.contains("teacher/model/weight"), "{error}");
    let extra = TensorData::from([1.0_f32]);
    let error = refused(&|it| drop(it.tensors.insert("norm/model/more".into(), extra.clone())));
    assert!(error.contains("norm/model/more"), "{error}");
    let slot = "heads.1/optimizer/momentum/weight";
    let error = refused(&|it| drop(it.tensors.insert(slot.into(), extra.clone())));
    assert!(error.contains(slot), "{error}");
    // What only the part itself can find, when those before it were compared.
    let scale = "heads.1/loss_scale/dynamic_scale";
    let error = refused(&|it| {
        drop(
            it.tensors
                .insert(scale.into(), TensorData::from([-1.0_f64])),
        )
    });
    assert!(
        error.starts_with("`heads.1`: ") && error.contains("dynamic_scale"),
        "{error}"
    );
    let error = refused(&|it| {
        let parts = &mut it.metadata.parts;
        parts.get_mut("encoder").unwrap().optimizer.name = "lion".to_string();
    });
    assert!(
        error.starts_with("`encoder`: ") && error.contains("lion"),
        "{error}"
    );
    let error = refused(&|it| {
        let mut names = it.tensors.keys();
        let is_record = |name: &&String| name.starts_with("heads.0/optimizer_record/");
        let record = names.find(is_record).unwrap().clone();
        it.tensors.remove(&record);
    });
    assert!(
        error.starts_with("`heads.0`: ") && error.contains("not whole"),
        "{error}"
    );
}

#[test]
fn weights_alone_leave_the_optimizers_to_begin_anew() {
    let strategy = mirrored();
    let mut all = built(&strategy, 1.0);
    train(&strategy, &mut all, 0..2);
    let whole = saved(&all);
    let mut other = built(&strategy, 7.0);
    restore_weights(&mut other, &whole).unwrap();
    let found = saved(&other);
    assert_eq!(found.metadata.step, 0);
    for (name, data) in &whole.tensors {
        if name.contains("/model/") {
            assert_eq!(found.tensors[name], *data, "{name}");
        } else if name.contains("/optimizer") {
            assert!(!found.tensors.contains_key(name), "{name}");
        }
    }
}

/// A part is a checkpoint of its own, for a program that has that state only.
#[test]
fn one_part_is_restored_alone() {
    let strategy = mirrored();
    let mut all = built(&strategy, 1.0);
    train(&strategy, &mut all, 0..2);
    let part = saved(&all).part("encoder").unwrap();
    let one = DefaultStrategy::new();
    let build = |device: &Device| {
        let state = TrainState::new(linear([4, 2], 5.0, device), Adam::new(0.02));
        state.with_loss_scale(LossScale::dynamic())
    };
    let mut state = one.scope(build).unwrap();
    restore(&mut state, &part).unwrap();
    assert_eq!(state.primary().unwrap().step(), 2);
    let again = snapshot(state.primary().unwrap()).unwrap();
    assert_eq!(again.tensors, part.tensors);
    assert_eq!(again.metadata.optimizer, part.metadata.optimizer);
    assert_eq!(
        again.metadata.model.signature,
        part.metadata.model.signature
    );
    // A model without a state.
    let teacher = saved(&all).part("teacher").unwrap();
    let mut model = one.scope(|device| linear([2, 3], 5.0, device)).unwrap();
    restore(&mut model, &teacher).unwrap();
    assert_eq!(
        snapshot(model.primary().unwrap()).unwrap().tensors,
        teacher.tensors
    );
}

#[test]
fn a_type_that_says_nothing_of_its_parts_is_not_saved() -> Result<()> {
    struct Opaque;
    impl Replicate for Opaque {
        fn replicate(&self, _: &Device) -> Self {
            Opaque
        }
    }
    #[derive(Replicate)]
    struct Holder {
        inside: Opaque,
    }
    let state = mirrored().scope(|_| Holder { inside: Opaque })?;
    for error in [
        snapshot(state.primary()?).unwrap_err(),
        state.save().unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(
            text.starts_with("`inside`: ") && text.contains("derive `Replicate`"),
            "{text}"
        );
    }
    Ok(())
}
