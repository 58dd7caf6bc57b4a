//! Jobs on several hosts: their launchers meet at a relay and make the same decisions.

mod branch;
mod children;
pub mod group;
mod inner;
mod join;
mod line;
mod link;
mod log;
#[cfg(test)]
mod many;
mod members;
mod outbox;
pub mod part;
pub mod relay;
#[cfg(test)]
mod simulated_tree;
#[cfg(test)]
mod simulation;
pub mod wait;
pub mod wire;
