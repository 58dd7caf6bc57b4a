//! Collects what a file has that this program does not have, so that one error names all of it.

use std::cell::RefCell;

use serde_json::Value;

use crate::fields::Object;
use crate::{ModelError, Unsupported};

/// What was refused so far.
#[derive(Debug, Default)]
pub(super) struct Refused(RefCell<Vec<Unsupported>>);

impl Refused {
    /// The result, or nothing for what is not supported, which is kept.
    pub(super) fn collect<T>(
        &self,
        result: Result<T, ModelError>,
    ) -> Result<Option<T>, ModelError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(ModelError::Unsupported { found, .. }) => {
                self.0.borrow_mut().extend(found);
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }

    /// What `read` makes of the object of a layer, or nothing if the layer or some of its options
    /// are not supported. All such options are found by reading the object again without them.
    pub(super) fn layer<T>(
        &self,
        outer: &Object,
        mut read: impl FnMut(&Object) -> Result<T, ModelError>,
    ) -> Result<Option<T>, ModelError> {
        let start = self.0.borrow().len();
        let mut result = self.collect(read(outer))?;
        if result.is_some() {
            return Ok(result);
        }
        let mut rest = outer.clone();
        while result.is_none()
            && self
                .last_option()
                .is_some_and(|last| take(&mut rest, &last))
        {
            let before = self.0.borrow().len();
            result = self.collect(read(&rest))?;
            // An option that a layer needs is refused again when it is taken away.
            self.forget_repeated(before);
            // What stands inside of the layer is read again too.
            self.forget_known(start, before);
        }
        Ok(None)
    }

    fn last_option(&self) -> Option<String> {
        self.0.borrow().last()?.option.clone()
    }

    fn forget_repeated(&self, before: usize) {
        let mut all = self.0.borrow_mut();
        let same = |(first, last): (&Unsupported, &Unsupported)| {
            (&first.layer, &first.option) == (&last.layer, &last.option)
        };
        let (earlier, later) = all.split_at(before.min(all.len()));
        if earlier.last().zip(later.first()).is_some_and(same) {
            all.truncate(before);
        }
    }

    /// Of what was refused after `before`, forgets what was refused after `start` too.
    fn forget_known(&self, start: usize, before: usize) {
        let mut all = self.0.borrow_mut();
        let before = before.min(all.len());
        let later = all.split_off(before);
        let known = |one: &Unsupported| all.iter().skip(start).any(|known| known == one);
        let new: Vec<Unsupported> = later.into_iter().filter(|one| !known(one)).collect();
        all.extend(new);
    }

    /// An error that names all that was refused, if something was.
    pub(super) fn check(&self, origin: &str) -> Result<(), ModelError> {
        let found = self.0.take();
        if found.is_empty() {
            return Ok(());
        }
        Err(ModelError::Unsupported {
            origin: origin.to_string(),
            found,
        })
    }
}

/// Takes an option out of the object of a layer; whether it was there. The path of an option has
/// dots: `kernel_initializer.scale` is the option `scale` of the object in the other option.
fn take(outer: &mut Object, option: &str) -> bool {
    let mut object = match outer.get_mut("config") {
        Some(Value::Object(config)) => config,
        _ => return false,
    };
    let mut path = option.split('.').peekable();
    while let Some(key) = path.next() {
        if path.peek().is_none() {
            return object.remove(key).is_some();
        }
        object = match object
            .get_mut(key)
            .and_then(|inner| inner.get_mut("config"))
        {
            Some(Value::Object(config)) => config,
            _ => return false,
        };
    }
    false
}
