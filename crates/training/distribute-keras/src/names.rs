//! The names that Keras gives to what has none.

use std::collections::BTreeMap;

/// The names that Keras gives to layers without one.
#[derive(Default)]
pub(crate) struct Names(BTreeMap<String, usize>);

impl Names {
    /// The next name for a layer of this class: `MaxPooling2D` is `max_pooling2d`, then
    /// `max_pooling2d_1`.
    pub(crate) fn next(&mut self, class: &str) -> String {
        let mut name = String::new();
        let mut before = '_';
        for (index, letter) in class.char_indices() {
            let next = class[index + letter.len_utf8()..].chars().next();
            let starts = letter.is_uppercase()
                && (before.is_lowercase()
                    || (before != '_' && next.is_some_and(char::is_lowercase)));
            if starts && index > 0 {
                name.push('_');
            }
            name.extend(letter.to_lowercase());
            before = letter;
        }
        let count = self.0.entry(name.clone()).or_default();
        *count += 1;
        match *count {
            1 => name,
            n => format!("{name}_{}", n - 1),
        }
    }
}
