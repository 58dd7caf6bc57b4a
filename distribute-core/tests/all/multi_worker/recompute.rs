//! Gradients that another replica computes again: what is the same stays so in all layouts, and one
//! flipped bit in a gradient, a batch or a weight is found and attributed.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear};
use burn::tensor::activation::tanh;
use distribute_core::{
    Adam, Device, Error, Gradients, LossScale, Mirrored, MirroredStrategy,
    MultiWorkerMirroredStrategy, PerReplica, Recomputation, ReplicaContext, Result, Strategy,
    StrategyExt, SyncBatchNorm, SyncBatchNormConfig, Tensor, TensorData, TrainState, WrongGradient,
};
use hostile::alone::is_alone;
use rstest::rstest;

use crate::multi_worker::group::{THREADS, try_workers, workers};
use crate::sync_batch_norm::linear;

/// The flips of a series.
const FLIPS: u64 = 100;
/// Every bit of an `f32`.
fn all_bits() -> Vec<u32> {
    (0..32).collect()
}

/// Numbers that follow from a seed (splitmix64): the same on all workers.
#[derive(Clone)]
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % count as u64) as usize
    }

    /// Flips one of these bits of one of these numbers.
    fn flip(&mut self, data: &mut TensorData, bits: &[u32]) {
        let values = data.as_mut_slice::<f32>().unwrap();
        let value = self.below(values.len());
        let bit = 1 << bits[self.below(bits.len())];
        values[value] = f32::from_bits(values[value].to_bits() ^ bit);
    }
}

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    own: BatchNorm,
    synchronized: SyncBatchNorm,
    dropout: Dropout,
    output: Linear,
}

type State = TrainState<Net>;

fn state(device: &Device, rate: f64) -> State {
    let net = Net {
        hidden: linear(3, 5, 0.4, device),
        own: BatchNormConfig::new(5).init(device),
        synchronized: SyncBatchNormConfig::new(5).init(device).unwrap(),
        dropout: DropoutConfig::new(rate).init(),
        output: linear(5, 1, 0.7, device),
    };
    TrainState::new(net, Adam::new(0.01))
}

/// The rows of a replica in a step.
fn rows(step: u64, replica: usize, device: &Device) -> Tensor<2> {
    let number = |index: usize| ((step * 40 + replica as u64 * 12) as f32 + index as f32).sin();
    let values: Vec<f32> = (0..12).map(number).collect();
    Tensor::from_data(TensorData::new(values, [4, 3]), device)
}

/// With calls between the replicas in the forward and the backward pass.
fn gradients(ctx: &ReplicaContext, state: &mut State, x: Tensor<2>) -> Result<Gradients> {
    let net = &state.model;
    let hidden = net.own.forward(tanh(net.hidden.forward(x)));
    let hidden = net.dropout.forward(net.synchronized.forward(hidden));
    let output = net.output.forward(hidden);
    let loss = ctx.mean_loss((output.clone() * output).mean())?;
    let loss = state.scale_loss(&loss);
    ctx.gradient(&loss, &state.model)
}

/// What a replica does to its own gradients, batch and state before a check: nothing, or a flip.
type Harm = fn(&ReplicaContext, &Recomputation, &mut Part<'_>) -> Result<()>;

struct Part<'a> {
    state: &'a mut State,
    x: &'a mut Tensor<2>,
    gradients: Option<&'a mut Gradients>,
    drawn: Drawn,
}

/// One step on all replicas, checked if it is the turn of a check; what it has found.
fn step(
    strategy: &(impl Strategy + ?Sized),
    state: &mut Mirrored<State>,
    number: u64,
    check: Option<&Recomputation>,
    harm: impl Fn(&ReplicaContext, &Recomputation, &mut Part<'_>) -> Result<()> + Sync,
    drawn: &Drawn,
) -> Result<Option<WrongGradient>> {
    let replicas = strategy.replicas();
    let parts = replicas.iter().map(|it| rows(number, it.id, &it.device));
    let batch = PerReplica::new(parts.collect());
    let found = std::sync::Mutex::new(None);
    strategy.run((state, batch), |ctx, (state, mut x)| {
        if let Some(check) = check {
            check.begin(ctx);
            let (gradients, drawn) = (None, drawn.clone());
            let mut part = Part {
                state,
                x: &mut x,
                gradients,
                drawn,
            };
            harm(ctx, check, &mut part)?;
        }
        let mut own = gradients(ctx, state, x.clone())?;
        if let Some(check) = check {
            let (gradients_here, drawn) = (Some(&mut own), drawn.clone());
            let mut part = Part {
                state,
                x: &mut x,
                gradients: gradients_here,
                drawn,
            };
            harm(ctx, check, &mut part)?;
            let again = rows(number, check.replica(), ctx.device());
            if let Some(wrong) = check.check(ctx, state, &own, Some(again), gradients)? {
                *found.lock().unwrap() = Some(wrong);
                return Ok(());
            }
        }
        state.apply_gradients(ctx, own)?;
        Ok(())
    })?;
    Ok(found.into_inner().unwrap())
}

fn unharmed(_: &ReplicaContext, _: &Recomputation, _: &mut Part<'_>) -> Result<()> {
    Ok(())
}

/// All tensors of each local replica after some steps, with a check in every `every`-th.
fn trained(
    strategy: &(impl Strategy + ?Sized),
    every: Option<u64>,
    options: fn(State) -> State,
) -> Result<Vec<Vec<Vec<u8>>>> {
    let mut state = strategy.scope(|device| options(state(device, 0.4)))?;
    for number in 0..9 {
        let updates = state.host_metadata().step();
        let check = every.and_then(|every| Recomputation::due(strategy, every, updates));
        let found = step(
            strategy,
            &mut state,
            number,
            check.as_ref(),
            unharmed,
            &Drawn(0),
        )?;
        assert_eq!(found, None, "a false alarm");
    }
    let tensors = strategy.run(&mut state, |_, state| {
        Ok(state.to_tensors()?.into_values().collect::<Vec<_>>())
    })?;
    let bytes = |all: Vec<TensorData>| all.iter().map(|it| it.as_bytes().to_vec()).collect();
    Ok(tensors.into_values().into_iter().map(bytes).collect())
}

fn scaled(state: State) -> State {
    state.with_loss_scale(LossScale::dynamic()).random_seed(3)
}

/// With burn's dropout, batch normalization of each replica and of all, `mean_loss`, a loss scale:
/// the check changes nothing and finds nothing, whoever makes it.
#[test]
fn checks_change_nothing_and_find_nothing() {
    // burn's generator is one per process.
    if !is_alone(module_path!(), "checks_change_nothing_and_find_nothing") {
        return;
    }
    for options in [(|state| state) as fn(State) -> State, scaled] {
        let strategy = MirroredStrategy::builder().replicas(4).cores(2);
        let strategy = strategy.build().unwrap();
        let expected = trained(&strategy, None, options).unwrap();
        assert_eq!(trained(&strategy, Some(1), options).unwrap(), expected);
        for layout in [&[1, 2, 1][..], &[2, 2], &[1, 1, 1, 1]] {
            let all = workers(THREADS, layout, move |strategy| {
                trained(&strategy, Some(2), options)
            });
            let all: Vec<_> = all.into_iter().flatten().collect();
            assert_eq!(all, expected, "{layout:?}");
        }
    }
}

/// Runs a series on four replicas of three workers: each check is harmed by a flip that follows
/// from its seed, until enough have changed a gradient. All are found and attributed.
fn series(harm: Harm) {
    let program = move |strategy: MultiWorkerMirroredStrategy| {
        let (mut found, mut without_effect) = (0, 0);
        for seed in 0.. {
            let mut drawn = Drawn(seed);
            let updates = drawn.below(1000) as u64;
            let check = Recomputation::due(&strategy, 1, updates).unwrap();
            let mut state = strategy.scope(|device| state(device, 0.0))?;
            step(&strategy, &mut state, seed, None, unharmed, &drawn)?;
            let outcome = step(&strategy, &mut state, seed + 1, Some(&check), harm, &drawn)?;
            let Some(wrong) = outcome else {
                without_effect += 1;
                continue;
            };
            let replica = check.replica();
            assert!(wrong.has_majority, "seed {seed}: {wrong}");
            assert_eq!(wrong.replicas, [replica], "seed {seed}: {wrong}");
            assert_eq!(wrong.ranks, [[0, 1, 1, 2][replica]]);
            assert_eq!((wrong.step, wrong.checked), (updates + 1, replica));
            let names = state.primary()?.parameter_names().to_vec();
            assert!(names.contains(&wrong.parameter), "{wrong}");
            assert_eq!(state.host_metadata().step(), 1, "no update was made");
            found += 1;
            if found == FLIPS {
                break;
            }
        }
        Ok((found, without_effect))
    };
    for outcome in try_workers(THREADS, &[1, 2, 1], program) {
        let (found, without_effect) = outcome.unwrap();
        println!("{found} of {FLIPS} found; {without_effect} had no effect on a gradient");
        assert!(without_effect < 2 * FLIPS, "{without_effect}");
    }
}

/// Whether it is the replica that is checked, before or after its gradients.
fn is_now(ctx: &ReplicaContext, check: &Recomputation, part: &Part<'_>, is_after: bool) -> bool {
    ctx.replica_id() == check.replica() && part.gradients.is_some() == is_after
}

fn flip_gradient(ctx: &ReplicaContext, check: &Recomputation, part: &mut Part<'_>) -> Result<()> {
    if is_now(ctx, check, part, true)
        && let Some(gradients) = &mut part.gradients
    {
        let which = part.drawn.below(gradients.len());
        let gradient = gradients.iter_mut()?.nth(which).flatten().unwrap();
        part.drawn.flip(gradient, &all_bits());
    }
    Ok(())
}

fn flip_batch(ctx: &ReplicaContext, check: &Recomputation, part: &mut Part<'_>) -> Result<()> {
    if is_now(ctx, check, part, false) {
        let mut data = part.x.to_data();
        part.drawn.flip(&mut data, &all_bits());
        *part.x = Tensor::from_data(data, ctx.device());
    }
    Ok(())
}

fn flip_weight(ctx: &ReplicaContext, check: &Recomputation, part: &mut Part<'_>) -> Result<()> {
    if is_now(ctx, check, part, false) {
        let mut tensors = part.state.to_tensors()?;
        let names = part.state.parameter_names();
        let name = format!("model/{}", names[part.drawn.below(names.len())]);
        // The highest bit of the exponent makes a weight so large that a layer overflows, which is
        // an error of that layer.
        let bits: Vec<u32> = all_bits().into_iter().filter(|bit| *bit != 30).collect();
        part.drawn.flip(tensors.get_mut(&name).unwrap(), &bits);
        part.state.load_tensors(&tensors, part.state.step())?;
    }
    Ok(())
}

#[test]
fn a_flipped_bit_of_a_gradient_is_found_each_time() {
    series(flip_gradient);
}

#[test]
fn a_flipped_bit_of_a_batch_is_found_each_time() {
    series(flip_batch);
}

#[test]
fn a_flipped_bit_of_a_weight_is_found_before_its_gradients_are_summed() {
    series(flip_weight);
}

/// The one that checks may be the one that is wrong; with two replicas this is not known.
#[rstest]
#[case(&[1, 1, 1], Some(1))]
#[case(&[3], Some(1))]
#[case(&[2, 1], Some(1))]
#[case(&[1, 1], None)]
#[case(&[2], None)]
fn a_third_result_decides(#[case] layout: &[usize], #[case] third: Option<usize>) {
    let program = move |strategy: MultiWorkerMirroredStrategy| {
        let check = Recomputation::due(&strategy, 5, 4).unwrap();
        assert_eq!(check.by().len(), 1 + third.map_or(0, |_| 1));
        assert_eq!(Recomputation::due(&strategy, 5, 5), None);
        let mut state = strategy.scope(|device| state(device, 0.0))?;
        let replicas = strategy.replicas();
        let parts = replicas.iter().map(|it| rows(0, it.id, &it.device));
        let batch = PerReplica::new(parts.collect());
        strategy.run((&mut state, batch), |ctx, (state, x)| {
            check.begin(ctx);
            let own = gradients(ctx, state, x)?;
            let again = rows(0, check.replica(), ctx.device());
            let is_first = ctx.replica_id() == check.by()[0];
            let found = check.check(ctx, state, &own, Some(again), |ctx, state, x| {
                let mut again = gradients(ctx, state, x)?;
                assert_eq!(ctx.replica_id(), check.replica());
                if is_first {
                    let first = again.iter_mut()?.next().flatten().unwrap();
                    Drawn(3).flip(first, &all_bits());
                }
                Ok(again)
            })?;
            let found = found.expect("nothing was found");
            let wrong = third.map_or(vec![check.replica(), check.by()[0]], |_| {
                vec![check.by()[0]]
            });
            assert_eq!(
                (found.has_majority, found.replicas),
                (third.is_some(), wrong)
            );
            assert_eq!(
                (found.parameter, found.step),
                ("hidden.weight".to_string(), 5)
            );
            Ok(())
        })
    };
    for outcome in try_workers(THREADS, layout, program) {
        outcome.unwrap();
    }
}

#[test]
fn what_cannot_be_computed_again_is_refused_by_name() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = strategy.scope(|device| state(device, 0.0)).unwrap();
    let check = Recomputation::due(&strategy, 1, 0).unwrap();
    let refused = strategy.run(&mut state, |ctx, state| {
        check.begin(ctx);
        let x = rows(0, ctx.replica_id(), ctx.device());
        let with_gather = |ctx: &ReplicaContext, state: &mut State, x: Tensor<2>| {
            let all = ctx.all_gather(x.clone(), 0)?;
            let loss = state.model.hidden.forward(all).sum()
                * state
                    .model
                    .output
                    .forward(state.model.hidden.forward(x))
                    .sum();
            ctx.loss_is_scaled();
            ctx.gradient(&loss, &state.model)
        };
        let own = with_gather(ctx, state, x.clone())?;
        check.check(ctx, state, &own, Some(x), with_gather)?;
        Ok(())
    });
    let error = refused.unwrap_err();
    assert!(
        matches!(error.root_cause(), Error::NotRecomputable { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("`all_gather`"), "{error}");
}
