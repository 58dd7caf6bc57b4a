//! A store in memory, and a strategy whose values live in it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::optim::{Coefficient, Optimizer, ParameterUpdate};
use distribute_core::remote::{
    Pushed, RemoteChange, RemoteSpec, RemoteState, RemoteStore, RemoteTensor, RemoteValues,
    RemoteVariable, RemoteVersion, RowGradients, no_tables,
};
use distribute_core::{
    Adam, Applied, InputContext, Mirrored, OneDeviceStrategy, Replica, ReplicaStep, Replicated,
    Result, Sgd, Strategy, StrategyExt, StrategyId, TrainState, run_on_calling_thread,
};

/// A store in memory. Several strategies may share it, as processes do.
#[derive(Debug, Default)]
pub struct Store {
    pub states: Mutex<BTreeMap<String, Arc<State>>>,
    pub drops: Arc<AtomicBool>,
    pub panics: Arc<AtomicBool>,
}

#[derive(Debug)]
pub struct State {
    optimizer: Option<Arc<dyn Optimizer>>,
    inside: Mutex<Inside>,
    drops: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
}

#[derive(Debug)]
pub struct Inside {
    tensors: Vec<RemoteTensor>,
    versions: Vec<u64>,
    slots: Vec<Vec<Tensor<1>>>,
    pub step: u64,
    pub learning_rate: Option<f64>,
    /// How often it was told one.
    pub told: usize,
}

fn flat(data: &TensorData) -> Tensor<1> {
    let count = data.shape().num_elements();
    Tensor::from_data(
        TensorData::new(data.try_to_vec::<f32>().expect("f32"), [count]),
        &Device::default(),
    )
}

impl State {
    pub fn inside(&self) -> MutexGuard<'_, Inside> {
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
            panics: Arc::clone(&self.panics),
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
        let panics = self.panics.swap(false, Ordering::Relaxed);
        assert!(!panics, "a push that panics");
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
                slots = optimizer.new_slots(&value);
            }
            let updated = optimizer.update(ParameterUpdate {
                path: &inside.tensors[index].name,
                coefficients: &coefficients,
                parameter: value,
                gradient: flat(&gradient),
                slots,
                whole: None,
            })?;
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
pub struct Remotely {
    pub store: Arc<Store>,
    replica: Arc<[Replica; 1]>,
    id: StrategyId,
}

impl Remotely {
    pub fn new(store: &Arc<Store>) -> Self {
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
        run_on_calling_thread(self.handle(), &self.replica[0], step)
    }
}

/// A layer with these numbers, whatever random ones burn made.
pub fn layer(device: &Device, first: f32) -> Linear {
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

pub type Built = Mirrored<TrainState<Linear>>;

/// One step with the batch of this number; what `apply_gradients` said.
pub fn step(strategy: &dyn Strategy, state: &mut Built, number: usize) -> Result<Applied> {
    let said = strategy.run((state, Replicated(number)), |ctx, (state, number)| {
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

pub fn one_device() -> OneDeviceStrategy {
    OneDeviceStrategy::new("cpu:0".parse().expect("a device")).expect("a strategy")
}
