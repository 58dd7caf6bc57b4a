//! Jobs of real processes, and launchers that are processes themselves.

mod chief;
mod common;
mod cuts;
mod elastic;
mod eventually;
mod hosts;
mod jobs;
mod launcher;
mod leaks;
mod progress;
mod slow;
mod stuck;
mod tree;
mod trust;
