//! Gradients that are reduced in the memory of their devices: over NCCL, with a driver and an NCCL
//! in host memory in their places (`distribute-collectives/fake-nccl`). The devices are CPUs whose
//! tensors are handed to that NCCL by their addresses, as a GPU's are.

#[path = "../../../distribute-collectives/tests/nccl/built.rs"]
mod built;
mod common;
mod failures;
mod fake;
mod gpus;
mod memory;
mod mirrored;
#[path = "../odd_gradients/mod.rs"]
mod odd_gradients;
mod workers;
