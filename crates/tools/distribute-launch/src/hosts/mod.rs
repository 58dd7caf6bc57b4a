//! Jobs on several hosts: their launchers meet at a relay and make the same decisions.

pub mod group;
mod join;
mod link;
mod members;
mod outbox;
pub mod part;
pub mod relay;
#[cfg(test)]
mod simulation;
pub mod wait;
pub mod wire;
