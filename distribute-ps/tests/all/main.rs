//! Parameter servers, workers and coordinators, on loopback ports and as processes.

mod coordinator;
mod embedding;
mod fit;
mod security;
mod servers;
mod stopwatch;
mod strategy;
