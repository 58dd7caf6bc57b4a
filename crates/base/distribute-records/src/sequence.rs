//! `tf.train.SequenceExample`: features of the whole, and lists of features over time.

use std::collections::BTreeMap;

use crate::example::{Bad, entry, feature_bytes, features, features_bytes, map, merge};
use crate::wire::{Fields, Value, put_bytes};
use crate::{Feature, MessageError};

/// `tf.train.SequenceExample`: the features of a sequence, and the features of each step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SequenceExample {
    /// The features of the whole sequence.
    pub context: BTreeMap<String, Feature>,
    /// By name, one feature for each step.
    pub lists: BTreeMap<String, Vec<Feature>>,
}

impl SequenceExample {
    /// Reads a message, by the rules of [`Example::parse`](crate::Example::parse).
    ///
    /// # Errors
    ///
    /// [`MessageError`]
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut example = Self::default();
        read(bytes, &mut example).map_err(|bad| bad.of("SequenceExample"))?;
        Ok(example)
    }

    /// The message, with lists of numbers packed.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !self.context.is_empty() {
            put_bytes(&mut bytes, 1, &features_bytes(&self.context));
        }
        if !self.lists.is_empty() {
            let mut lists = Vec::new();
            for (name, steps) in &self.lists {
                let mut list = Vec::new();
                for step in steps {
                    put_bytes(&mut list, 1, &feature_bytes(step));
                }
                entry(&mut lists, name, &list);
            }
            put_bytes(&mut bytes, 2, &lists);
        }
        bytes
    }
}

fn read(bytes: &[u8], to: &mut SequenceExample) -> Result<(), Bad> {
    let mut fields = Fields(bytes);
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(bytes)) => features(bytes, &mut to.context)?,
            (2, Value::Bytes(bytes)) => map(bytes, &mut to.lists, steps)?,
            _ => {}
        }
    }
    Ok(())
}

/// Adds what a `tf.train.FeatureList` message has.
fn steps(to: &mut Vec<Feature>, bytes: &[u8]) -> Result<(), Bad> {
    let mut fields = Fields(bytes);
    while let Some((number, value)) = fields.next()? {
        if let (1, Value::Bytes(bytes)) = (number, value) {
            let mut step = Feature::Empty;
            merge(&mut step, bytes)?;
            to.push(step);
        }
    }
    Ok(())
}
