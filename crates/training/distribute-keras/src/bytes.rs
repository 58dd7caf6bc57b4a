//! Whether a model takes pixels as bytes, which its first layers rescale.

use crate::layers::Normalization;
use crate::{LayerSpec, ModelSpec, NamedLayer};

/// A factor below this makes the number of bytes small; a larger one is for numbers that are small
/// already.
const LARGEST_FACTOR: f64 = 0.1;
/// Statistics beyond this are of bytes.
const LARGEST_STATISTIC: f64 = 2.0;

impl ModelSpec {
    /// The layer by which the model itself makes small numbers of bytes from 0 to 255, before
    /// anything computes with them: a `Rescaling` such as by 1 / 255 (EfficientNet and
    /// MobileNetV3 begin with one), or a `Normalization` with the statistics of bytes.
    #[must_use]
    pub fn rescales_bytes(&self) -> Option<&str> {
        let mut value = 0;
        // A model has no more calls in a row than calls.
        for _ in 0..=self.calls.len() {
            let mut takers = (0..self.calls.len()).filter(|at| self.calls[*at].inputs == [value]);
            let (Some(at), None) = (takers.next(), takers.next()) else {
                return None;
            };
            let NamedLayer { name, spec, .. } = self.layers.get(self.calls[at].layer)?;
            match spec {
                LayerSpec::Rescaling(layer) => {
                    let small = layer
                        .scale
                        .iter()
                        .all(|factor| factor.abs() < LARGEST_FACTOR);
                    return small.then_some(name);
                }
                LayerSpec::Normalization(Normalization {
                    statistics: Some((mean, variance)),
                    ..
                }) => {
                    let large = |value: &f64| value.abs() > LARGEST_STATISTIC;
                    let deviations = variance.iter().map(|variance| variance.sqrt());
                    let of_bytes =
                        mean.iter().any(large) || deviations.into_iter().any(|it| large(&it));
                    return of_bytes.then_some(name);
                }
                LayerSpec::Flatten(_)
                | LayerSpec::Reshape(_)
                | LayerSpec::ZeroPadding2D(_)
                | LayerSpec::Cropping2D(_) => value = self.inputs.len() + at,
                _ => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::parse_keras_json;

    fn model(first: &str) -> String {
        format!(
            r#"{{"class_name":"Sequential","config":{{"name":"m","layers":[
            {{"class_name":"InputLayer","config":{{"batch_shape":[null,8,8,1]}}}},{first}
            {{"class_name":"Flatten","config":{{}}}},
            {{"class_name":"Dense","config":{{"units":10}}}}]}}}}"#
        )
    }

    #[test]
    fn a_first_layer_that_rescales_bytes_is_named() {
        let rescaling = |scale: &str| {
            let scale = format!(r#""scale":{scale},"offset":0.0"#);
            format!(r#"{{"class_name":"Rescaling","config":{{"name":"r",{scale}}}}},"#)
        };
        let padding = r#"{"class_name":"ZeroPadding2D","config":{"padding":1}},"#;
        for (first, wanted) in [
            (rescaling("0.00392156862745098"), Some("r")),
            (rescaling("0.0078431372549"), Some("r")),
            (
                padding.to_string() + &rescaling("0.00392156862745098"),
                Some("r"),
            ),
            (rescaling("2.0"), None),
            (String::new(), None),
        ] {
            let spec = parse_keras_json(&model(&first), "m").unwrap();
            assert_eq!(spec.rescales_bytes(), wanted, "{first}");
        }
    }
}
