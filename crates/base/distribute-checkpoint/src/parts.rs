//! A checkpoint of several models and training states, each of which is a part with a path.

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use serde::{Deserialize, Serialize};

use super::restore::{TensorSpec, model_signature};
use super::{Checkpoint, Metadata, ModelInfo, OptimizerInfo, Section};

/// What a checkpoint says of one of its parts beside the tensors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PartInfo {
    /// Optimizer steps taken so far; 0 of a model without an optimizer.
    pub step: u64,
    /// The model.
    pub model: ModelInfo,
    /// The optimizer; without a name if there is none.
    pub optimizer: OptimizerInfo,
}

/// The name that a tensor of a part has in the checkpoint of the whole: `encoder/model/weight` for
/// `model/weight` of the part `encoder`. The part that is the whole has no path, and its tensors
/// keep their names.
pub fn name_in_part(part: &str, name: &str) -> String {
    if part.is_empty() {
        name.to_string()
    } else {
        format!("{part}/{name}")
    }
}

impl Checkpoint {
    /// One checkpoint of several parts, by their paths; its step is the largest of theirs. A
    /// single part without a path is the whole.
    ///
    /// ```
    /// use burn::tensor::TensorData;
    /// use distribute_checkpoint::{Checkpoint, Metadata};
    ///
    /// let mut encoder = Checkpoint::new(Metadata::new(7));
    /// encoder.tensors.insert("model/weight".into(), TensorData::from([1.0_f32]));
    /// let whole = Checkpoint::of_parts([("encoder".to_string(), encoder.clone())]);
    /// assert!(whole.tensors.contains_key("encoder/model/weight"));
    /// assert_eq!(whole.metadata.step, 7);
    /// let part = whole.part("encoder").ok_or("no such part")?;
    /// assert_eq!(part.tensors, encoder.tensors);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_parts(parts: impl IntoIterator<Item = (String, Checkpoint)>) -> Self {
        let mut whole = Self::new(Metadata::new(0));
        for (path, part) in parts {
            if path.is_empty() {
                return part;
            }
            whole.metadata.step = whole.metadata.step.max(part.metadata.step);
            let named = part.tensors.into_iter();
            let named = named.map(|(name, data)| (name_in_part(&path, &name), data));
            whole.tensors.extend(named);
            let Metadata {
                step,
                model,
                optimizer,
                ..
            } = part.metadata;
            let info = PartInfo {
                step,
                model,
                optimizer,
            };
            whole.metadata.parts.insert(path, info);
        }
        whole.metadata.model.signature = whole.signature_of_parts();
        whole
    }

    /// The checkpoint of one part alone, as if it had been saved alone: for a program that has only
    /// that model. `None` if there is no such part. Copies the part's tensors.
    pub fn part(&self, path: &str) -> Option<Self> {
        let info = self.metadata.parts.get(path)?;
        let mut part = Self::new(Metadata {
            step: info.step,
            model: info.model.clone(),
            optimizer: info.optimizer.clone(),
            parts: BTreeMap::new(),
            ..self.metadata.clone()
        });
        part.tensors = self.tensors_of_part(path).collect();
        Some(part)
    }

    /// The tensors of a part, by their names in a checkpoint of it alone.
    fn tensors_of_part(&self, path: &str) -> impl Iterator<Item = (String, TensorData)> {
        let prefix = name_in_part(path, "");
        let from = self.tensors.range(prefix.clone()..);
        from.map_while(move |(name, data)| {
            let name = name.strip_prefix(&prefix)?;
            Some((name.to_string(), data.clone()))
        })
    }

    fn signature_of_parts(&self) -> String {
        let named = self.metadata.parts.keys().flat_map(|path| {
            let prefix = name_in_part(path, Section::Model.prefix());
            let of_part = self.tensors.range(prefix.clone()..);
            of_part.take_while(move |(name, _)| name.starts_with(&prefix))
        });
        model_signature(named.map(|(name, data)| TensorSpec::of(name, data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(step: u64, optimizer: &str) -> Checkpoint {
        let mut checkpoint = Checkpoint::new(Metadata::new(step));
        checkpoint.metadata.optimizer.name = optimizer.to_string();
        for name in ["model/weight", "optimizer/momentum/weight"] {
            let data = TensorData::from([step as f32]);
            checkpoint.tensors.insert(name.to_string(), data);
        }
        checkpoint
    }

    /// A path that another one begins with, and paths that are called like sections.
    #[test]
    fn parts_are_told_apart_by_their_paths() {
        let parts = [
            ("a", state(1, "sgd")),
            ("a.b", state(2, "adam")),
            ("ab", state(3, "lion")),
            ("model", state(4, "sgd")),
            ("optimizer", state(5, "adam")),
        ];
        let named = parts.clone().map(|(path, part)| (path.to_string(), part));
        let whole = Checkpoint::of_parts(named);
        assert_eq!(whole.metadata.step, 5);
        assert_eq!(whole.tensors.len(), 10);
        assert!(!whole.metadata.model.signature.is_empty());
        for (path, expected) in parts {
            assert_eq!(
                whole.part(path).unwrap().tensors,
                expected.tensors,
                "{path}"
            );
            let part = whole.part(path).unwrap().metadata;
            assert_eq!(part.step, expected.metadata.step);
            assert_eq!(part.optimizer, expected.metadata.optimizer);
            assert!(part.parts.is_empty());
        }
        assert_eq!(whole.part("b"), None);
        assert_eq!(whole.part(""), None);
    }

    #[test]
    fn a_single_part_without_a_path_is_the_whole() {
        let alone = state(3, "adam");
        let whole = Checkpoint::of_parts([(String::new(), alone.clone())]);
        assert_eq!(whole, alone);
    }

    /// A checkpoint of one state has no such key, as before there were parts.
    #[test]
    fn metadata_of_one_state_is_written_as_before() {
        let alone = serde_json::to_string(&state(3, "adam").metadata).unwrap();
        assert!(!alone.contains("parts"), "{alone}");
        let read: Metadata = serde_json::from_str(&alone).unwrap();
        assert_eq!(read, state(3, "adam").metadata);
        let whole = Checkpoint::of_parts([("a".to_string(), state(3, "adam"))]).metadata;
        let written = serde_json::to_string(&whole).unwrap();
        assert_eq!(serde_json::from_str::<Metadata>(&written).unwrap(), whole);
    }
}
