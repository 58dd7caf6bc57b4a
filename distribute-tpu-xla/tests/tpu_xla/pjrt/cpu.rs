//! XLA's CPU client: what a step needs.

use distribute_tpu_xla::pjrt::{
    Client, CompileOptions, Element, ElementType, ExecuteOptions, PjrtError,
};
use half::{bf16, f16};

use crate::pjrt::support::{LIMIT, all_reduce, cpu_client, cpu_plugin, per_device, within};

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
            let addresses: Vec<_> = inputs.iter().map(|i| i[0].address().unwrap()).collect();
            let outputs = program.run(&inputs, &ExecuteOptions::default()).unwrap();
            let sum = (replicas * (replicas + 1) / 2) as f32;
            for (device, output) in outputs.iter().enumerate() {
                let output = &output[0];
                assert_eq!(output.to_vec::<f32>().unwrap(), [sum; 5]);
                assert_eq!(output.dims(), [5]);
                assert_eq!(output.element_type(), ElementType::F32);
                assert_eq!(output.device(), program.devices()[device]);
                assert_eq!(output.address().unwrap(), addresses[device]);
                assert!(inputs[device][0].is_deleted().unwrap());
            }
        });
    }
}

#[test]
fn an_argument_can_be_kept() {
    let Some(client) = cpu_client(2) else { return };
    within(LIMIT, || {
        let program = client
            .compile(&all_reduce(2, 3), &CompileOptions::replicas(2))
            .unwrap();
        let inputs = per_device(&client, |device| vec![device as f32; 3]);
        let keep = ExecuteOptions {
            non_donatable: vec![0],
        };
        for _ in 0..3 {
            let outputs = program.run(&inputs, &keep).unwrap();
            assert_eq!(outputs[1][0].to_vec::<f32>().unwrap(), [1.0; 3]);
        }
        assert!(!inputs[0][0].is_deleted().unwrap());
        assert_eq!(inputs[1][0].to_vec::<f32>().unwrap(), [1.0; 3]);
    });
}

#[test]
fn results_are_passed_on_before_they_are_there() {
    let Some(client) = cpu_client(4) else { return };
    within(LIMIT, || {
        let program = client
            .compile(&all_reduce(4, 1), &CompileOptions::replicas(4))
            .unwrap();
        let mut values = per_device(&client, |_| vec![1.0]);
        for _ in 0..10 {
            let execution = program
                .execute(&values, &ExecuteOptions::default())
                .unwrap();
            values = execution.into_outputs();
        }
        // 4 to the power of 10 is exact in f32.
        assert_eq!(values[3][0].to_vec::<f32>().unwrap(), [1_048_576.0]);
        let execution = program
            .execute(&values, &ExecuteOptions::default())
            .unwrap();
        let outputs = execution.wait().unwrap();
        outputs[0][0].wait().unwrap();
        assert!(outputs[0][0].ready_event().unwrap().is_ready().unwrap());
    });
}

#[test]
fn buffers_are_counted_and_freed() {
    let Some(client) = cpu_client(2) else { return };
    let inputs = per_device(&client, |_| vec![0.0; 4]);
    assert_eq!(client.live_buffers(), 2);
    assert_eq!(inputs[0][0].on_device_bytes().unwrap(), 16);
    inputs[0][0].delete().unwrap();
    inputs[0][0].delete().unwrap();
    assert!(inputs[0][0].is_deleted().unwrap());
    assert!(inputs[0][0].to_vec::<f32>().is_err());
    drop(inputs);
    assert_eq!(client.live_buffers(), 0);
}

#[test]
fn a_buffer_outlives_what_it_was_made_with() {
    let Some(client) = cpu_client(2) else { return };
    let program = client
        .compile(&all_reduce(2, 2), &CompileOptions::replicas(2))
        .unwrap();
    let outputs = {
        let inputs = per_device(&client, |_| vec![2.0; 2]);
        program
            .execute(&inputs, &ExecuteOptions::default())
            .unwrap()
            .into_outputs()
    };
    drop((program, client));
    assert_eq!(outputs[1][0].to_vec::<f32>().unwrap(), [4.0; 2]);
}

#[test]
fn buffers_are_copied_between_devices() {
    let Some(client) = cpu_client(3) else { return };
    let devices = client.addressable_devices();
    let buffer = client.buffer(&[1_i32, 2, 3], &[3], &devices[0]).unwrap();
    let copy = buffer.copy_to_device(&devices[2]).unwrap();
    assert_eq!(copy.device(), devices[2]);
    assert_eq!(copy.to_vec::<i32>().unwrap(), [1, 2, 3]);
    assert_eq!(format!("{copy:?}"), "Buffer(tensor<3xi32> on device 2)");
}

fn round_trip<T: Element + PartialEq + std::fmt::Debug>(client: &Client, elements: &[T]) {
    let device = &client.addressable_devices()[0];
    let shapes: [&[usize]; 3] = [&[6], &[2, 3], &[1, 3, 1, 2]];
    for dims in shapes {
        let buffer = client.buffer(elements, dims, device).unwrap();
        assert_eq!(buffer.element_type(), T::TYPE);
        assert_eq!(buffer.dims(), dims);
        assert_eq!(buffer.to_vec::<T>().unwrap(), elements);
        let bytes = buffer.to_bytes().unwrap();
        let again = client
            .buffer_from_bytes(T::TYPE, &bytes, dims, device)
            .unwrap();
        assert_eq!(again.to_vec::<T>().unwrap(), elements);
    }
    let scalar = client.buffer(&elements[..1], &[], device).unwrap();
    assert_eq!(scalar.to_vec::<T>().unwrap(), elements[..1]);
    let empty = client.buffer::<T>(&[], &[3, 0], device).unwrap();
    assert_eq!(empty.to_vec::<T>().unwrap(), []);
    assert_eq!(empty.dims(), [3, 0]);
}

#[test]
fn every_element_type_comes_back() {
    let Some(client) = cpu_client(1) else { return };
    let floats = [0.0, -1.5, f32::MAX, 3.25, f32::INFINITY, 1e-30];
    round_trip(&client, &floats);
    round_trip(&client, &floats.map(f64::from));
    round_trip(&client, &floats.map(f16::from_f32));
    round_trip(&client, &floats.map(bf16::from_f32));
    round_trip(&client, &[0_i8, 1, -1, i8::MIN, i8::MAX, 5]);
    round_trip(&client, &[0_i16, 1, -1, i16::MIN, i16::MAX, 5]);
    round_trip(&client, &[0_i32, 1, -1, i32::MIN, i32::MAX, 5]);
    round_trip(&client, &[0_i64, 1, -1, i64::MIN, i64::MAX, 5]);
    round_trip(&client, &[0_u8, 1, 2, u8::MAX, 4, 5]);
    round_trip(&client, &[0_u16, 1, 2, u16::MAX, 4, 5]);
    round_trip(&client, &[0_u32, 1, 2, u32::MAX, 4, 5]);
    round_trip(&client, &[0_u64, 1, 2, u64::MAX, 4, 5]);
    round_trip(&client, &[true, false, false, true, true, false]);
}

#[test]
fn results_come_row_by_row_whatever_their_layout() {
    let Some(client) = cpu_client(1) else { return };
    let device = client.addressable_devices();
    let text = "func.func public @main(%x: tensor<2x3xi32>) -> tensor<3x2xi32> {
        %y = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xi32>) -> tensor<3x2xi32>
        return %y : tensor<3x2xi32>
      }";
    let program = client.compile(text, &CompileOptions::default()).unwrap();
    let input = client
        .buffer(&[1_i32, 2, 3, 4, 5, 6], &[2, 3], &device[0])
        .unwrap();
    let outputs = program
        .run(&[[&input]], &ExecuteOptions::default())
        .unwrap();
    assert_eq!(outputs[0][0].to_vec::<i32>().unwrap(), [1, 4, 2, 5, 3, 6]);
}

#[test]
fn programs_without_arguments_or_results_run() {
    let Some(client) = cpu_client(2) else { return };
    let options = CompileOptions::replicas(2);
    let constant = "func.func public @main() -> (tensor<i32>, tensor<2xi1>) {
        %x = stablehlo.constant dense<7> : tensor<i32>
        %y = stablehlo.constant dense<[true, false]> : tensor<2xi1>
        return %x, %y : tensor<i32>, tensor<2xi1>
      }";
    let program = client.compile(constant, &options).unwrap();
    let none: [Vec<distribute_tpu_xla::pjrt::Buffer>; 2] = [vec![], vec![]];
    let outputs = program.run(&none, &ExecuteOptions::default()).unwrap();
    assert_eq!(outputs[1][0].to_vec::<i32>().unwrap(), [7]);
    assert_eq!(outputs[0][1].to_vec::<bool>().unwrap(), [true, false]);
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
    assert_eq!(client.default_device_assignment(3, 1).unwrap(), [0, 1, 2]);
    let device = &client.devices()[1];
    assert_eq!((device.kind(), device.local_hardware_id()), ("cpu", 1));
    let error = plugin
        .client(&[("no_such_option", true.into())])
        .unwrap_err();
    assert!(matches!(&error, PjrtError::Plugin { message, .. } if message.contains("no_such")));
    assert!(plugin.client(&[("cpu_device_count", "3".into())]).is_err());
    assert!(
        plugin
            .client(&[("cpu_device_count", 0_i64.into())])
            .is_err()
    );
}
