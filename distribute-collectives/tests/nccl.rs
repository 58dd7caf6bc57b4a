//! The communicator over NCCL, with a driver and an NCCL in host memory in their places
//! (`fake-nccl/`): real threads, processes, libraries and aborts, no GPU.

mod common;
mod nccl {
    pub mod availability;
    mod built;
    pub mod failures;
    pub mod fake;
    pub mod foreign;
    pub mod operations;
    pub mod processes;
}
