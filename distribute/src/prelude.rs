//! The names that a training program uses: `use distribute::prelude::*;`.
//!
//! With [`burn`] among them, a program needs no other dependency: `use burn::..` and
//! burn's derive macros find it here.

pub use crate::{Nest, Replicate};
pub use burn;
pub use distribute_core::prelude::*;
#[cfg(feature = "cuda")]
pub use distribute_cuda::{all_gpus, cuda};
pub use distribute_data::prelude::*;
pub use distribute_fit::prelude::*;
#[cfg(feature = "learner")]
pub use distribute_learner::{LearnerStrategy, TrainingExt};
#[cfg(feature = "parameter-server")]
pub use distribute_ps::ParameterServerStrategy;
#[cfg(feature = "tpu")]
pub use distribute_tpu_xla::{TpuClusterResolver, TpuStrategy};
