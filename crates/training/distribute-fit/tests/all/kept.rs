//! What a training state keeps and what it takes over: parameters of every kind, and slots that
//! belong to an optimizer.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use distribute_core::checkpoint::{Checkpoint, CheckpointManager, load_latest};
use distribute_core::optim::Optimizer;
use distribute_core::{
    Adam, AdamW, DefaultStrategy, Error, Mirrored, MirroredStrategy, Sgd, Strategy, StrategyExt,
    TrainState,
};
use distribute_fit::{restore, restore_weights, snapshot};

/// A parameter of every kind.
#[derive(Module, Debug)]
struct Kinds {
    weight: Param<Tensor<1>>,
    frozen: Param<Tensor<1>>,
    ids: Param<Tensor<2, Int>>,
    mask: Param<Tensor<1, Bool>>,
}

impl Kinds {
    fn new(device: &Device, seed: i32) -> Self {
        let floats = |values: [f32; 3]| Tensor::<1>::from_floats(values, device);
        let at = seed as f32;
        let ids = Tensor::<2, Int>::from_ints([[seed, 2, 3], [4, seed + 5, -6]], device);
        let mask = [seed % 2 == 0, true, seed % 2 == 1];
        let mask = Tensor::<1, Bool>::from_data(TensorData::from(mask), device);
        let frozen = floats([at, at, at]).set_require_grad(false);
        Self {
            weight: Param::from_tensor(floats([at, at + 1.0, at + 2.0])),
            frozen: Param::initialized(ParamId::new(), frozen),
            ids: Param::initialized(ParamId::new(), ids),
            mask: Param::initialized(ParamId::new(), mask),
        }
    }

    /// All values, as text.
    fn values(&self) -> String {
        let plain = (self.weight.val().inner(), self.frozen.val().inner());
        let ids: Vec<i64> = self.ids.val().into_data().iter::<i64>().collect();
        let mask: Vec<bool> = self.mask.val().into_data().iter::<bool>().collect();
        let floats = |tensor: Tensor<1>| tensor.into_data().iter::<f32>().collect::<Vec<_>>();
        format!(
            "{:?} {:?} {ids:?} {mask:?}",
            floats(plain.0),
            floats(plain.1)
        )
    }
}

type State = Mirrored<TrainState<Kinds>>;

fn state_of(strategy: &dyn Strategy, seed: i32, optimizer: &Arc<dyn Optimizer>) -> State {
    let build = |device: &Device| {
        TrainState::with_optimizer(Kinds::new(device, seed), Arc::clone(optimizer))
    };
    strategy.scope(build).unwrap()
}

fn adam() -> Arc<dyn Optimizer> {
    Arc::new(Adam::new(0.1))
}

fn steps(strategy: &dyn Strategy, state: &mut State, count: usize) {
    for _ in 0..count {
        let step = |ctx: &distribute_core::ReplicaContext, (state,): (&mut TrainState<Kinds>,)| {
            let weight = state.model.weight.val();
            let loss = (weight.clone() * weight).sum();
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(())
        };
        strategy.run((&mut *state,), step).unwrap();
    }
}

/// The checkpoint after it was saved to a file and loaded.
fn written(checkpoint: &Checkpoint) -> Checkpoint {
    let directory = tempfile::tempdir().unwrap();
    let manager = CheckpointManager::open(directory.path()).unwrap();
    manager.save(checkpoint).unwrap();
    load_latest(directory.path()).unwrap().found.unwrap().1
}

#[test]
fn parameters_of_every_kind_are_saved_and_restored() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut trained = state_of(&strategy, 1, &adam());
    steps(&strategy, &mut trained, 2);
    let expected = trained.primary().unwrap().model.values();
    let checkpoint = written(&snapshot(trained.primary().unwrap()).unwrap());
    let mut fresh = state_of(&strategy, 8, &adam());
    assert_ne!(fresh.primary().unwrap().model.values(), expected);
    restore(&mut fresh, &checkpoint).unwrap();
    for model in strategy.local_results(
        strategy
            .run(&mut fresh, |_, state| Ok(state.model.values()))
            .unwrap(),
    ) {
        assert_eq!(model, expected);
    }
    // Both states train on in the same way.
    steps(&strategy, &mut trained, 2);
    steps(&strategy, &mut fresh, 2);
    let tensors = |state: &State| state.primary().unwrap().to_tensors().unwrap();
    assert_eq!(tensors(&fresh), tensors(&trained));
}

#[test]
fn checkpoints_without_integers_and_bools_were_written_before_those_were_saved() {
    let strategy = DefaultStrategy::new();
    let mut trained = state_of(&strategy, 1, &adam());
    steps(&strategy, &mut trained, 2);
    let whole = snapshot(trained.primary().unwrap()).unwrap();
    let mut old = whole.clone();
    old.tensors.remove("model/ids").unwrap();
    let mut half = old.clone();
    old.tensors.remove("model/mask").unwrap();
    let mut fresh = state_of(&strategy, 8, &adam());
    let own = fresh.primary().unwrap().to_tensors().unwrap();
    restore(&mut fresh, &old).unwrap();
    let found = fresh.primary().unwrap().to_tensors().unwrap();
    for (name, expected) in [
        ("model/weight", &whole.tensors),
        ("model/frozen", &whole.tensors),
        ("model/ids", &own),
        ("model/mask", &own),
    ] {
        assert_eq!(found[name], expected[name], "{name}");
    }
    // A checkpoint that has some of these tensors must have all.
    let error = restore(&mut fresh, &half).unwrap_err().to_string();
    assert!(error.contains("model/ids"), "{error}");
    let tensors = std::mem::take(&mut half.tensors);
    let error = fresh.update(|state| state.load_tensors(&tensors, 2));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("model/ids"), "{error}");
    // Of another shape, or another kind.
    for wrong in [
        TensorData::from([1_i64]),
        TensorData::from([[1.0_f32; 3]; 2]),
    ] {
        let mut tensors = whole.tensors.clone();
        tensors.insert("model/ids".into(), wrong);
        let error = fresh.update(|state| state.load_tensors(&tensors, 2));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("`model/ids`"), "{error}");
    }
    assert_eq!(
        fresh.primary().unwrap().to_tensors().unwrap(),
        found,
        "unchanged"
    );
}

#[test]
fn slots_of_another_optimizer_are_refused_by_both_names() {
    let strategy = DefaultStrategy::new();
    let momentum = |momentum| -> Arc<dyn Optimizer> { Arc::new(Sgd::new(0.1).momentum(momentum)) };
    let kinds: [(&str, Arc<dyn Optimizer>); 4] = [
        ("adam", adam()),
        ("adamw", Arc::new(AdamW::new(0.1))),
        ("sgd", momentum(0.9)),
        ("sgd", momentum(0.0)),
    ];
    for (from, (saved, optimizer)) in kinds.iter().enumerate() {
        let mut trained = state_of(&strategy, 1, optimizer);
        steps(&strategy, &mut trained, 3);
        let checkpoint = written(&snapshot(trained.primary().unwrap()).unwrap());
        let slots = |checkpoint: &Checkpoint| {
            let names = checkpoint.tensors.keys();
            names.filter(|name| name.starts_with("optimizer/")).count()
        };
        for (into, (own, optimizer)) in kinds.iter().enumerate() {
            let mut state = state_of(&strategy, 5, optimizer);
            steps(&strategy, &mut state, 1);
            let before = state.primary().unwrap().to_tensors().unwrap();
            let restored = restore(&mut state, &checkpoint);
            if from == into || (saved == own && slots(&checkpoint) == 0) {
                restored.unwrap();
                assert_eq!(state.primary().unwrap().step(), 3);
                continue;
            }
            let error = restored.unwrap_err();
            let text = error.to_string();
            assert!(text.contains(saved) && text.contains(own), "{text}");
            assert_eq!(
                state.primary().unwrap().to_tensors().unwrap(),
                before,
                "unchanged"
            );
            // The tensors alone, without the optimizer's name.
            let mut nameless = checkpoint.clone();
            nameless.metadata.optimizer = Default::default();
            let same_slots = slots(&checkpoint) == 0 || from + into == 1;
            for named in [false, true] {
                let loaded = if named {
                    restore(&mut state, &nameless)
                } else {
                    state.update(|state| state.load_tensors(&nameless.tensors, 3))
                };
                assert_eq!(loaded.is_ok(), same_slots, "{saved} into {own}: {loaded:?}");
                if let Err(error) = loaded {
                    let text = error.to_string();
                    assert!(text.contains(saved) && text.contains(own), "{text}");
                    assert_eq!(
                        state.primary().unwrap().to_tensors().unwrap(),
                        before,
                        "unchanged"
                    );
                }
            }
            // The weights alone can always be restored.
            restore_weights(&mut state, &checkpoint).unwrap();
            let found = state.primary().unwrap().to_tensors().unwrap();
            assert_eq!(found["model/weight"], checkpoint.tensors["model/weight"]);
            assert!(!found.keys().any(|name| name.starts_with("optimizer/")));
            assert_eq!(state.primary().unwrap().step(), 0);
        }
    }
}

#[test]
fn a_slot_that_is_missing_or_of_another_size_is_refused() {
    let strategy = DefaultStrategy::new();
    let mut state = state_of(&strategy, 1, &adam());
    steps(&strategy, &mut state, 1);
    let whole = state.primary().unwrap().to_tensors().unwrap();
    let mut load = |tensors: &BTreeMap<String, TensorData>| {
        let loaded = state.update(|state| state.load_tensors(tensors, 1));
        loaded.unwrap_err().to_string()
    };
    let mut tensors = whole.clone();
    let slot = "optimizer/velocity/weight";
    tensors.insert(slot.into(), TensorData::from([0.0_f32; 2]));
    let error = load(&tensors);
    assert!(error.contains(slot), "{error}");
    // A checkpoint of a model with two parameters that lacks one slot of one parameter.
    let strategy = DefaultStrategy::new();
    let build = |device: &Device| {
        let layer = burn::nn::LinearConfig::new(2, 1).init(device);
        TrainState::new(layer, Adam::new(0.1))
    };
    let mut state = strategy.scope(build).unwrap();
    strategy
        .run(&mut state, |ctx, state| {
            let loss = state.model.forward(Tensor::<2>::ones([1, 2], ctx.device()));
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss.sum(), &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(())
        })
        .unwrap();
    let mut tensors = state.primary().unwrap().to_tensors().unwrap();
    tensors.remove("optimizer/velocity/bias").unwrap();
    let loaded = state.update(|state| state.load_tensors(&tensors, 1));
    let error = loaded.unwrap_err().to_string();
    assert!(error.contains("optimizer/velocity/bias"), "{error}");
}

#[test]
fn the_error_says_what_to_do() {
    let strategy = DefaultStrategy::new();
    let mut trained = state_of(&strategy, 1, &adam());
    steps(&strategy, &mut trained, 1);
    let checkpoint = snapshot(trained.primary().unwrap()).unwrap();
    let sgd: Arc<dyn Optimizer> = Arc::new(Sgd::new(0.1).momentum(0.9));
    let mut state = state_of(&strategy, 1, &sgd);
    let error = restore(&mut state, &checkpoint).unwrap_err();
    assert!(matches!(error, Error::Checkpoint(_)), "{error:?}");
    let named = "the checkpoint is of adam (the slots momentum and velocity) and cannot be \
                 restored into sgd (the slot momentum): build the state with the optimizer that \
                 was saved, or take the weights alone with `fit::restore_weights` (the tensors \
                 whose names do not begin with `optimizer/`)";
    assert_eq!(error.to_string(), named);
    // Without the optimizer's name, the slots are known by their own names alone.
    let error = state.update(|state| state.load_tensors(&checkpoint.tensors, 1));
    let guessed = named.replace("is of adam (", "is of adam or adamw (");
    assert_eq!(error.unwrap_err().to_string(), guessed);
}
