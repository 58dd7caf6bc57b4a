//! Servers and clients over loopback, and as processes of their own.

mod common;
mod placement;
mod processes;
mod refused;
mod rules;
mod snapshots;
mod together;
mod updates;
