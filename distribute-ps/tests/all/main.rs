//! Parameter servers, workers and coordinators, on loopback ports and as processes.

mod alone;
mod coordinator;
mod embedding;
mod fit;
mod generated;
mod security;
mod servers;
mod strategy;
