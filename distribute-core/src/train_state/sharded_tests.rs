//! A sketch of one more placement, which shows what the seam asks of one: each replica keeps the
//! slots of its part of every parameter only, updates that part, and gathers the others.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_collectives::ReduceOp;

use super::placement::{Placement, SlotNames, Slots, has_slots};
use super::{Applied, TrainState};
use crate::checkpoint::Section;
use crate::state_leaf::{StateOwner, StateVisitor};
use crate::{
    Adam, Error, Gradients, Mirrored, MirroredStrategy, PerReplica, ReplicaContext, Result,
    StrategyExt,
};

/// The slots belong to one part of each parameter.
#[derive(Clone)]
struct Sharded {
    slots: Slots,
    part: usize,
    of: usize,
}

/// The range of elements of one part of a parameter.
fn elements(count: usize, part: usize, of: usize) -> Range<usize> {
    count * part / of..count * (part + 1) / of
}

impl<M: Module + 'static> Placement<M> for Sharded {
    fn apply(
        &mut self,
        state: &mut TrainState<M>,
        ctx: &ReplicaContext,
        mut gradients: Gradients,
    ) -> Result<Applied> {
        let peers = ctx.peers();
        peers.all_reduce_gradients(ReduceOp::Sum, &mut gradients)?;
        let (part, of) = (self.part, self.of);
        let shapes = state.slot_names()?.shapes;
        let sizes = shapes.iter().map(|shape| shape.iter().product());
        let ranges: Vec<_> = sizes.map(|size| elements(size, part, of)).collect();
        state.update_with(state.numbers(), &mut self.slots, |update| {
            for (index, range) in ranges.into_iter().enumerate() {
                let part = update.apply_part(index, Some(range), &mut gradients)?;
                let count = ctx.num_local();
                let parts = ctx.exchange("apply_gradients", 0, part, |all| {
                    let all: Option<Vec<Tensor<1>>> = all.into_iter().collect();
                    Ok(vec![all.map(|all| Tensor::cat(all, 0)); count])
                })?;
                if let Some(whole) = parts {
                    update.put(index, whole)?;
                }
            }
            Ok(())
        })
    }

    has_slots!();

    fn walk_slots(&mut self, of: &SlotNames<'_>, visit: StateVisitor<'_>) -> Result<()> {
        let (part, parts) = (self.part, self.of);
        let range = |shape: &[usize]| elements(shape.iter().product(), part, parts);
        let owner = |shape: &[usize]| StateOwner::Sharded(range(shape));
        self.slots.walk(of, owner, visit)
    }

    fn load_slots(
        &mut self,
        of: &SlotNames<'_>,
        tensors: &BTreeMap<String, TensorData>,
        device: &Device,
    ) -> Result<()> {
        self.slots.load(of, tensors, device)?;
        for slot in self.slots.tensors.iter_mut().flatten() {
            let range = elements(slot.dims()[0], self.part, self.of);
            *slot = slot.clone().slice(range);
        }
        Ok(())
    }
}

const REPLICAS: usize = 3;

fn state(strategy: &MirroredStrategy) -> Mirrored<TrainState<Linear>> {
    // Without random numbers: tests at the same time draw from the same generator of burn.
    let build = |device: &Device| {
        let mut layer = LinearConfig::new(4, 5).init(device);
        let values: Vec<f32> = (0..20).map(|i| (i as f32 * 1.7).sin() * 0.4).collect();
        let weight = Tensor::from_data(TensorData::new(values, [4, 5]), device);
        layer.weight = Param::from_tensor(weight);
        layer.bias = Some(Param::from_tensor(Tensor::zeros([5], device)));
        TrainState::new(layer, Adam::new(0.1))
    };
    strategy.scope(build).unwrap()
}

fn shard(state: &mut Mirrored<TrainState<Linear>>) {
    for (part, copy) in state.host_values_mut().unwrap().iter_mut().enumerate() {
        copy.placement = Box::new(Sharded {
            slots: Slots::new(copy.names.len()),
            part,
            of: REPLICAS,
        });
    }
}

fn train(strategy: &MirroredStrategy, state: &mut Mirrored<TrainState<Linear>>, steps: u16) {
    for step in 0..steps {
        let inputs = (0..REPLICAS).map(|replica| f32::from(step) + replica as f32 * 0.3);
        let inputs = PerReplica::new(inputs.collect());
        let step = |ctx: &ReplicaContext, (state, input): (&mut TrainState<Linear>, f32)| {
            let input = Tensor::<2>::ones([2, 4], ctx.device()).mul_scalar(input);
            let loss = state.model.forward(input).powi_scalar(2).mean();
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            assert_eq!(state.apply_gradients(ctx, gradients)?, Applied::Updated);
            Ok(())
        };
        strategy.run((&mut *state, inputs), step).unwrap();
    }
}

#[test]
fn sharded_slots_are_one_more_placement_and_train_the_same_bits() {
    let strategy = MirroredStrategy::builder().replicas(REPLICAS).build();
    let strategy = strategy.unwrap();
    let mut whole = state(&strategy);
    let mut sharded = state(&strategy);
    shard(&mut sharded);
    train(&strategy, &mut whole, 4);
    train(&strategy, &mut sharded, 4);
    // Slots that lie in parts are saved as a whole checkpoint: the same one.
    let saved = whole.save().unwrap();
    assert_eq!(saved.1.len(), 6, "two parameters, and two slots of each");
    assert_eq!(sharded.save().unwrap(), saved);
    let weights = saved.1.iter().filter(|(name, _)| Section::Model.has(name));
    for copy in sharded.values().unwrap() {
        let own = copy.to_tensors().unwrap();
        assert!(weights.clone().all(|(name, data)| own[name] == *data));
    }
    // A mirrored state takes over what parts have saved, a sharded one what whole slots have, and
    // both go on with the same bits.
    let mut to_whole = state(&strategy);
    let mut to_parts = state(&strategy);
    shard(&mut to_parts);
    for again in [&mut to_whole, &mut to_parts] {
        let (step, tensors) = sharded.save().unwrap();
        for copy in again.host_values_mut().unwrap() {
            copy.load_tensors(&tensors, step).unwrap();
        }
        train(&strategy, again, 2);
    }
    train(&strategy, &mut whole, 2);
    let expected = whole.save().unwrap();
    assert_eq!(to_whole.save().unwrap(), expected);
    assert_eq!(to_parts.save().unwrap(), expected);
}

#[test]
fn parts_that_are_missing_are_no_checkpoint() {
    let strategy = MirroredStrategy::builder().replicas(REPLICAS).build();
    let strategy = strategy.unwrap();
    let mut sharded = state(&strategy);
    shard(&mut sharded);
    train(&strategy, &mut sharded, 1);
    let (step, saved) = sharded.save().unwrap();
    // The last part is that of a fourth replica, of another worker.
    for (part, copy) in sharded.host_values_mut().unwrap().iter_mut().enumerate() {
        copy.placement = Box::new(Sharded {
            slots: Slots::new(copy.names.len()),
            part,
            of: REPLICAS + 1,
        });
        copy.load_tensors(&saved, step).unwrap();
    }
    let error = sharded.save().unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert!(error.to_string().contains("other workers"), "{error}");
}
