//! Embedding tables on servers that listen on loopback ports.

mod checkpoints;
mod common;
mod lookups;
mod processes;
mod rules;
mod steps;
mod trained;
