//! What burn calls its layers, and their statistics, where a module is walked: all that a walk
//! learns of types.

/// The layer that normalizes in the type of its inputs, and mixes that with running statistics.
pub(crate) const BATCH_NORM: &str = "Struct:BatchNorm";

/// The fields of a [`BATCH_NORM`] that are its running statistics.
pub(crate) const RUNNING_STATISTICS: [&str; 2] = ["running_mean", "running_var"];

/// The layers that make tensors of `f32` by themselves, whatever the type of their inputs.
pub(crate) const RECURRENT: [&str; 6] = [
    "Struct:Lstm",
    "Struct:BiLstm",
    "Struct:Gru",
    "Struct:BiGru",
    "Struct:Rnn",
    "Struct:BiRnn",
];

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::nn::gru::{BiGruConfig, GruConfig};
    use burn::nn::{BatchNormConfig, BiLstmConfig, BiRnnConfig, LstmConfig, RnnConfig};
    use burn::tensor::Device;

    use super::*;
    use crate::parameters::{self, Parameter};

    /// The outermost type that each parameter is in, and its path.
    fn walked<M: Module>(module: M) -> Vec<(bool, String)> {
        let mut found = Vec::new();
        let model = vec![module];
        let walk = |parameter: Parameter<'_>| {
            let known = [&[BATCH_NORM][..], &RECURRENT].concat();
            let is_known = parameter.layer_of(&known) == Some("0");
            found.push((is_known, parameter.path.to_string()));
            Ok(())
        };
        parameters::visit(&model, walk).unwrap();
        assert!(!found.is_empty());
        found
    }

    #[test]
    fn layers_have_the_names_of_burn() {
        let device = Device::flex();
        let layers = [
            walked(BatchNormConfig::new(2).init(&device)),
            walked(LstmConfig::new(2, 3, true).init(&device)),
            walked(BiLstmConfig::new(2, 3, true).init(&device)),
            walked(GruConfig::new(2, 3, true).init(&device)),
            walked(BiGruConfig::new(2, 3, true).init(&device)),
            walked(RnnConfig::new(2, 3, true).init(&device)),
            walked(BiRnnConfig::new(2, 3, true).init(&device)),
        ];
        for (is_known, path) in layers.iter().flatten() {
            assert!(is_known, "{path}");
        }
        let normalization = &layers[0];
        for field in RUNNING_STATISTICS {
            let path = format!("0.{field}");
            assert!(
                normalization.iter().any(|(_, found)| *found == path),
                "{path}"
            );
        }
    }
}
