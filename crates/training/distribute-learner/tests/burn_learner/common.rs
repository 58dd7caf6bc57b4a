//! A small model, its data, and a training of it that ends within a limit.

use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::{LrScheduler, LrSchedulerRecord};
use burn::module::{Module, Param};
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor, TensorData};
use burn_train::{
    InferenceStep, Learner, LearningResult, RegressionOutput, SupervisedTraining, TrainOutput,
    TrainStep, TrainingStrategy, logger::InMemoryMetricLogger,
};
use distribute_core::collectives::{Buffer, Communicator};
use distribute_core::{
    CrossDeviceOps, DirectAllReduce, MirroredStrategy, ReduceOp, Result, Strategy,
};
use distribute_learner::LearnerStrategy;

use crate::events::Recorder;

pub type Loader = Arc<dyn DataLoader<Batch>>;
pub type Training = SupervisedTraining<Net>;

/// What happens at the batch that starts with a row.
type OnBatch = Arc<dyn Fn(usize) + Send + Sync>;

/// The name of a replica's thread and the weights after an update.
type Update = (String, Vec<f32>);

/// What to do in every replica before a call of `all_reduce`.
type OnAllReduce = Box<dyn Fn(usize) -> Result<()> + Send + Sync>;

/// All-reduces after a look at the replica; an error is returned in place of the sum.
pub struct BeforeAllReduce(OnAllReduce);

impl BeforeAllReduce {
    pub fn new(look: impl Fn(usize) -> Result<()> + Send + Sync + 'static) -> Self {
        BeforeAllReduce(Box::new(look))
    }
}

impl std::fmt::Debug for BeforeAllReduce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BeforeAllReduce")
    }
}

impl CrossDeviceOps for BeforeAllReduce {
    fn name(&self) -> &str {
        "before-all-reduce"
    }

    fn all_reduce(
        &self,
        communicator: &mut dyn Communicator,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        (self.0)(communicator.rank())?;
        DirectAllReduce.all_reduce(communicator, op, buffers)
    }
}

/// Sees what the replicas do.
#[derive(Clone)]
pub struct Spy {
    on_batch: OnBatch,
    updates: Arc<Mutex<Vec<Update>>>,
}

impl std::fmt::Debug for Spy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Spy")
    }
}

impl Spy {
    pub fn new(on_batch: impl Fn(usize) + Send + Sync + 'static) -> Self {
        Self {
            on_batch: Arc::new(on_batch),
            updates: Arc::default(),
        }
    }

    /// How many updates the replicas of this model made together.
    pub fn updates(&self) -> usize {
        self.updates.lock().unwrap().len()
    }

    /// The weights after each update of the replica whose thread has this name.
    pub fn weights_of(&self, thread: &str) -> Vec<Vec<f32>> {
        let updates = self.updates.lock().unwrap();
        let of_thread = updates.iter().filter(|(name, _)| name == thread);
        of_thread.map(|(_, weights)| weights.clone()).collect()
    }
}

/// `extra` takes part in batches that start with an odd row only.
#[derive(Module, Debug)]
pub struct Net {
    hidden: Linear,
    output: Linear,
    extra: Param<Tensor<2>>,
    #[module(skip)]
    spy: Spy,
}

impl Net {
    pub fn new(spy: Spy) -> Self {
        Self::begun_at(spy, 0.0)
    }

    /// With other weights for every `seed`.
    pub fn begun_at(spy: Spy, seed: f32) -> Self {
        let device = Device::flex().autodiff();
        let fill = |linear: Linear, seed: f32| Linear {
            weight: linear.weight.map(|weight| {
                let shape = weight.shape();
                let values: Vec<f32> = (0..shape.num_elements())
                    .map(|i| ((i as f32 + seed) * 12.9898).sin() * 0.5)
                    .collect();
                Tensor::from_data(TensorData::new(values, shape), &device).require_grad()
            }),
            bias: linear.bias,
        };
        let zeros = burn::nn::Initializer::Zeros;
        let linear = |d_in, d_out| LinearConfig::new(d_in, d_out).with_initializer(zeros.clone());
        Self {
            hidden: fill(linear(3, 5).init(&device), 1.0 + seed),
            output: fill(linear(5, 1).init(&device), 2.0 + seed),
            extra: Param::from_tensor(Tensor::from_data([[0.25_f32]], &device)),
            spy,
        }
    }

    fn forward(&self, batch: &Batch) -> Tensor<2> {
        let output = self
            .output
            .forward(tanh(self.hidden.forward(batch.x.clone())));
        match batch.first % 2 {
            0 => output,
            _ => output + self.extra.val(),
        }
    }

    pub fn loss(&self, batch: &Batch) -> Tensor<1> {
        MseLoss::new().forward(self.forward(batch), batch.y.clone(), Reduction::Mean)
    }

    pub fn weights(&self) -> Vec<f32> {
        let parts = [
            self.hidden.weight.val().into_data(),
            self.hidden.bias.as_ref().unwrap().val().into_data(),
            self.output.weight.val().into_data(),
            self.output.bias.as_ref().unwrap().val().into_data(),
            self.extra.val().into_data(),
        ];
        let values = parts.iter().map(|part| part.as_slice::<f32>().unwrap());
        values.flatten().copied().collect()
    }

    fn regression(&self, batch: Batch) -> RegressionOutput {
        let output = self.forward(&batch);
        RegressionOutput::new(self.loss(&batch), output, batch.y)
    }
}

impl TrainStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        (self.spy.on_batch)(batch.first);
        let item = self.regression(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }

    fn optimize(
        self,
        optimizer: &mut ModuleOptimizer,
        rate: ModuleLearningRate,
        gradients: GradientsParams,
    ) -> Self {
        let model = optimizer.step(rate, self, gradients);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("main").to_string();
        let mut updates = model.spy.updates.lock().unwrap();
        updates.push((name, model.weights()));
        drop(updates);
        model
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> RegressionOutput {
        self.regression(batch)
    }
}

/// One example.
#[derive(Debug, Clone)]
pub struct Row {
    pub index: usize,
    pub x: [f32; 3],
    pub y: f32,
}

pub fn rows(count: usize) -> Vec<Row> {
    let row = |index: usize| {
        let x = [0.0, 1.0, 2.0].map(|k| ((index as f32 + k) * 78.233).sin());
        let y = x[0] * 2.0 - x[1] + 0.5 * x[2];
        Row { index, x, y }
    };
    (0..count).map(row).collect()
}

#[derive(Debug, Clone)]
pub struct Batch {
    pub first: usize,
    pub x: Tensor<2>,
    pub y: Tensor<2>,
}

pub struct Stack;

impl Batcher<Row, Batch> for Stack {
    fn batch(&self, rows: Vec<Row>, device: &Device) -> Batch {
        let count = rows.len();
        let x: Vec<f32> = rows.iter().flat_map(|row| row.x).collect();
        let y: Vec<f32> = rows.iter().map(|row| row.y).collect();
        Batch {
            first: rows[0].index,
            x: Tensor::from_data(TensorData::new(x, [count, 3]), device),
            y: Tensor::from_data(TensorData::new(y, [count, 1]), device),
        }
    }
}

/// A loader of the first `count` rows in order.
pub fn loader(count: usize, batch: usize) -> Loader {
    DataLoaderBuilder::new(Stack)
        .batch_size(batch)
        .build(InMemDataset::new(rows(count)))
}

/// The batches of `loader`, as the expected results are computed from them.
pub fn batches(count: usize, batch: usize) -> Vec<Batch> {
    let device = Device::flex().autodiff();
    let rows = rows(count);
    let chunks = rows.chunks(batch);
    chunks
        .map(|chunk| Stack.batch(chunk.to_vec(), &device))
        .collect()
}

/// A learning rate of its own for every update.
#[derive(Clone)]
pub struct Falling(pub u32);

impl Falling {
    pub fn at(update: u32) -> f64 {
        0.1 / (1.0 + f64::from(update) / 4.0)
    }
}

impl LrScheduler for Falling {
    fn step(&mut self) -> f64 {
        self.0 += 1;
        Self::at(self.0 - 1)
    }

    fn to_record(&self) -> LrSchedulerRecord {
        LrSchedulerRecord::new().with_scalar("updates", self.0)
    }

    fn load_record(&mut self, record: LrSchedulerRecord) {
        self.0 = record.scalar("updates").unwrap();
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Optimizer {
    Sgd,
    Adam,
}

impl Optimizer {
    pub fn build(self) -> ModuleOptimizer {
        match self {
            Self::Sgd => SgdConfig::new().init(),
            Self::Adam => AdamConfig::new().init(),
        }
    }
}

pub fn mirrored(replicas: usize) -> MirroredStrategy {
    let timeout = Duration::from_secs(50);
    let builder = MirroredStrategy::builder().replicas(replicas);
    builder.timeout(timeout).build().unwrap()
}

pub fn custom(strategy: impl Strategy + 'static) -> TrainingStrategy<Net> {
    TrainingStrategy::Custom(Arc::new(LearnerStrategy::new(strategy)))
}

/// A training that prints nothing.
pub fn training_in(folder: &Path, train: Loader, strategy: TrainingStrategy<Net>) -> Training {
    SupervisedTraining::new(folder, train, loader(4, 2))
        .with_training_strategy(strategy)
        .with_metric_logger(InMemoryMetricLogger::new())
        .with_application_logger(None)
        .renderer(Box::new(Recorder::default()))
}

/// Trains the model; ends the whole test process when that takes longer than any of these trainings
/// can. (burn's training cannot be moved to another thread, so no other thread could give up on
/// it.)
pub fn launch(training: Training, optimizer: Optimizer, spy: Spy) -> LearningResult<Net> {
    launch_model(training, optimizer, Net::new(spy))
}

/// As [`launch`], with a model that exists.
pub fn launch_model(training: Training, optimizer: Optimizer, model: Net) -> LearningResult<Net> {
    let (done, waiting) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let outcome = waiting.recv_timeout(Duration::from_secs(60));
        if outcome == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("hard limit of 60 s passed: a hang");
            std::process::abort();
        }
    });
    let learner = Learner::new(model, optimizer.build(), Falling(0));
    let result = training.launch(learner);
    drop(done);
    watch.join().unwrap();
    result
}

/// The weights after one epoch over `train`, and what the replicas did.
pub fn train(
    train: Loader,
    strategy: TrainingStrategy<Net>,
    optimizer: Optimizer,
    configure: impl FnOnce(Training) -> Training,
) -> (Vec<f32>, Spy) {
    let spy = Spy::new(|_| ());
    let folder = tempfile::tempdir().unwrap();
    let training = training_in(folder.path(), train, strategy);
    let result = launch(configure(training), optimizer, spy.clone());
    assert!(result.error.is_none(), "{:?}", result.error);
    (result.model.weights(), spy)
}

/// The weights that burn's optimizer makes of the batches of each step of each update: the sum
/// over the steps of the mean over the batches, as one loss.
pub fn expected(updates: Vec<Vec<&[Batch]>>, optimizer: Optimizer) -> Vec<f32> {
    let mut model = Net::new(Spy::new(|_| ()));
    let mut optimizer = optimizer.build();
    for (index, steps) in (0..).zip(updates) {
        let mean = |batches: &[Batch]| {
            let losses = batches.iter().map(|batch| model.loss(batch));
            losses.reduce(Tensor::add).unwrap() / batches.len() as f32
        };
        let loss = steps.into_iter().map(mean).reduce(Tensor::add).unwrap();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(Falling::at(index), model, gradients);
    }
    model.weights()
}

pub fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found - expected).abs() <= 1e-6,
            "{found} is not {expected}"
        );
    }
}

/// Whether all replicas hold the same bits after every one of `updates` updates.
pub fn assert_equal_replicas(spy: &Spy, replicas: usize, updates: usize) {
    let first = spy.weights_of("replica-0.0");
    assert_eq!(first.len(), updates);
    for replica in 1..replicas {
        assert_eq!(spy.weights_of(&format!("replica-{replica}.0")), first);
    }
}
