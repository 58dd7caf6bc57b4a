//! An actor and a critic that share one loss: one backward pass gives the gradients of both.
//!
//! Run it with `cargo run --release -p examples --bin actor_critic`. The environment is a corridor
//! of nine cells. An episode begins in the middle and ends at the right end, or after 30 steps;
//! each step costs 0.1, the end is worth 1. The shortest way has 4 steps, walking at random takes
//! 20.
#![forbid(unsafe_code)]

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Int, activation};
use distribute::prelude::*;
use rand_chacha::rand_core::Rng;

const CELLS: usize = 9;
const LIMIT: usize = 30;
const EPISODES: usize = 4; // of each replica, in one update

#[derive(Replicate)]
struct Agent {
    /// From a cell to the logits of "left" and "right".
    actor: TrainState<Linear>,
    /// From a cell to what an episode is worth from there on.
    critic: TrainState<Linear>,
}

/// Cells, actions, and what came after them.
#[derive(Default)]
struct Seen {
    cells: Vec<usize>,
    actions: Vec<i64>,
    returns: Vec<f32>,
}

impl Seen {
    /// One more episode; `right` are the chances of a step to the right.
    fn play(&mut self, right: &[f32], random: &mut impl Rng) {
        let (mut cell, begin) = (CELLS / 2, self.cells.len());
        while cell + 1 < CELLS && self.cells.len() - begin < LIMIT {
            let is_right = (random.next_u32() as f32) < right[cell] * u32::MAX as f32;
            self.cells.push(cell);
            self.actions.push(i64::from(is_right));
            cell = cell.saturating_add_signed(if is_right { 1 } else { -1 });
        }
        let mut worth = if cell + 1 == CELLS { 1.0 } else { 0.0 };
        self.returns.resize(self.cells.len(), 0.0);
        for before in self.returns[begin..].iter_mut().rev() {
            worth = 0.95 * worth - 0.1;
            *before = worth;
        }
    }
}

impl Agent {
    /// Plays and learns; the mean length of the episodes.
    fn step(&mut self, ctx: &ReplicaContext) -> Result<f64> {
        let Self { actor, critic } = self;
        let all_cells = Tensor::<2>::eye(CELLS, ctx.device());
        let chances = activation::softmax(actor.model.forward(all_cells.clone()), 1).into_data();
        let right: Vec<f32> = chances.iter::<f32>().skip(1).step_by(2).collect();
        let (mut seen, mut random) = (Seen::default(), ctx.rng(3, actor.step()));
        (0..EPISODES).for_each(|_| seen.play(&right, &mut random));

        let count = seen.cells.len();
        let cells: Vec<i64> = seen.cells.iter().map(|cell| *cell as i64).collect();
        let cells = Tensor::<1, Int>::from_data(TensorData::new(cells, [count]), ctx.device());
        let actions = TensorData::new(seen.actions, [count, 1]);
        let actions = Tensor::<2, Int>::from_data(actions, ctx.device());
        let returns = TensorData::new(seen.returns, [count, 1]);
        let returns = Tensor::<2>::from_data(returns, ctx.device());
        let inputs = all_cells.select(0, cells);
        let advantage = returns - critic.model.forward(inputs.clone());
        let chosen = activation::log_softmax(actor.model.forward(inputs), 1).gather(1, actions);
        let per_step = advantage.clone().powf_scalar(2.0) - chosen * advantage.detach();
        // A mean over all steps of this replica, whose number differs from the others'.
        let loss = ctx.mean_loss_of(per_step.mean(), count as f64)?;
        let (of_actor, of_critic) = ctx.gradients(&loss, (&actor.model, &critic.model))?;
        actor.apply_gradients(ctx, of_actor)?;
        critic.apply_gradients(ctx, of_critic)?;
        Ok(count as f64 / EPISODES as f64)
    }
}

fn main() -> Result<()> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let mut agent = strategy.scope(|device| {
        device.seed(1);
        Agent {
            actor: TrainState::new(LinearConfig::new(CELLS, 2).init(device), Adam::new(0.05)),
            critic: TrainState::new(LinearConfig::new(CELLS, 1).init(device), Adam::new(0.1)),
        }
    })?;
    for update in 0..=100 {
        let lengths = strategy.run(&mut agent, |ctx, agent| agent.step(ctx))?;
        if update % 20 == 0 {
            let length = strategy.reduce(ReduceOp::Mean, lengths)?;
            println!("update {update}: steps to the end {length:.1}");
        }
    }
    Ok(())
}
