//! `TpuStrategy` on XLA's CPU client: the same steps as under `MirroredStrategy`, with the same
//! weights in the end.

mod ahead;
mod errors;
mod fit;
mod models;
mod numerics;
mod random;
mod reductions;
mod residency;
mod support;
