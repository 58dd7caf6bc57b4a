//! Training states and variables that live in a store, here one in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::fit::callbacks::LearningRateScheduler;
use distribute_core::fit::{BatchSource, Batches, Fit, Objective, StepContext, restore, snapshot};
use distribute_core::optim::{Coefficient, Optimizer};
use distribute_core::remote::{
    Pushed, RemoteChange, RemoteSpec, RemoteState, RemoteStore, RemoteTensor, RemoteValues,
    RemoteVariable, RemoteVersion, RowGradients, no_tables,
};
use distribute_core::{
    Adam, Applied, InputContext, Mirrored, OneDeviceStrategy, PerReplica, Replica, ReplicaStep,
    Replicate, Result, Same, Sgd, Strategy, StrategyExt, StrategyId, TrainState,
    VariableAggregation, VariableOptions, run_alone,
};

/// A store in memory. Several strategies may share it, as processes do.
#[derive(Debug, Default)]
struct Store {
    states: Mutex<BTreeMap<String, Arc<State>>>,
    drops: Arc<AtomicBool>,
}

#[derive(Debug)]
struct State {
    optimizer: Option<Arc<dyn Optimizer>>,
    inside: Mutex<Inside>,
    drops: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Inside {
    tensors: Vec<RemoteTensor>,
    versions: Vec<u64>,
    slots: Vec<Vec<Tensor<1>>>,
    step: u64,
    learning_rate: Option<f64>,
    /// How often it was told one.
    told: usize,
}

fn flat(data: &TensorData) -> Tensor<1> {
    let count = data.shape().num_elements();
    Tensor::from_data(
        TensorData::new(data.try_to_vec::<f32>().expect("f32"), [count]),
        &Device::default(),
    )
}

fn scalar(value: f32) -> TensorData {
    TensorData::new(vec![value], [0_usize; 0])
}

impl State {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().expect("no panics")
    }
}

impl RemoteStore for Store {
    fn state(&self, spec: RemoteSpec<'_>) -> Result<Arc<dyn RemoteState>> {
        let optimizer = spec.optimizer.map(|optimizer| -> Arc<dyn Optimizer> {
            match optimizer.name() {
                "adam" => Arc::new(Adam::new(optimizer.learning_rate())),
                _ => Arc::new(Sgd::new(optimizer.learning_rate()).momentum(0.9)),
            }
        });
        let new = State {
            optimizer,
            drops: Arc::clone(&self.drops),
            inside: Mutex::new(Inside {
                versions: vec![1; spec.tensors.len()],
                slots: vec![Vec::new(); spec.tensors.len()],
                tensors: spec.tensors,
                step: 0,
                learning_rate: None,
                told: 0,
            }),
        };
        let mut states = self.states.lock().expect("no panics");
        let state = states.entry(spec.path.to_string());
        Ok(state.or_insert_with(|| Arc::new(new)).clone())
    }

    fn variable(&self, initial: &TensorData) -> Result<Arc<dyn RemoteVariable>> {
        Ok(Arc::new(Variable(Mutex::new(initial.clone()))))
    }
}

impl RemoteState for State {
    fn pull(&self, known: &[RemoteVersion]) -> Result<RemoteValues> {
        let inside = self.inside();
        let newer = (0..known.len()).filter(|&index| known[index] != [inside.versions[index]]);
        Ok(RemoteValues {
            step: inside.step,
            learning_rate: inside.learning_rate,
            changed: newer
                .map(|index| {
                    let value = inside.tensors[index].value.clone();
                    (index, vec![inside.versions[index]], value)
                })
                .collect(),
        })
    }

    fn push(
        &self,
        gradients: Vec<Option<TensorData>>,
        base: &[RemoteVersion],
        rows: Vec<RowGradients>,
    ) -> Result<Pushed> {
        if !rows.is_empty() {
            return Err(no_tables(&rows));
        }
        if self.drops.load(Ordering::Relaxed) {
            return Ok(Pushed::Dropped);
        }
        assert_eq!(gradients.len(), base.len());
        let inside = &mut *self.inside();
        let optimizer = self.optimizer.as_ref().expect("a trained state");
        let rate = inside.learning_rate.unwrap_or(optimizer.learning_rate());
        let coefficients = optimizer.coefficients(rate, inside.step + 1);
        let coefficients: Vec<_> = coefficients.into_iter().map(Coefficient::Host).collect();
        let trained = (0..inside.tensors.len()).filter(|&index| inside.tensors[index].is_trained);
        let trained: Vec<usize> = trained.collect();
        for (index, gradient) in trained.into_iter().zip(gradients) {
            let Some(gradient) = gradient else { continue };
            let value = flat(&inside.tensors[index].value);
            let mut slots = std::mem::take(&mut inside.slots[index]);
            if slots.is_empty() {
                slots = optimizer
                    .slots()
                    .iter()
                    .map(|_| value.zeros_like())
                    .collect();
            }
            let updated = optimizer.update(&coefficients, value, flat(&gradient), slots)?;
            let shape = inside.tensors[index].value.shape().clone();
            let data = updated.0.into_data().try_to_vec::<f32>().expect("f32");
            inside.tensors[index].value = TensorData::new(data, shape);
            inside.slots[index] = updated.1;
            inside.versions[index] += 1;
        }
        inside.step += 1;
        Ok(Pushed::Applied { step: inside.step })
    }

    fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        let mut inside = self.inside();
        inside.learning_rate = Some(learning_rate);
        inside.told += 1;
        Ok(())
    }

    fn save(&self) -> Result<(u64, BTreeMap<String, TensorData>)> {
        let inside = self.inside();
        let mut all = BTreeMap::new();
        let names = self.optimizer.as_ref().map_or(&[][..], |one| one.slots());
        for (tensor, slots) in inside.tensors.iter().zip(&inside.slots) {
            let path = tensor.name.strip_prefix("model/").expect("its prefix");
            all.insert(tensor.name.clone(), tensor.value.clone());
            for (name, slot) in names.iter().zip(slots) {
                all.insert(format!("optimizer/{name}/{path}"), slot.to_data());
            }
        }
        Ok((inside.step, all))
    }

    fn restore(&self, tensors: &BTreeMap<String, TensorData>, step: u64) -> Result<()> {
        let inside = &mut *self.inside();
        let names = self.optimizer.as_ref().map_or(&[][..], |one| one.slots());
        for index in 0..inside.tensors.len() {
            let name = &inside.tensors[index].name;
            let path = name.strip_prefix("model/").expect("its prefix");
            let slot = |slot| Some(flat(tensors.get(&format!("optimizer/{slot}/{path}"))?));
            inside.slots[index] = names.iter().filter_map(slot).collect();
            inside.tensors[index].value = tensors[name].clone();
            inside.versions[index] += 1;
        }
        inside.step = step;
        Ok(())
    }
}

#[derive(Debug)]
struct Variable(Mutex<TensorData>);

impl RemoteVariable for Variable {
    fn read(&self) -> Result<TensorData> {
        Ok(self.0.lock().expect("no panics").clone())
    }

    fn change(&self, change: RemoteChange, value: TensorData) -> Result<()> {
        let mut all = self.0.lock().expect("no panics");
        let old = all.try_to_vec::<f32>().expect("f32");
        let values = value
            .iter::<f32>()
            .zip(old)
            .map(|(value, old)| match change {
                RemoteChange::Assign => value,
                RemoteChange::Add => old + value,
                RemoteChange::Sub => old - value,
            });
        *all = TensorData::new(values.collect::<Vec<_>>(), value.shape().clone());
        Ok(())
    }
}

/// A strategy of one replica whose states are in a store.
#[derive(Debug, Clone)]
struct Remotely {
    store: Arc<Store>,
    replica: Arc<[Replica; 1]>,
    id: StrategyId,
}

impl Remotely {
    fn new(store: &Arc<Store>) -> Self {
        Self {
            store: Arc::clone(store),
            replica: Arc::new([Replica::new(0, "cpu:0".parse().expect("a device"))]),
            id: StrategyId::new("remotely", 1),
        }
    }
}

impl Strategy for Remotely {
    fn name(&self) -> &'static str {
        "remotely"
    }

    fn num_replicas_in_sync(&self) -> usize {
        1
    }

    fn replicas(&self) -> &[Replica] {
        &*self.replica
    }

    fn input_context(&self) -> InputContext {
        InputContext::default()
    }

    fn id(&self) -> StrategyId {
        self.id.clone()
    }

    fn handle(&self) -> Arc<dyn Strategy> {
        Arc::new(self.clone())
    }

    fn distributes_variables(&self) -> bool {
        false
    }

    fn remote_store(&self) -> Option<&dyn RemoteStore> {
        Some(&*self.store)
    }

    fn run_replicas(&self, step: ReplicaStep<'_>) -> Result<()> {
        run_alone(self.handle(), &self.replica[0], step)
    }
}

/// A layer with these numbers, whatever random ones burn made.
fn layer(device: &Device, first: f32) -> Linear {
    let mut layer = LinearConfig::new(3, 2).init(device);
    let weight: Vec<f32> = (0..6_u8).map(|i| first + f32::from(i) / 8.0).collect();
    let weight = Tensor::from_data(TensorData::new(weight, [3, 2]), device);
    layer.weight = layer.weight.map(|_| weight.clone().require_grad());
    let zeros = Tensor::zeros([2], device);
    layer.bias = layer
        .bias
        .map(|bias| bias.map(|_| zeros.clone().require_grad()));
    layer
}

type Built = Mirrored<TrainState<Linear>>;

/// One step with the batch of this number; what `apply_gradients` said.
fn step(strategy: &dyn Strategy, state: &mut Built, number: usize) -> Result<Applied> {
    let said = strategy.run((state, Same(number)), |ctx, (state, number)| {
        let input: Vec<f32> = (0..12)
            .map(|i| ((i * 7 + number * 5) % 11) as f32 / 4.0)
            .collect();
        let input = TensorData::new(input, [4, 3]);
        let input: Tensor<2> = Tensor::from_data(input, ctx.device());
        let output = state.model.forward(input);
        let loss = output.powf_scalar(2.0).mean();
        let gradients = ctx.gradient(&loss, &state.model)?;
        let said = state.apply_gradients(ctx, gradients)?;
        Ok(i64::from(said == Applied::Updated) + 2 * i64::from(said == Applied::Dropped))
    })?;
    Ok(match said.values()[0] {
        0 => Applied::Accumulated,
        1 => Applied::Updated,
        _ => Applied::Dropped,
    })
}

fn one_device() -> OneDeviceStrategy {
    OneDeviceStrategy::new("cpu:0".parse().expect("a device")).expect("a strategy")
}

type Build = fn(&Device) -> TrainState<Linear>;

#[test]
fn one_worker_alone_gets_the_numbers_of_the_local_optimizer() {
    let builds: [Build; 3] = [
        |device| TrainState::new(layer(device, 0.25), Adam::new(0.01)),
        |device| TrainState::new(layer(device, 0.5), Sgd::new(0.1).momentum(0.9)),
        |device| {
            let state = TrainState::new(layer(device, 0.25), Adam::new(0.01));
            state.clip_by_global_norm(0.5).accumulate(3)
        },
    ];
    for build in builds {
        let (local, remote) = (one_device(), Remotely::new(&Arc::default()));
        let mut states = [local.scope(build).unwrap(), remote.scope(build).unwrap()];
        for number in 0..9 {
            if number == 6 {
                states
                    .iter_mut()
                    .for_each(|state| state.set_learning_rate(0.003));
            }
            let [one, other] = &mut states;
            let said = [step(&local, one, number), step(&remote, other, number)];
            assert_eq!(said[0].as_ref().unwrap(), said[1].as_ref().unwrap());
        }
        assert!(states[1].primary().is_remote());
        let [one, other] = states
            .each_ref()
            .map(|state| state.primary().to_tensors().unwrap());
        assert_eq!(one, other);
        states[1].refresh().unwrap();
        assert_eq!(states[0].primary().step(), states[1].primary().step());
        let rates = states
            .each_ref()
            .map(|state| state.primary().learning_rate());
        assert_eq!(rates, [0.003; 2]);
        let weights = states
            .each_ref()
            .map(|state| state.primary().model.weight.val().to_data());
        assert_eq!(weights[0], weights[1]);
    }
}

#[test]
fn a_worker_takes_over_what_others_have_made_of_the_state() {
    let store = Arc::default();
    let (first, second) = (Remotely::new(&store), Remotely::new(&store));
    let build = |at| move |device: &Device| TrainState::new(layer(device, at), Adam::new(0.01));
    let mut one = first.scope(build(0.25)).unwrap();
    step(&first, &mut one, 0).unwrap();
    // Another initial value, which does not count.
    let mut other = second.scope(build(7.0)).unwrap();
    assert_eq!(other.primary().step(), 1);
    step(&second, &mut other, 1).unwrap();
    step(&first, &mut one, 2).unwrap();

    let alone = one_device();
    let mut expected = alone.scope(build(0.25)).unwrap();
    for number in 0..3 {
        step(&alone, &mut expected, number).unwrap();
    }
    let tensors = |state: &Built| state.primary().to_tensors().unwrap();
    assert_eq!(tensors(&one), tensors(&expected));
    assert_eq!(tensors(&other), tensors(&expected));
}

#[test]
fn dropped_gradients_change_nothing() {
    let strategy = Remotely::new(&Arc::default());
    let build = |device: &Device| TrainState::new(layer(device, 0.25), Adam::new(0.01));
    let mut state = strategy.scope(build).unwrap();
    strategy.store.drops.store(true, Ordering::Relaxed);
    let before = state.primary().to_tensors().unwrap();
    assert_eq!(step(&strategy, &mut state, 0).unwrap(), Applied::Dropped);
    assert_eq!(state.primary().to_tensors().unwrap(), before);
    assert_eq!(state.primary().step(), 0);
}

#[test]
fn checkpoints_go_from_and_to_other_strategies() {
    let build = |device: &Device| TrainState::new(layer(device, 0.25), Adam::new(0.01));
    let (local, remote) = (one_device(), Remotely::new(&Arc::default()));
    let mut here = local.scope(build).unwrap();
    let mut there = remote.scope(build).unwrap();
    for number in 0..3 {
        step(&local, &mut here, number).unwrap();
    }
    let checkpoint = snapshot(here.primary()).unwrap();
    restore(&mut there, &checkpoint).unwrap();
    assert_eq!(there.primary().step(), 3);
    step(&local, &mut here, 3).unwrap();
    step(&remote, &mut there, 3).unwrap();
    let (mine, theirs) = (snapshot(here.primary()), snapshot(there.primary()));
    let (mine, theirs) = (mine.unwrap(), theirs.unwrap());
    assert_eq!(mine.metadata.step, theirs.metadata.step);
    assert_eq!(mine.tensors, theirs.tensors);
}

#[derive(Replicate)]
struct Pair {
    trained: TrainState<Linear>,
    fixed: Linear,
}

#[test]
fn all_fields_of_a_value_go_to_the_store() {
    let store = Arc::default();
    let build = |at| {
        move |device: &Device| Pair {
            trained: TrainState::new(layer(device, at), Adam::new(0.01)),
            fixed: layer(device, at + 1.0),
        }
    };
    let first = Remotely::new(&store).scope(build(0.25)).unwrap();
    let second = Remotely::new(&store).scope(build(5.0)).unwrap();
    let weights =
        |pair: &Pair| [&pair.trained.model, &pair.fixed].map(|layer| layer.weight.val().to_data());
    assert_eq!(weights(first.primary()), weights(second.primary()));
    assert_eq!(store.states.lock().unwrap().len(), 2);
}

#[test]
fn variables_are_read_and_changed_in_the_store() {
    let strategy = Remotely::new(&Arc::default());
    for aggregation in [VariableAggregation::None, VariableAggregation::Mean] {
        let options = VariableOptions::default().aggregation(aggregation);
        let variable = strategy.variable(scalar(2.0), options).unwrap();
        strategy
            .run((), |ctx, ()| variable.assign_add(ctx, 3.0_f32))
            .unwrap();
        variable.assign_sub(&strategy, 1.0_f32).unwrap();
        assert_eq!(variable.read(&strategy).unwrap(), scalar(4.0));
        let read = strategy.run((), |ctx, ()| variable.read(ctx)).unwrap();
        assert_eq!(read.values()[0], scalar(4.0));
        assert!(variable.assign(&strategy, 1_i64).is_err());
        let made = strategy.run((), |ctx, ()| ctx.variable(1.0_f32, options).map(|_| ()));
        let error = made.unwrap_err().to_string();
        assert!(error.contains("outside of steps"), "{error}");
        variable.update(&strategy, |_| Ok(scalar(9.0))).unwrap();
        assert_eq!(variable.local_values().unwrap(), [scalar(9.0)]);
    }
}

/// Four batches of one example.
struct Ones;

impl BatchSource for Ones {
    type Batch = Tensor<2>;

    fn batches_per_epoch(&self) -> Option<usize> {
        Some(4)
    }

    fn global_batch_size(&self) -> Option<usize> {
        Some(1)
    }

    fn epoch(&self, _: usize, skip_batches: usize) -> Result<Batches<'_, Tensor<2>>> {
        let one = |_| {
            Ok(PerReplica::new(vec![Tensor::ones(
                [1, 3],
                &Device::default(),
            )]))
        };
        Ok(Box::new((skip_batches..4).map(one)))
    }
}

#[test]
fn fit_tells_the_store_a_learning_rate_when_it_changes_and_not_before_every_step() {
    let store = Arc::new(Store::default());
    let strategy = Remotely::new(&store);
    let mut state = strategy
        .scope(|device| TrainState::new(layer(device, 0.5), Sgd::new(0.1)))
        .unwrap();
    let objective = |_: &StepContext<'_>, model: &Linear, x: Tensor<2>| {
        Ok(Objective::new(model.forward(x).square().sum()).examples(1))
    };
    let schedule = |epoch, rate: f64| if epoch == 1 { rate / 2.0 } else { rate };
    let fit = Fit::new(&strategy).epochs(3);
    let fit = fit.callback(LearningRateScheduler::per_epoch(schedule));
    fit.run(&mut state, &Ones, None, objective).unwrap();
    let state = store.states.lock().unwrap()[""].clone();
    let inside = state.inside();
    assert_eq!((inside.step, inside.learning_rate), (12, Some(0.05)));
    assert_eq!(inside.told, 1);
}
