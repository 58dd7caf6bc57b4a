//! What burn's own generator draws in a step: the stream of its replica.
//!
//! burn's backends have one generator per process each (`SEED` of burn-flex, burn-ndarray and
//! cubek), which no replica can have alone. So replicas that draw from it take turns: one holds the
//! generator while its step computes, after it was seeded for this replica, and gives it up where
//! the step waits for others, and in the backward pass, which draws nothing. When it goes on it
//! seeds the generator again.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard};

use burn::module::{Flag, Module, ModuleVisitor, Param};
use burn::tensor::Device;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::sync::lock;

/// Who may draw from the generators of burn's backends. They are global, so this is too: it guards
/// nothing but them.
static GENERATOR: Mutex<()> = Mutex::new(());

thread_local! {
    /// The stream of the step that runs on this thread: whatever waits for other replicas gives
    /// the generator up. Steps do not nest.
    static CURRENT: RefCell<Option<Rc<OwnRandom>>> = const { RefCell::new(None) };
}

/// Hands burn's generator to the step that runs on this thread; another stream of the step ends.
pub(crate) fn begin_random(random: OwnRandom) {
    drop(CURRENT.take());
    random.hold();
    CURRENT.set(Some(Rc::new(random)));
}

/// The time in which a step runs on this thread: its stream ends when this is dropped, also while a
/// panic unwinds.
pub(crate) struct RandomEnd;

impl Drop for RandomEnd {
    fn drop(&mut self) {
        drop(CURRENT.take());
    }
}

/// Burn's generator is given up, if the step that runs on this thread holds it, until the drop.
pub(crate) struct PausedRandom(Option<Rc<OwnRandom>>);

/// Gives up burn's generator until the guard is dropped.
pub(crate) fn pause_random() -> PausedRandom {
    let random = CURRENT.with_borrow(Clone::clone);
    PausedRandom(random.filter(|random| random.give_up()))
}

impl Drop for PausedRandom {
    fn drop(&mut self) {
        if let Some(random) = &self.0 {
            random.hold();
        }
    }
}

/// The stream of the step that runs on this thread, which has been given up and is set aside for
/// another one until this is dropped. The other one is given up then; that of the step is not
/// taken up.
pub(crate) struct Instead(Option<Rc<OwnRandom>>);

/// Hands burn's generator to another stream in place of that of the step on this thread, which has
/// [given it up](pause_random).
pub(crate) fn begin_instead(random: Option<OwnRandom>) -> Instead {
    let own = CURRENT.take();
    if let Some(random) = random {
        random.hold();
        CURRENT.set(Some(Rc::new(random)));
    }
    Instead(own)
}

impl Drop for Instead {
    fn drop(&mut self) {
        drop(CURRENT.take());
        CURRENT.set(self.0.take());
    }
}

/// The layers of burn that draw in their forward pass.
const LAYERS: [&str; 2] = ["Struct:Dropout", "Struct:GaussianNoise"];

/// What the random numbers of a replica's step follow from, beside the replica's id.
#[derive(Debug, Clone, Copy)]
pub struct RandomStream {
    pub(crate) seed: u64,
    /// The updates so far.
    pub(crate) step: u64,
    /// The micro-batches since the last update.
    pub(crate) micro_batch: u32,
    /// The user has chosen the seed: the stream is that of a single replica too.
    pub(crate) is_chosen: bool,
}

/// The stream of one step of one replica.
pub(crate) struct OwnRandom {
    device: Device,
    stream: RandomStream,
    replica: u64,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    held: Option<MutexGuard<'static, ()>>,
    /// How many times the generator was seeded.
    part: u32,
}

impl OwnRandom {
    /// The stream of the replica; its generator is not held yet.
    pub(crate) fn new(device: &Device, replica: usize, stream: RandomStream) -> Self {
        Self {
            device: device.clone(),
            stream,
            replica: replica as u64,
            state: RefCell::default(),
        }
    }

    /// Waits for the generator, and seeds it.
    pub(crate) fn hold(&self) {
        let held = lock(&GENERATOR);
        let mut state = self.state.borrow_mut();
        self.device
            .seed(burn_seed(self.stream, self.replica, state.part));
        state.part = state.part.wrapping_add(1);
        state.held = Some(held);
    }

    /// Gives the generator up; whether it was held.
    pub(crate) fn give_up(&self) -> bool {
        self.state.borrow_mut().held.take().is_some()
    }
}

/// The seed of burn's generator for a part of a replica's step.
fn burn_seed(stream: RandomStream, replica: u64, part: u32) -> u64 {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&stream.seed.to_le_bytes());
    key[8..16].copy_from_slice(&stream.step.to_le_bytes());
    key[16..24].copy_from_slice(&replica.to_le_bytes());
    let mut numbers = ChaCha8Rng::from_seed(key);
    // A stream that no `ReplicaContext::rng` with the same seed has.
    numbers.set_stream(((u64::from(stream.micro_batch) << 32) | u64::from(part)) + 1);
    numbers.next_u64()
}

/// Seeds the generator for what is drawn after a step: which replica was the last to draw in it
/// depends on timing.
pub(crate) fn seed_after(device: &Device, stream: RandomStream) {
    let _held = lock(&GENERATOR);
    device.seed(burn_seed(stream, u64::MAX, 0));
}

/// Whether a model has a layer of burn that draws random numbers while it is trained.
pub(crate) fn draws_at_random<M: Module>(model: &M) -> bool {
    let mut search = Search::default();
    model.visit(&mut search);
    search.found
}

#[derive(Default)]
struct Search {
    /// Whether each of the types that the visitor is in is one of the layers.
    layers: Vec<bool>,
    found: bool,
}

impl ModuleVisitor for Search {
    fn enter_module(&mut self, _: &str, container: &str) {
        self.layers.push(LAYERS.contains(&container));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.layers.pop();
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        let is_layer = self.layers.last().is_some_and(|is_layer| *is_layer);
        self.found |= is_layer && flag.val().is_enabled();
    }
}
