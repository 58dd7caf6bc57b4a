//! What is refused, and what it says.

use std::path::Path;

use burn::prelude::*;
use distribute_core::{Error, PerReplica, StrategyExt};
use distribute_tpu_xla::trace::ProgramLimits;
use distribute_tpu_xla::{TpuClusterResolver, TpuError, TpuStrategy};

use crate::strategy::support::{plugin, strategy, system, within};

#[test]
fn more_replicas_than_devices() {
    within(60, || {
        let Some(system) = system(2) else {
            return;
        };
        for count in [0, 3] {
            let error = TpuStrategy::builder(&system)
                .replicas(count)
                .build()
                .unwrap_err();
            assert!(
                matches!(error, TpuError::Replicas { devices: 2, .. }),
                "{error}"
            );
        }
        let one = TpuStrategy::builder(&system).replicas(1).build().unwrap();
        let sum = one.run(tensor(1, 3), |_, x| Ok(x.sum())).unwrap();
        assert_eq!(sum.into_values().remove(0).into_scalar::<f32>(), 3.0);
    });
}

fn tensor(replicas: usize, elements: usize) -> PerReplica<Tensor<1>> {
    PerReplica::new(vec![Tensor::ones([elements], &Device::flex()); replicas])
}

#[test]
fn a_step_that_changes_shapes_in_every_call() {
    within(60, || {
        let Some(system) = system(1) else {
            return;
        };
        let limits = ProgramLimits {
            most: Some(3),
            ..ProgramLimits::default()
        };
        let tpu = TpuStrategy::builder(&system)
            .program_limits(limits)
            .build()
            .unwrap();
        let mut outcome = Ok(());
        for elements in 1..10 {
            let sum = tpu.run(tensor(1, elements), |_, x| Ok(x.sum()));
            outcome = sum.map(drop);
            if outcome.is_err() {
                assert_eq!(elements, 4);
                break;
            }
        }
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, Error::TooManyPrograms { compiled: 3, .. }),
            "{error}"
        );
        assert!(error.to_string().contains("[4]"), "{error}");
        assert_eq!(tpu.statistics().recompilations, 2);
    });
}

#[test]
fn an_operation_that_is_not_covered_is_named() {
    within(60, || {
        let Some(tpu) = strategy(1) else {
            return;
        };
        let square = PerReplica::new(vec![Tensor::<4>::ones([1, 1, 4, 4], &Device::flex())]);
        let error = tpu
            .run(square, |_, x| {
                let options = burn::tensor::ops::InterpolateOptions::new(
                    burn::tensor::ops::InterpolateMode::Bicubic,
                );
                let options = options.with_output_size([8, 8]);
                Ok(burn::tensor::module::interpolate(x, options))
            })
            .unwrap_err();
        assert!(error.to_string().contains("Interpolate"), "{error}");
    });
}

#[test]
fn no_plugin_and_no_tpu_are_errors_and_no_fallback() {
    let resolver = TpuClusterResolver::resolve_in(
        "local",
        &std::collections::BTreeMap::<String, String>::new(),
    )
    .unwrap();
    let error = resolver
        .connect_with(Some(Path::new("/nowhere/plugin.so")))
        .unwrap_err();
    assert!(
        error.to_string().starts_with("TPU failed to initialize: "),
        "{error}"
    );
}

#[test]
fn a_resolver_with_the_cpu_plugin() {
    within(60, || {
        let Some(plugin) = plugin() else {
            return;
        };
        let resolver = TpuClusterResolver::resolve_in(
            "",
            &std::collections::BTreeMap::<String, String>::new(),
        )
        .unwrap();
        let connection = resolver.connect_with(Some(&plugin)).unwrap();
        let system = connection
            .initialize_with(&[("cpu_device_count", 8_i64.into())])
            .unwrap();
        assert_eq!(system.num_accelerators(), 8);
        let error = connection
            .initialize_with(&[("nonsense", 8_i64.into())])
            .unwrap_err();
        assert!(
            error.to_string().starts_with("TPU failed to initialize: "),
            "{error}"
        );
    });
}
