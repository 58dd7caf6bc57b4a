//! What burn's own errors and panics say of a captured step.
//!
//! A text decides here: burn's capture backend reports what it cannot do by panics, and by
//! errors whose only content is a string, so that there is no type to tell them apart by.

use crate::Error;

/// The meaning of a message of burn's capture backend, from an error or a panic.
pub(crate) fn of_message(message: &str) -> Option<Error> {
    // Nothing that an error of a real device may say as well ("An error happened during
    // execution" is what burn says of every one).
    const READS: [&str; 3] = [
        "has no concrete value",
        "has no initialized value",
        "Cannot move a tensor from a capture device",
    ];
    if READS.iter().any(|part| message.contains(part)) {
        return Some(Error::host_read("a tensor"));
    }
    if let Some(error) = of_mixed_devices(message) {
        return Some(error);
    }
    if message.contains("Cannot move a tensor to a capture device with autodiff") {
        return Some(Error::not_compilable(
            "a tensor with autodiff that is moved to a device, as a batch normalization of burn \
             does when it is called a second time,",
            "burn 0.22.1 cannot record the move; call the layer once in a step, on all inputs \
             together, or use a `SyncBatchNorm`",
        ));
    }
    if message.contains("Capture tensors do not support autodiff") {
        return Some(Error::not_compilable(
            "`backward`, `Tensor::autodiff`, `inner` and `Module::valid` on the step's own \
             tensors",
            "burn 0.22.1 cannot record them; use `ctx.gradient` for gradients",
        ));
    }
    None
}

/// Whether burn refuses a backward pass because an earlier one has used the graph up.
pub(crate) fn is_used_up(message: &str) -> bool {
    message.contains("graph tape has already been consumed")
}

/// Whether burn refuses a gradient because a tensor has no autodiff.
pub(crate) fn wants_autodiff(message: &str) -> bool {
    const REFUSALS: [&str; 4] = [
        "Tensor::require_grad requires autodiff",
        "Tensor::backward requires a tracked autodiff tensor",
        "Tensor::with_gradient_checkpointing_strategy requires autodiff",
        "Requires autodiff tensor",
    ];
    REFUSALS.iter().any(|refusal| message.contains(refusal))
}

/// burn's message for an operation on tensors of a capture and of a real device.
fn of_mixed_devices(message: &str) -> Option<Error> {
    let mixes = message.contains("not on the same device") && message.contains("Capture(");
    let operation = || {
        let quoted = message.split_once("Operation: '").map(|(_, rest)| rest);
        quoted.and_then(|rest| rest.split('\'').next())
    };
    let what = if mixes {
        operation().map(|operation| format!("in the operation {operation}"))
    } else {
        message
            .contains("is on the wrong backend")
            .then(|| format!("in an operation ({})", message.trim()))
    };
    Some(Error::not_compilable(
        format!("a tensor of another device than `ctx.device()`, {},", what?),
        "the step has captured it, or has made it on the CPU; pass it to `run` as an argument, \
         as `Replicated` if it is one for all replicas, or make it on `ctx.device()`",
    ))
}

/// A panic inside a captured step.
pub(crate) fn of_panic(message: String) -> Error {
    of_message(&message).unwrap_or(Error::CapturePanicked { message })
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use burn::tensor::{Device, Tensor};

    use super::super::capture::CaptureDevice;
    use super::{is_used_up, of_message, wants_autodiff};
    use crate::sync::panic_message;
    use crate::trace::Trace;

    #[test]
    fn what_a_real_device_says_of_itself_is_no_read_in_a_captured_step() {
        for cause in [
            "An error happened during execution\nCaused by:\n  out of memory",
            "Error while reading data: use `try_into_data` instead: An error happened during \
             execution\nCaused by:\n  not compiled",
        ] {
            assert_eq!(of_message(cause).map(|error| error.to_string()), None);
        }
    }

    /// What burn says when this is done on its capture device, and what is made of it.
    fn said(body: impl FnOnce(&Device) -> Result<(), String>) -> (String, Option<String>) {
        let device = CaptureDevice::default();
        let mut said = None;
        let captured = device.capture_scope(|scope| {
            let trace = Trace::new(device, 1);
            let found = catch_unwind(AssertUnwindSafe(|| body(trace.device())));
            said = found
                .unwrap_or_else(|panic| Err(panic_message(&*panic)))
                .err();
            scope.complete(Vec::new(), Vec::new())
        });
        drop(captured);
        let said = said.expect("burn refuses it");
        let error = of_message(&said).map(|error| error.to_string());
        (said, error)
    }

    fn assert_says(body: impl FnOnce(&Device) -> Result<(), String>, part: &str) {
        let (said, error) = said(body);
        assert!(
            error.is_some_and(|error| error.contains(part)),
            "burn says: {said}"
        );
    }

    fn on(device: &Device) -> Tensor<1> {
        Tensor::ones([2], &device.clone().without_autodiff())
    }

    #[test]
    fn reads_of_a_captured_tensor_are_known() {
        let read = |device: &Device| {
            let read = on(device).mul_scalar(2.0).try_into_data();
            read.map(drop).map_err(|error| format!("{error:?}"))
        };
        assert_says(read, "on the host");
        let moved = |device: &Device| {
            drop(on(device).to_device(&Device::flex()));
            Ok(())
        };
        assert_says(moved, "on the host");
    }

    #[test]
    fn operations_on_tensors_of_several_devices_are_known_with_their_names() {
        let added = |device: &Device| {
            drop(on(device) + Tensor::ones([2], &Device::flex()));
            Ok(())
        };
        assert_says(added, "in the operation Add");
        let joined = |device: &Device| {
            let other = Tensor::ones([2], &Device::flex());
            drop(Tensor::cat(vec![on(device), other], 0));
            Ok(())
        };
        assert_says(joined, "another device than `ctx.device()`");
    }

    #[test]
    fn a_second_backward_pass_is_known() {
        let tracked = Tensor::<1>::ones([2], &Device::flex().autodiff()).require_grad();
        let loss = (tracked.clone() * tracked).sum();
        drop(loss.backward());
        let again = catch_unwind(AssertUnwindSafe(|| drop(loss.backward())));
        let said = panic_message(&*again.expect_err("burn refuses it"));
        assert!(is_used_up(&said), "{said}");
    }

    #[test]
    fn what_burn_says_of_a_gradient_without_autodiff_is_known() {
        let plain = Tensor::<1>::ones([2], &Device::flex());
        let tracked = Tensor::<1>::ones([2], &Device::flex().autodiff()).require_grad();
        let strategy = tracked.gradient_checkpointing_strategy().unwrap();
        let mut gradients = tracked.clone().sum().backward();
        let refused: [&mut dyn FnMut(); 4] = [
            &mut || drop(plain.clone().require_grad()),
            &mut || drop(plain.clone().sum().backward()),
            &mut || drop(plain.clone().with_gradient_checkpointing_strategy(strategy)),
            &mut || plain.grad_replace(&mut gradients, plain.clone()),
        ];
        for (index, refused) in refused.into_iter().enumerate() {
            let found = catch_unwind(AssertUnwindSafe(refused));
            let said = panic_message(&*found.expect_err("burn refuses it"));
            assert!(wants_autodiff(&said), "{index}: {said}");
        }
        assert!(!wants_autodiff("Gradient checkpointing strategy mismatch"));
    }

    #[test]
    fn what_burn_cannot_do_with_autodiff_is_known() {
        let moved = |device: &Device| {
            let tracked = Tensor::<1>::ones([2], &Device::flex().autodiff());
            drop(tracked.to_device(device));
            Ok(())
        };
        assert_says(moved, "moved to a device");
        let tracked = |device: &Device| {
            drop(on(device).autodiff());
            Ok(())
        };
        assert_says(tracked, "use `ctx.gradient` for gradients");
    }
}
