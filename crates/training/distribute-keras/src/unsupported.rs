//! What a model file has that this program does not have.

use std::collections::BTreeSet;
use std::fmt;

/// A layer of a model file, an option of one or an argument of its call, that this program does
/// not have.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsupported {
    /// The layer's name.
    pub layer: String,
    /// Keras' name of the layer's class.
    pub class: String,
    /// What of it: "this layer", or the option with its value.
    pub what: String,
    /// The option, such as `kernel_initializer.scale`; nothing for the layer or an argument.
    pub option: Option<String>,
    /// What to do about it.
    pub remedy: &'static str,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            layer,
            class,
            what,
            remedy,
            ..
        } = self;
        write!(
            f,
            "layer {layer} ({class}): {what} is not supported; {remedy}"
        )
    }
}

/// All of them: in one line if it is one, else with their count, those of one kind in one line.
pub(crate) fn list(found: &[Unsupported]) -> String {
    if let [one] = found {
        return one.to_string();
    }
    let layers: BTreeSet<&str> = found.iter().map(|one| one.layer.as_str()).collect();
    let mut lines: Vec<(&Unsupported, Vec<String>)> = Vec::new();
    for one in found {
        let alike = |(first, _): &&mut (&Unsupported, Vec<String>)| {
            (first.what.as_str(), first.remedy) == (one.what.as_str(), one.remedy)
        };
        let name = format!("{} ({})", one.layer, one.class);
        match lines.iter_mut().find(alike) {
            Some((_, names)) => names.push(name),
            None => lines.push((one, vec![name])),
        }
    }
    let mut text = format!(
        "{} are not supported as they are, for {} reasons:",
        counted(layers.len()),
        found.len()
    );
    for (one, names) in lines {
        let (what, remedy) = (&one.what, one.remedy);
        let layers = if names.len() == 1 { "layer" } else { "layers" };
        text.push_str(&format!(
            "\n  {layers} {}: {what}; {remedy}",
            names.join(", ")
        ));
    }
    text
}

fn counted(layers: usize) -> String {
    match layers {
        1 => "parts of 1 layer".to_string(),
        count => format!("{count} layers"),
    }
}
