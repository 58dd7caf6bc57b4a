//! Library code that works with and without a strategy: ask for the current one.
//!
//! A function that prints, allocates or scales by the number of replicas does not need the strategy
//! as an argument. Outside of any scope it gets the default strategy, with one replica.
#![forbid(unsafe_code)]

use distribute::current_strategy;
use distribute::prelude::*;

/// An example of a library function: scales the learning rate with the number of replicas.
fn scaled_learning_rate(base: f64) -> f64 {
    base * current_strategy().num_replicas_in_sync() as f64
}

fn main() -> Result<()> {
    println!(
        "{}: {}",
        current_strategy().name(),
        scaled_learning_rate(0.1)
    );

    let strategy = MirroredStrategy::builder().replicas(4).build()?;
    strategy.within(|| {
        println!(
            "{}: {}",
            current_strategy().name(),
            scaled_learning_rate(0.1)
        );
    })?;

    // Inside a step the current strategy is the one that runs it.
    let rates = strategy.run((), |_ctx, ()| Ok(scaled_learning_rate(0.1)))?;
    println!("in a step: {:?}", rates.values());

    println!("{} again", current_strategy().name());
    Ok(())
}
