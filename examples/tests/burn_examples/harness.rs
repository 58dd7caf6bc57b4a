//! Strategies that a port runs under, and what its loops read.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Int;
use distribute::collectives::{GroupOptions, in_process};
use distribute::prelude::*;

/// The steps that losses are compared over.
pub const STEPS: usize = 30;

/// The examples of a batch of all loops here: three replicas get 6, 6 and 4 of them.
pub const BATCH: usize = 16;

/// No port takes a tenth of it.
const LIMIT: Duration = Duration::from_secs(120);

/// What `draw` makes of burn's random numbers after this seed. burn has one generator per process,
/// which steps with dropout seed: no other step draws from it during a step that has seeded it.
pub fn seeded<T: Send>(seed: u64, draw: impl FnOnce(&Device) -> T + Send) -> T {
    let slot = Mutex::new((Some(draw), None));
    let strategy = MirroredStrategy::builder().replicas(1).build().unwrap();
    let drawn = strategy.run((), |ctx, ()| {
        ctx.seed(seed, 0);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        slot.1 = slot.0.take().map(|draw| draw(&Device::flex().autodiff()));
        Ok(())
    });
    drawn.unwrap();
    let (_, drawn) = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
    drawn.unwrap()
}

/// A model whose parameters are there: burn draws them when they are first read, in the order of
/// use.
pub fn model<M: Module>(seed: u64, build: impl FnOnce(&Device) -> M + Send) -> M {
    struct Read;
    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
            let _ = parameter.base();
        }
    }
    seeded(seed, |device| {
        let model = build(device);
        model.visit(&mut Read);
        model
    })
}

/// Numbers of a generator with a seed (SplitMix64), the same on every worker.
#[derive(Debug, Clone)]
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Of a normal distribution, nearly: the sum of twelve.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }
}

/// A dataset and a batcher: `batch` has the arguments of burn's `Batcher::batch`.
#[derive(Clone)]
pub struct Items<I, B> {
    items: Arc<Vec<I>>,
    batch: fn(Vec<I>, &Device) -> B,
}

impl<I: Clone + Send + Sync + 'static, B: Nest + Send + 'static> Items<I, B> {
    pub fn new(items: Vec<I>, batch: fn(Vec<I>, &Device) -> B) -> Self {
        Self {
            items: Arc::new(items),
            batch,
        }
    }

    /// What burn's `DataLoaderBuilder` makes: batches of this size, on a device.
    pub fn loader(&self, size: usize, device: &Device) -> DataLoader<I, B> {
        DataLoader {
            items: self.items.clone(),
            batch: self.batch,
            size,
            device: device.clone(),
        }
    }

    /// The same for a strategy.
    pub fn dataset(&self) -> impl Dataset<Batch = B> + use<I, B> {
        dataset(self.items.clone(), self.batch)
    }
}

/// Batches of burn's loop.
pub struct DataLoader<I, B> {
    items: Arc<Vec<I>>,
    batch: fn(Vec<I>, &Device) -> B,
    size: usize,
    device: Device,
}

impl<I: Clone, B> DataLoader<I, B> {
    /// An epoch. As in burn, each batch may be an error.
    pub fn iter(&self) -> impl Iterator<Item = Result<B>> {
        let parts = self.items.chunks(self.size);
        parts.map(|items| Ok((self.batch)(items.to_vec(), &self.device)))
    }
}

fn dataset<I, B>(items: Arc<Vec<I>>, batch: fn(Vec<I>, &Device) -> B) -> impl Dataset<Batch = B>
where
    I: Clone + Send + Sync + 'static,
    B: Nest + Send + 'static,
{
    FnDataset::new(items.len(), move |indices: &[usize], device: &Device| {
        let items = indices.iter().map(|&index| items[index].clone());
        Ok(batch(items.collect(), device))
    })
}

/// A matrix of rows on the host.
pub fn rows(rows: &[Vec<f32>], width: usize, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = rows.iter().flatten().copied().collect();
    Tensor::from_data(TensorData::new(values, [rows.len(), width]), device)
}

pub fn integers(values: Vec<i64>, device: &Device) -> Tensor<1, Int> {
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}

/// Two workers, each a thread with one replica; what each returned.
fn two_workers<T: Send + 'static>(
    program: impl Fn(&dyn Strategy) -> Result<T> + Send + Clone + 'static,
) -> Vec<T> {
    let (done, results) = mpsc::channel();
    let options = GroupOptions::default().timeout(LIMIT);
    for endpoint in in_process(2, options).unwrap() {
        let (done, program) = (done.clone(), program.clone());
        thread::spawn(move || {
            let builder = MultiWorkerMirroredStrategy::builder().replicas(1);
            let strategy = builder.communicator(Box::new(endpoint)).build();
            let _ = done.send(strategy.and_then(|strategy| program(&strategy)));
        });
    }
    let wait = |_| results.recv_timeout(LIMIT).expect("a worker hangs");
    (0..2).map(wait).map(Result::unwrap).collect()
}

/// Runs a program on one device, on two and three replicas and on two workers.
pub fn under_strategies<T: Send + 'static>(
    program: impl Fn(&dyn Strategy) -> Result<T> + Send + Clone + 'static,
) -> Vec<(&'static str, T)> {
    let mut outcomes = vec![("one device", program(&DefaultStrategy::new()).unwrap())];
    for (name, replicas) in [("two replicas", 2), ("three replicas", 3)] {
        let builder = MirroredStrategy::builder().replicas(replicas);
        outcomes.push((name, program(&builder.build().unwrap()).unwrap()));
    }
    let [first, second] = ["worker 0 of 2", "worker 1 of 2"];
    let mut workers = two_workers(program).into_iter();
    outcomes.extend(workers.next().map(|outcome| (first, outcome)));
    outcomes.extend(workers.next().map(|outcome| (second, outcome)));
    assert_eq!(outcomes.len(), 5);
    outcomes
}

/// The largest distance of losses from burn's own, relative where burn's are above 1.
pub fn distance(wanted: &[f32], found: &[f32]) -> f32 {
    assert_eq!(wanted.len(), found.len());
    let pairs = wanted.iter().zip(found);
    pairs.fold(0.0, |most, (wanted, found)| {
        let distance = (wanted - found).abs() / wanted.abs().max(1.0);
        assert!(distance.is_finite(), "{wanted}, {found}");
        most.max(distance)
    })
}

/// The losses of a program are burn's own to 1e-6, under all strategies.
#[track_caller]
pub fn has_losses_of_burn(
    wanted: &[f32],
    program: impl Fn(&dyn Strategy) -> Result<Vec<f32>> + Send + Clone + 'static,
) {
    assert!(wanted.len() >= STEPS, "{} losses", wanted.len());
    for (name, found) in under_strategies(program) {
        let most = distance(wanted, &found);
        assert!(most <= 1e-6, "{name}: {most:e}\n{wanted:?}\n{found:?}");
    }
}

/// The losses of the second epoch are lower than in the first one: what is compared is a training.
#[track_caller]
pub fn falls(losses: &[f32]) {
    let (first, second) = losses.split_at(losses.len() / 2);
    let [first, second] = [first, second].map(|epoch| epoch.iter().sum::<f32>());
    assert!(second < first, "{first} -> {second}: {losses:?}");
}
