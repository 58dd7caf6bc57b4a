//! XLA's CPU client: what is wrong is an error with the plugin's words, and nothing breaks.

use distribute_tpu_xla::pjrt::{
    Buffer, Client, CompileOptions, ElementType, ErrorCode, ExecuteOptions, LoadedExecutable,
    PjrtError,
};

use crate::pjrt::support::{LIMIT, all_reduce, cpu_client, per_device, within};

/// `client`, and a program of two arguments for its two devices.
fn sum() -> Option<(Client, LoadedExecutable)> {
    let client = cpu_client(2)?;
    let text = "func.func public @main(%x: tensor<3xf32> {tf.aliasing_output = 0 : i32},
          %y: tensor<3xf32>) -> tensor<3xf32> {
        %z = stablehlo.add %x, %y : tensor<3xf32>
        return %z : tensor<3xf32>
      }";
    let program = client.compile(text, &CompileOptions::replicas(2)).unwrap();
    Some((client, program))
}

fn run(program: &LoadedExecutable, arguments: &[Vec<&Buffer>]) -> Result<Vec<f32>, PjrtError> {
    let outputs = program.run(arguments, &ExecuteOptions::default())?;
    outputs[0][0].to_vec()
}

#[test]
fn a_broken_program_is_an_error_with_line_and_column() {
    let Some(client) = cpu_client(1) else { return };
    let texts = [
        (
            "func.func public @main() -> tensor<f32> {\n  %x = stablehlo.no_such_op : tensor<f32>",
            "2:",
        ),
        (
            "func.func public @main(%x: tensor<2xf32>) -> tensor<3xf32> {\n  \
             return %x : tensor<2xf32>\n}",
            "2:",
        ),
        ("not mlir", "1:"),
        ("", ""),
    ];
    for (text, place) in texts {
        let error = client
            .compile(text, &CompileOptions::default())
            .unwrap_err();
        let PjrtError::Plugin {
            function, message, ..
        } = &error
        else {
            panic!("{error:?}")
        };
        assert_eq!(*function, "PJRT_Client_Compile");
        assert!(message.contains(place), "{text}: {message}");
    }
}

#[test]
fn more_replicas_than_devices_are_refused() {
    let Some(client) = cpu_client(2) else { return };
    for replicas in [3, 1000] {
        let options = CompileOptions::replicas(replicas);
        let error = client.compile(&all_reduce(2, 4), &options).unwrap_err();
        let PjrtError::Plugin { message, .. } = &error else {
            panic!("{error:?}")
        };
        assert!(
            message.contains(&format!("{replicas} replicas")),
            "{message}"
        );
    }
    assert!(client.default_device_assignment(3, 1).is_err());
    assert!(client.default_device_assignment(0, 1).is_err());
    let nowhere = CompileOptions::replicas(2).device_assignment([0, 77]);
    assert!(client.compile(&all_reduce(2, 4), &nowhere).is_err());
}

#[test]
fn arguments_must_fit_the_program() {
    let Some((client, program)) = sum() else {
        return;
    };
    within(LIMIT, || {
        let devices = client.addressable_devices();
        let new = |device: usize| {
            client
                .buffer(&[1.0_f32; 3], &[3], &devices[device])
                .unwrap()
        };
        let (x0, y0, x1, y1) = (new(0), new(0), new(1), new(1));
        let short = |d: usize| client.buffer(&[1.0_f32; 2], &[2], &devices[d]).unwrap();
        let int = |d: usize| client.buffer(&[1_i32; 3], &[3], &devices[d]).unwrap();
        let plugin = |arguments: &[Vec<&Buffer>], what| match run(&program, arguments) {
            Err(PjrtError::Plugin { function, .. }) => {
                assert_eq!(function, "PJRT_LoadedExecutable_Execute", "{what}");
            }
            other => panic!("{what}: {other:?}"),
        };
        let ours = |arguments: &[Vec<&Buffer>], what: &str| match run(&program, arguments) {
            Err(PjrtError::InvalidArgument(text)) => assert!(text.contains(what), "{text}"),
            other => panic!("{what}: {other:?}"),
        };
        plugin(&[vec![&x0], vec![&x1]], "too few");
        plugin(&[vec![], vec![]], "none");
        plugin(&[vec![&x0, &y0, &y0], vec![&x1, &y1, &y1]], "too many");
        plugin(
            &[vec![&short(0), &y0], vec![&short(1), &y1]],
            "another shape",
        );
        plugin(&[vec![&int(0), &y0], vec![&int(1), &y1]], "another type");
        ours(
            &[vec![&short(0), &y0], vec![&x1, &y1]],
            "argument 0 in list 1 is tensor<3xf32>",
        );
        ours(
            &[vec![&x0, &int(0)], vec![&x1, &y1]],
            "argument 1 in list 1 is tensor<3xf32>",
        );
        ours(
            &[vec![&x1, &y1], vec![&x0, &y0]],
            "is on device 1, not on 0",
        );
        ours(&[vec![&x0, &y0]], "2 devices");
        ours(&[vec![&x0, &y0], vec![&x1]], "list 1 has 1");
        ours(&[vec![&x0, &x0], vec![&x1, &y1]], "list 1 repeats other");
        // None of this has taken the memory of an argument.
        assert_eq!(
            run(&program, &[vec![&x0, &y0], vec![&x1, &y1]]),
            Ok(vec![2.0; 3])
        );
        ours(
            &[vec![&x0, &y0], vec![&x1, &y1]],
            "argument 0 in list 0 was deleted",
        );
        plugin(&[vec![&y0, &y0], vec![&y1, &y1]], "donated and used");
    });
}

#[test]
fn handles_of_another_client_are_refused() {
    let Some((client, program)) = sum() else {
        return;
    };
    let Some(other) = cpu_client(2) else { return };
    let devices = other.addressable_devices();
    let error = client.buffer(&[1.0_f32], &[1], &devices[0]).unwrap_err();
    assert!(matches!(error, PjrtError::InvalidArgument(_)), "{error:?}");
    let foreign = per_device(&other, |_| vec![1.0; 3]);
    let arguments: Vec<Vec<&Buffer>> = foreign.iter().map(|f| vec![&f[0], &f[0]]).collect();
    let error = run(&program, &arguments).unwrap_err();
    assert!(error.to_string().contains("another client"), "{error}");
    assert!(foreign[0][0].copy_to_device(&client.devices()[0]).is_err());
}

#[test]
fn buffers_must_be_what_they_are_said_to_be() {
    let Some(client) = cpu_client(1) else { return };
    let device = &client.addressable_devices()[0];
    let refused = |dims: &[usize], elements: usize| {
        let error = client
            .buffer(&vec![0.0_f32; elements], dims, device)
            .unwrap_err();
        assert!(matches!(error, PjrtError::InvalidArgument(_)), "{error:?}");
    };
    refused(&[2, 2], 3);
    refused(&[], 0);
    refused(&[usize::MAX, 2], 2);
    refused(&[usize::MAX, 0], 0);
    refused(&[1 << 62], 1);
    let error = client
        .buffer_from_bytes(ElementType::Other(22), &[0], &[1], device)
        .unwrap_err();
    assert!(
        error.to_string().contains("no form in host memory"),
        "{error}"
    );
    let buffer = client.buffer(&[1.0_f32], &[1], device).unwrap();
    let error = buffer.to_vec::<i32>().unwrap_err().to_string();
    assert!(
        error.contains("holds f32") && error.contains("i32"),
        "{error}"
    );
}

#[test]
fn too_much_memory_is_an_error() {
    let Some(client) = cpu_client(1) else { return };
    let text = "func.func public @main(%x: tensor<f32>) -> tensor<1048576x1048576xf32> {
        %y = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f32>) -> tensor<1048576x1048576xf32>
        return %y : tensor<1048576x1048576xf32>
      }";
    let failed = client
        .compile(text, &CompileOptions::default())
        .and_then(|program| {
            let x = client.buffer(&[1.0_f32], &[], &client.addressable_devices()[0])?;
            program.run(&[[x]], &ExecuteOptions::default())
        });
    assert_eq!(
        failed.unwrap_err().code(),
        Some(ErrorCode::ResourceExhausted)
    );
}
