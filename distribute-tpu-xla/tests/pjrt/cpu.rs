//! XLA's CPU client: what a step needs.

use std::time::Duration;

use distribute_tpu_xla::pjrt::{CompileOptions, ElementType, ExecuteOptions, PjrtError};

use crate::support::{all_reduce, cpu_client, cpu_plugin, per_device, within};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn all_replicas_reduce_and_their_inputs_are_donated() {
    for replicas in [1, 2, 8] {
        let Some(client) = cpu_client(replicas) else {
            return;
        };
        within(LIMIT, || {
            let options = CompileOptions::replicas(replicas);
            let program = client.compile(&all_reduce(replicas, 5), &options).unwrap();
            assert_eq!(program.devices(), client.addressable_devices());
            let inputs = per_device(&client, |device| vec![device as f32 + 1.0; 5]);
            let outputs = program.run(&inputs, &ExecuteOptions::default()).unwrap();
            let sum = (replicas * (replicas + 1) / 2) as f32;
            for (output, input) in outputs.iter().zip(&inputs) {
                assert_eq!(output[0].to_vec::<f32>().unwrap(), [sum; 5]);
                assert_eq!(output[0].dims().unwrap(), [5]);
                assert_eq!(output[0].element_type().unwrap(), ElementType::F32);
                assert!(input[0].is_deleted().unwrap());
            }
        });
    }
}

#[test]
fn the_plugin_says_what_it_is() {
    let Some(plugin) = cpu_plugin() else { return };
    assert_eq!(plugin.api_version().to_string(), "0.90");
    let attributes = plugin.attributes().unwrap();
    assert_eq!(attributes["xla_version"].as_i64(), Some(2));
    let client = plugin
        .client(&[("cpu_device_count", 3_i64.into())])
        .unwrap();
    assert_eq!(client.platform_name(), "cpu");
    assert_eq!(client.process_index(), 0);
    let ids: Vec<_> = client.devices().iter().map(|device| device.id()).collect();
    assert_eq!(ids, [0, 1, 2]);
    assert_eq!(client.addressable_devices().len(), 3);
    let error = plugin
        .client(&[("no_such_option", true.into())])
        .unwrap_err();
    assert!(matches!(&error, PjrtError::Plugin { message, .. } if message.contains("no_such")));
}
