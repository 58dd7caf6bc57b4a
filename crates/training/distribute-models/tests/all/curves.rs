//! The losses of the networks beside the losses of the same networks in PyTorch, which
//! `bench/networks/compare.py` has recorded.

#[path = "../../../../../distribute-tpu-xla/tests/tpu_xla/plugins.rs"]
#[expect(dead_code, reason = "shared with tests that use all of it")]
mod plugins;

use std::collections::BTreeMap;

use distribute_core::prelude::*;
use distribute_tpu_xla::pjrt::Plugin;
use distribute_tpu_xla::{TpuStrategy, TpuSystem};

use crate::comparison::{NETWORKS, losses};

/// What is recorded of a network: the loss of each step.
#[derive(serde::Deserialize)]
struct Curve {
    pytorch: Vec<f32>,
    distribute: Vec<f32>,
}

fn recorded() -> BTreeMap<String, Curve> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../bench/networks/curves.json"
    );
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// How many steps are run again: as many as take about a second.
fn steps(network: &str) -> usize {
    match network {
        "resnet-narrow" => 20,
        "resnet-18" => 2,
        "gpt" => 2,
        _ => 100,
    }
}

#[track_caller]
fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs();
        assert!(
            difference <= 1e-3,
            "{what}, step {step}: {found} instead of {expected}"
        );
    }
}

/// How many steps are recorded.
const RECORDED: usize = 100;

#[test]
fn recorded_curves_lie_on_those_of_pytorch() {
    let recorded = recorded();
    assert_eq!(recorded.len(), NETWORKS.len());
    for (network, curve) in recorded {
        assert_eq!([curve.pytorch.len(), curve.distribute.len()], [RECORDED; 2]);
        assert_near(&curve.distribute, &curve.pytorch, &network);
        let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
        let (first, last) = (
            mean(&curve.pytorch[..10]),
            mean(&curve.pytorch[RECORDED - 10..]),
        );
        assert!(last < 0.95 * first, "{network} learns: {first} to {last}");
    }
}

/// The first steps under a strategy are the same as in PyTorch.
fn check(strategy: &impl Strategy, network: &str, what: &str) {
    let expected = &recorded()[network].pytorch;
    let found = losses(strategy, network, steps(network)).unwrap();
    assert_eq!(found.len(), steps(network));
    assert_near(&found, expected, &format!("{network} {what}"));
}

#[test]
fn one_device_repeats_the_curves() {
    let strategy = OneDeviceStrategy::new("cpu:0".parse().unwrap()).unwrap();
    for network in NETWORKS {
        check(&strategy, network, "on one device");
    }
}

#[test]
fn two_replicas_repeat_the_curves() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    for network in NETWORKS {
        check(&strategy, network, "on two replicas");
    }
}

/// Each of the three replicas has another number of examples: 6, 5 and 5 of 16.
#[test]
fn uneven_replicas_repeat_the_curve_of_a_network_with_batch_normalization() {
    let strategy = MultiWorkerMirroredStrategy::builder().replicas(3);
    check(
        &strategy.build().unwrap(),
        "resnet-narrow",
        "on three replicas",
    );
}

fn check_compiled(network: &str) {
    let Some(plugin) = plugins::cpu_plugin() else {
        return;
    };
    plugins::within(60, || {
        let plugin = Plugin::load(plugin).unwrap();
        let client = plugin
            .client(&[("cpu_device_count", 2_i64.into())])
            .unwrap();
        let system = TpuSystem::from_client(client);
        let strategy = TpuStrategy::builder(&system).replicas(2).build().unwrap();
        check(&strategy, network, "compiled");
        assert_eq!(strategy.statistics().programs, 1);
    });
}

#[test]
fn a_compiled_narrow_resnet_repeats_the_curve() {
    check_compiled("resnet-narrow");
}

#[test]
fn a_compiled_resnet_18_repeats_the_curve() {
    check_compiled("resnet-18");
}

#[test]
fn a_compiled_gpt_repeats_the_curve() {
    check_compiled("gpt");
}
