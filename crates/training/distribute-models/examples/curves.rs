//! Prints the losses of the networks that are compared with PyTorch's, for
//! `bench/networks/compare.py`: one JSON line.
//!
//! ```text
//! curves resnet-narrow|resnet-18|gpt|two-towers STEPS
//! ```
#![forbid(unsafe_code)]

#[path = "../tests/all/comparison.rs"]
mod comparison;

use std::env;

use distribute_core::prelude::*;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [network, steps] = arguments.as_slice() else {
        let names = comparison::NETWORKS.join("|");
        return Err(Error::invalid(format!("the arguments are {names} STEPS")));
    };
    let steps = steps.parse().map_err(Error::step)?;
    let strategy = OneDeviceStrategy::new("cpu:0".parse()?)?;
    let losses = comparison::losses(&strategy, network, steps)?;
    println!("{}", serde_json::to_string(&losses).map_err(Error::step)?);
    Ok(())
}
