//! Layers that are not trained, by their names.

use crate::{ModelError, ModelSpec};

impl ModelSpec {
    /// Freezes the layers that a pattern names (Keras: `layer.trainable = False`), and says which
    /// ones: those whose name fits, with or without the models that it is in, and all layers of a
    /// model whose name fits. `*` stands for any text and `?` for one character.
    ///
    /// # Errors
    /// [`ModelError::NoLayer`] for a pattern that fits no layer.
    pub fn freeze(&mut self, patterns: &[impl AsRef<str>]) -> Result<Vec<String>, ModelError> {
        for pattern in patterns.iter().map(AsRef::as_ref) {
            if !self
                .layers
                .iter()
                .any(|layer| is_named(pattern, &layer.name))
            {
                let names = self.layers.iter().map(|layer| layer.name.as_str());
                return Err(ModelError::NoLayer {
                    model: self.name.clone(),
                    pattern: pattern.to_string(),
                    layers: names.collect::<Vec<_>>().join(", "),
                });
            }
        }
        let mut frozen = Vec::new();
        for layer in &mut self.layers {
            let mut patterns = patterns.iter().map(AsRef::as_ref);
            if patterns.any(|pattern| is_named(pattern, &layer.name)) {
                layer.trainable = false;
                frozen.push(layer.name.clone());
            }
        }
        Ok(frozen)
    }
}

/// Whether a pattern fits a layer: its path, the beginning of it that ends before a `/`, or its
/// last part.
fn is_named(pattern: &str, path: &str) -> bool {
    let models = path.match_indices('/').map(|(end, _)| &path[..end]);
    let last = path.rsplit('/').next().unwrap_or(path);
    models.chain([path, last]).any(|name| fits(pattern, name))
}

/// Whether a text fits a pattern. Of several stars only the last one that was met is tried again,
/// so that this takes at most the product of both lengths.
fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut read) = (0, 0);
    // Behind the last star, and how far the text was read for it.
    let mut again: Option<(usize, usize)> = None;
    while read < text.len() {
        match pattern.get(at) {
            Some('*') => {
                at += 1;
                again = Some((at, read));
            }
            Some(letter) if *letter == '?' || *letter == text[read] => {
                at += 1;
                read += 1;
            }
            _ => {
                let Some((star, from)) = again else {
                    return false;
                };
                at = star;
                read = from + 1;
                again = Some((star, read));
            }
        }
    }
    pattern[at..].iter().all(|letter| *letter == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_names_paths_and_models() {
        for (pattern, path, wanted) in [
            ("conv1", "conv1", true),
            ("conv1", "base/conv1", true),
            ("conv", "conv1", false),
            ("conv?", "base/conv1", true),
            ("base", "base/block/conv1", true),
            ("base/block", "base/block/conv1", true),
            ("block", "base/block/conv1", false),
            ("base/*", "base/block/conv1", true),
            ("block*", "block2_conv1", true),
            ("*_bn", "block2_bn", true),
            ("*a*b*", "xaybz", true),
            ("*a*b", "xaybz", false),
            ("*", "anything", true),
            ("", "dense", false),
        ] {
            assert_eq!(is_named(pattern, path), wanted, "{pattern} {path}");
        }
    }

    #[test]
    fn a_pattern_without_a_layer_is_refused_with_the_names() {
        let mut model = crate::built_in("mlp", 10, 0).unwrap();
        let error = model.freeze(&["dense*", "block*"]).unwrap_err().to_string();
        assert!(
            error.contains("block*") && error.contains("dense_1"),
            "{error}"
        );
        assert!(model.layers.iter().all(|layer| layer.trainable));
        assert_eq!(
            model.freeze(&["dense", "dense_1"]).unwrap(),
            ["dense", "dense_1"]
        );
        assert_eq!(
            model.layers.iter().filter(|layer| layer.trainable).count(),
            2
        );
    }
}
