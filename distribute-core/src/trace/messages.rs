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

/// burn's message for an operation on tensors of a capture and of a real device.
fn of_mixed_devices(message: &str) -> Option<Error> {
    let mixes = message.contains("not on the same device") && message.contains("Capture(");
    let operation = || {
        let quoted = message.split_once("Operation: '").map(|(_, rest)| rest);
        quoted.and_then(|rest| rest.split('\'').next())
    };
    let what = match mixes {
        true => operation().map(|operation| format!("in the operation {operation}")),
        false => message
            .contains("is on the wrong backend")
            .then(|| format!("in an operation ({})", message.trim())),
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
    use super::of_message;

    #[test]
    fn what_a_real_device_says_of_itself_is_no_read_in_a_captured_step() {
        let read = "Error while reading data: use `try_into_data` instead";
        for cause in [
            "An error happened during execution\nCaused by:\n  out of memory",
            &format!("{read}: An error happened during execution\nCaused by:\n  not compiled"),
        ] {
            assert_eq!(of_message(cause).map(|error| error.to_string()), None);
        }
        let captured = format!("{read}: tensor 7 has no concrete value");
        let error = of_message(&captured).map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("on the host")));
    }
}
