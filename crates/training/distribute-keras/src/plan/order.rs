//! In which order the features of a flattened image stand.
//!
//! Images are channels-first inside, so a `Flatten` that moves no data gives the order (channels,
//! height, width), where Keras has (height, width, channels). A `Dense` layer reads either, when
//! the rows of its kernel are stored in that order. So the data stays where it is if nothing but
//! `Dense` layers reads it, directly or behind layers that treat every feature alike.

use super::Plan;
use crate::LayerSpec;

impl Plan {
    /// Finds for every `Flatten` of an image who reads it, and who must turn what.
    pub(super) fn order_features(&mut self) {
        let mut calls_of = vec![0; self.layers.len()];
        for call in &self.calls {
            calls_of[call.layer] += 1;
        }
        for index in 0..self.calls.len() {
            let call = &self.calls[index];
            let image = match (
                &self.layers[call.layer].spec,
                call.shapes[0].channels_first(),
            ) {
                (LayerSpec::Flatten(_), Some(image)) => image,
                _ => continue,
            };
            let (height, width, channels) = image;
            // One channel or one pixel has the same order either way.
            if channels == 1 || height * width == 1 {
                continue;
            }
            match self.dense_readers(index, &calls_of) {
                Some(readers) => {
                    for reader in readers {
                        self.layers[reader].flattened = Some(image);
                    }
                }
                None => self.calls[index].reordered = true,
            }
        }
    }

    /// The `Dense` layers that read this call's output, if no other call reads it, and each is
    /// called once. `calls_of` counts the calls of every layer.
    fn dense_readers(&self, call: usize, calls_of: &[usize]) -> Option<Vec<usize>> {
        let mut readers = Vec::new();
        // Whether the features of a value stand in the other order.
        let inputs = self.inputs.len();
        let mut turned = vec![false; inputs + self.calls.len()];
        turned[inputs + call] = true;
        for (index, call) in self.calls.iter().enumerate().skip(call + 1) {
            if !call.inputs.iter().any(|value| turned[*value]) {
                continue;
            }
            match &self.layers[call.layer].spec {
                LayerSpec::Dense(_) if calls_of[call.layer] == 1 => readers.push(call.layer),
                spec if spec.layer().treats_features_alike() => turned[inputs + index] = true,
                _ => return None,
            }
        }
        if self.outputs.iter().any(|output| turned[output.value]) {
            None
        } else {
            Some(readers)
        }
    }
}
