//! Replacements for parts that a build without the feature `full` does not have.

use crate::failure::Failure;

/// An error that a flag is not available in this build, and what to do.
fn left_out(flag: &str) -> Failure {
    Failure::usage(format!(
        "{flag} is left out of this build (--no-default-features); build the whole program with \
         `cargo build --release -p distribute-cli`"
    ))
}

pub(crate) mod parameter_server {
    use super::left_out;
    use crate::failure::Failure;
    use crate::flags::TrainArgs;
    use crate::signals::Signals;

    pub(crate) fn refuse_flags(_: &TrainArgs) -> Result<(), Failure> {
        Err(left_out("--strategy parameter-server"))
    }

    pub(crate) fn run(_: TrainArgs, _: &Signals) -> Result<(), Failure> {
        Err(left_out("--strategy parameter-server"))
    }
}

pub(crate) mod tpu {
    use std::sync::Arc;

    use distribute_core::Strategy;

    use super::left_out;
    use crate::failure::Failure;
    use crate::flags::{DeviceArgs, TpuArgs};

    /// There is none.
    pub(crate) enum Tpu {}

    impl Tpu {
        pub(crate) fn open(_: &TpuArgs, _: &DeviceArgs, _: bool) -> Result<Self, Failure> {
            Err(left_out("--strategy tpu"))
        }

        pub(crate) fn strategy(&self) -> Arc<dyn Strategy> {
            match *self {}
        }

        pub(crate) fn device_names(&self) -> Vec<String> {
            match *self {}
        }

        pub(crate) fn description(&self) -> Vec<String> {
            match *self {}
        }
    }
}
