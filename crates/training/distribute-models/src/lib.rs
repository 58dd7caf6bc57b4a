//! Common networks as library code: ResNet, a GPT and a recommender with two towers.
//!
//! Each is a burn module like one of your own, which every strategy trains: [`ResNet`] for images,
//! [`Gpt`] for texts, [`TwoTowers`] for users and items, also with its embedding tables on
//! parameter servers. [`Text`] is a text with its characters as numbers, [`Interactions`] is data
//! for the recommender.
//!
//! ```
//! use distribute_core::prelude::*;
//! use distribute_data::prelude::*;
//! use distribute_models::ResNetConfig;
//!
//! let strategy = MirroredStrategy::builder().replicas(2).build()?;
//! let digits = Digits::open()?.train()?;
//! let train = strategy.distribute_dataset(digits, Batching::global(16).shuffle(1))?;
//! let mut state = strategy.try_scope(|device| {
//!     let model = ResNetConfig::narrow(1, 10).with_widths(vec![4, 8]).init(device)?;
//!     Ok(TrainState::new(model, Sgd::new(0.05).momentum(0.9)))
//! })?;
//! for batch in train.epoch(0).take(2) {
//!     strategy.run((&mut state, batch?), |ctx, (state, (images, labels))| {
//!         let logits = state.model.forward(ctx, images)?;
//!         let loss = average_loss(ctx, sparse_categorical_crossentropy(logits, labels))?;
//!         let gradients = ctx.gradient(&loss, &state.model)?;
//!         state.apply_gradients(ctx, gradients)?;
//!         Ok(loss)
//!     })?;
//! }
//! # Ok::<(), Error>(())
//! ```
#![forbid(unsafe_code)]
#![deny(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod gpt;
mod interactions;
mod resnet;
mod text;
mod two_towers;

pub use gpt::{Gpt, GptConfig};
pub use interactions::{Interaction, InteractionBatch, Interactions};
pub use resnet::{ResNet, ResNetConfig, Stem};
pub use text::{Text, Windows};
pub use two_towers::{Recommender, RecommenderConfig, Tower, TwoTowers, TwoTowersConfig};
