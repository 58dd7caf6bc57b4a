//! Trains a model from a Keras file on one device, for `bench/layers/compare.py`.
//!
//! ```text
//! train_steps MODEL.keras BATCH EXTENT...
//! ```
//!
//! The extents are the shape of one example of its input. It prints the loss of the first step;
//! then each line of its input is a number of seconds, for which it trains with Adam and prints the
//! examples per second. The batch is the rule that is in `tensorflow_steps.py` too.
#![forbid(unsafe_code)]

use std::env;
use std::io::{self, BufRead};
use std::path::PathBuf;
use std::time::Instant;

use burn::tensor::{Int, Tensor, TensorData};
use distribute_core::{
    Adam, Error, Mirrored, OneDeviceStrategy, ReduceOp, Result, StrategyExt, TrainState,
};
use distribute_data::prelude::sparse_categorical_crossentropy;
use distribute_keras::{Mode, Model, read_keras_json, read_weights};

const CLASSES: usize = 10;

struct Training {
    strategy: OneDeviceStrategy,
    state: Mirrored<TrainState<Model>>,
    x: Vec<f32>,
    batch: usize,
}

impl Training {
    fn new(path: &PathBuf, batch: usize, extents: &[usize]) -> Result<Self> {
        let strategy = OneDeviceStrategy::new("cpu:0".parse()?)?;
        let plan = read_keras_json(path)
            .and_then(|spec| spec.plan(extents))
            .map_err(Error::step)?;
        let weights = read_weights(path, &plan).map_err(Error::step)?;
        let state = strategy.try_scope(|device| {
            let model = Model::new(&plan, weights.clone(), device).map_err(Error::step)?;
            Ok(TrainState::new(model, Adam::new(1e-3)))
        })?;
        let count = batch * extents.iter().product::<usize>();
        let number = |i| f64::from((i as u32).wrapping_mul(2_654_435_761)) / f64::from(u32::MAX);
        Ok(Self {
            strategy,
            state,
            x: (0..count).map(|i| number(i) as f32 - 0.5).collect(),
            batch,
        })
    }

    fn step(&mut self) -> Result<f32> {
        let (x, batch) = (&self.x, self.batch);
        let losses = self.strategy.run(&mut self.state, |ctx, state| {
            let values = TensorData::new(x.clone(), [batch, x.len() / batch]);
            let x = Tensor::<2>::from_data(values, ctx.device());
            let labels = Tensor::<1, Int>::arange(0..batch as i64, ctx.device()) % CLASSES as i64;
            let mut rng = ctx.rng(0, state.step());
            let logits = state.model.logits(x, &mut Mode::training(ctx, &mut rng))?;
            let loss = sparse_categorical_crossentropy(logits, labels).mean();
            let loss = ctx.mean_loss(loss)?;
            state.minimize(ctx, &loss)?;
            Ok(loss)
        })?;
        Ok(self.strategy.reduce(ReduceOp::Sum, losses)?.into_scalar())
    }
}

#[expect(clippy::print_stdout, reason = "what it is for")]
fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [path, numbers @ ..] = arguments.as_slice() else {
        return Err(Error::invalid(
            "the arguments are MODEL.keras BATCH EXTENT...",
        ));
    };
    let numbers = numbers.iter().map(|number| number.parse::<usize>());
    let numbers = numbers.collect::<std::result::Result<Vec<_>, _>>();
    let numbers = numbers.map_err(Error::step)?;
    let [batch, extents @ ..] = numbers.as_slice() else {
        return Err(Error::invalid("no batch size is given"));
    };
    let mut training = Training::new(&PathBuf::from(path), *batch, extents)?;
    println!("{}", training.step()?);
    for line in io::stdin().lock().lines() {
        let seconds: f64 = line
            .map_err(Error::step)?
            .trim()
            .parse()
            .map_err(Error::step)?;
        let (start, mut steps) = (Instant::now(), 0);
        while start.elapsed().as_secs_f64() < seconds {
            training.step()?;
            steps += 1;
        }
        println!("{}", (steps * batch) as f64 / start.elapsed().as_secs_f64());
    }
    Ok(())
}
