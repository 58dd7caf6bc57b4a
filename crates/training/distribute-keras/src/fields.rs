//! The options of one object of a model file.
//!
//! A reader of an object asks for each option by its key; [`Fields::finish`] then refuses the
//! options that were not asked for. So an option is honoured or refused, and one that a later
//! version of Keras adds is refused until it is honoured.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::{ModelError, Unsupported};

pub(super) type Object = Map<String, Value>;

/// Where in the file an object stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) origin: &'a str,
    /// The layer's name.
    pub(super) layer: &'a str,
    pub(super) class: &'a str,
    /// Whether Keras 2 wrote the file, which gives some names another meaning.
    pub(super) keras2: bool,
}

/// What to do about a layer of one's own: the file has its name, and not what it computes.
pub(super) const OWN_LAYER: &str = "the file does not have its code; build it of Keras' layers \
                                    and operations (`x * 2`, `keras.ops`) in a functional model";
const OWN_OBJECT: &str = "the file does not have its code; use a class that comes with Keras";

impl Place<'_> {
    /// The error for a class that Keras does not have: a layer's, or that of an object in an
    /// option.
    fn own(&self, within: &str, key: &str, value: &Value) -> ModelError {
        match within.strip_suffix('.') {
            None => {
                let what = format!("this class of your own (`{key}` = {value})");
                self.unsupported(what, None, OWN_LAYER)
            }
            Some(option) => {
                let what = format!("option `{within}{key}` = {value}");
                self.unsupported(what, Some(option.to_string()), OWN_OBJECT)
            }
        }
    }

    /// The error for the layer, or for one option of it.
    pub(super) fn unsupported(
        &self,
        what: String,
        option: Option<String>,
        remedy: &'static str,
    ) -> ModelError {
        ModelError::Unsupported {
            origin: self.origin.to_string(),
            found: vec![Unsupported {
                layer: self.layer.to_string(),
                class: self.class.to_string(),
                what,
                option,
                remedy,
            }],
        }
    }
}

/// The options of one object, and which of them were asked for.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    place: Place<'a>,
    /// In which option of the layer the object stands, with a dot at the end.
    within: String,
    options: Option<&'a Object>,
    asked: BTreeSet<&'static str>,
}

/// An object that names its class: a layer, an initializer, a function.
pub(super) struct Named<'a> {
    pub(super) class: &'a str,
    /// What a function has in place of options: its name.
    pub(super) function: Option<&'a str>,
    pub(super) fields: Fields<'a>,
}

/// What Keras writes beside an object's options without meaning anything by it.
const BESIDE_OPTIONS: [&str; 7] = [
    "class_name",
    "config",
    "build_config",
    "compile_config",
    "name",
    "shared_object_id",
    "inbound_nodes",
];
/// The modules of Keras' own classes. A class of the same name in another module is a user's.
const MODULES: [&str; 4] = ["keras", "tf_keras", "tensorflow", "builtins"];

/// The layers that give whole numbers, and the types of these.
const LOOKUPS: [&str; 5] = [
    "Hashing",
    "IntegerLookup",
    "StringLookup",
    "TextVectorization",
    "Discretization",
];
const INTEGERS: [&str; 3] = ["int32", "int64", "string"];

impl<'a> Fields<'a> {
    pub(super) fn new(place: Place<'a>, within: String, options: Option<&'a Object>) -> Self {
        Self {
            place,
            within,
            options,
            asked: BTreeSet::new(),
        }
    }

    /// The object `outer` of a class, as Keras writes layers and what they are made of.
    pub(super) fn named(
        place: Place<'a>,
        within: String,
        outer: &'a Object,
    ) -> Result<Option<Named<'a>>, ModelError> {
        let Some(class) = outer.get("class_name").and_then(Value::as_str) else {
            return Ok(None);
        };
        let mut beside = Self::new(place, within.clone(), Some(outer));
        beside.neutral(&BESIDE_OPTIONS);
        if let Some(module) = beside.get("module") {
            let root = module.as_str().and_then(|module| module.split('.').next());
            if !root.is_some_and(|root| MODULES.contains(&root)) {
                return Err(place.own(&within, "module", module));
            }
        }
        if let Some(registered) = beside.get("registered_name") {
            let known = registered.as_str();
            // A class in Keras' own modules may be registered as `Custom>CLASS`.
            let in_keras = outer.get("module").is_some_and(|module| !module.is_null());
            let is_own = |name: &str| {
                let custom = name.rsplit('>').next() == Some(class);
                name != class && !name.starts_with("keras") && !(in_keras && custom)
            };
            if known.is_none_or(is_own) {
                return Err(place.own(&within, "registered_name", registered));
            }
        }
        beside.finish()?;
        let (options, function) = match outer.get("config") {
            Some(Value::Object(options)) => (Some(options), None),
            Some(Value::String(function)) => (None, Some(function.as_str())),
            None | Some(Value::Null) => (None, None),
            Some(_) => return Ok(None),
        };
        Ok(Some(Named {
            class,
            function,
            fields: Self::new(place, within, options),
        }))
    }

    pub(super) fn place(&self) -> Place<'a> {
        self.place
    }

    /// An option that is set. Keras writes `null` for one that is not.
    pub(super) fn get(&mut self, key: &'static str) -> Option<&'a Value> {
        self.asked.insert(key);
        let value = self.options.and_then(|options| options.get(key));
        value.filter(|value| !value.is_null())
    }

    /// Whether an option is written, as `null` too.
    pub(super) fn has(&self, key: &str) -> bool {
        self.options
            .is_some_and(|options| options.contains_key(key))
    }

    /// Options that change nothing, whatever they are.
    pub(super) fn neutral(&mut self, keys: &[&'static str]) {
        self.asked.extend(keys);
    }

    /// An option of which one value alone, the default, is honoured.
    pub(super) fn must_be(
        &mut self,
        key: &'static str,
        value: impl Into<Value>,
        remedy: &'static str,
    ) -> Result<(), ModelError> {
        let value = value.into();
        match self.get(key) {
            Some(found) if !same(found, &value) => Err(self.refuse(key, remedy)),
            _ => Ok(()),
        }
    }

    /// A number, which JSON makes finite.
    pub(super) fn number(&mut self, key: &'static str, default: f64) -> Result<f64, ModelError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value
                .as_f64()
                .ok_or_else(|| self.refuse(key, "use a number")),
        }
    }

    /// A number that Keras wants to be 0 or more.
    pub(super) fn factor(&mut self, key: &'static str, default: f64) -> Result<f64, ModelError> {
        let number = self.number(key, default)?;
        if number >= 0.0 {
            Ok(number)
        } else {
            Err(self.refuse(key, "use a number from 0 on"))
        }
    }

    pub(super) fn flag(&mut self, key: &'static str, default: bool) -> Result<bool, ModelError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| self.refuse(key, "use true or false")),
        }
    }

    /// The type of the arithmetic: as a name, or as a policy that has a name and nothing else.
    pub(super) fn float32(&mut self) -> Result<(), ModelError> {
        let name = match self.get("dtype") {
            None => return Ok(()),
            Some(Value::String(name)) => Some(name.as_str()),
            Some(Value::Object(policy)) => match policy.get("config") {
                Some(Value::Object(config)) if config.len() == 1 => {
                    config.get("name").and_then(Value::as_str)
                }
                _ => None,
            },
            Some(_) => None,
        };
        match name {
            Some("float32") => Ok(()),
            // What these give are whole numbers, or rows of zeros and ones.
            Some(name) if INTEGERS.contains(&name) && LOOKUPS.contains(&self.place.class) => Ok(()),
            Some(name) if name.starts_with("mixed_") => {
                let remedy = "write the file under the policy float32; `train --precision bf16` or \
                              f16 computes as the policy says";
                Err(self.refuse("dtype", remedy))
            }
            _ => Err(self.refuse("dtype", "use float32")),
        }
    }

    /// An object in an option; its name alone, a plain string, stands for it without options.
    pub(super) fn object(&mut self, key: &'static str) -> Result<Option<Named<'a>>, ModelError> {
        let within = format!("{}{key}.", self.within);
        match self.get(key) {
            Some(Value::String(class)) => Ok(Some(Named {
                class,
                function: None,
                fields: Self::new(self.place, within, None),
            })),
            Some(Value::Object(outer)) => Self::named(self.place, within, outer),
            _ => Ok(None),
        }
    }

    /// The object in an option, or the objects in its list, see [`object`](Self::object).
    pub(super) fn objects(
        &mut self,
        key: &'static str,
    ) -> Result<Option<Vec<Named<'a>>>, ModelError> {
        let Some(Value::Array(list)) = self.get(key) else {
            return Ok(self.object(key)?.map(|one| vec![one]));
        };
        let named = list.iter().enumerate().map(|(index, value)| {
            let within = format!("{}{key}[{index}].", self.within);
            match value {
                Value::Object(outer) => Self::named(self.place, within, outer),
                _ => Ok(None),
            }
        });
        named.collect()
    }

    /// The error for the value of this option.
    pub(super) fn refuse(&self, key: &str, remedy: &'static str) -> ModelError {
        let value = self
            .options
            .and_then(|options| options.get(key))
            .unwrap_or(&Value::Null);
        // Of an object its class says enough, of a policy its name.
        let name = &value["config"]["name"];
        let value = match &value["class_name"] {
            Value::String(class) if class.ends_with("Policy") && name.is_string() => name,
            class @ Value::String(_) => class,
            _ => value,
        };
        let option = format!("{}{key}", self.within);
        let what = format!("option `{option}` = {value}");
        self.place.unsupported(what, Some(option), remedy)
    }

    /// Refuses the first option that is set and was not asked for.
    pub(super) fn finish(self) -> Result<(), ModelError> {
        let ignored = self.options.into_iter().flatten().find(|(key, value)| {
            let asked = self.asked.contains(key.as_str());
            !asked && !value.is_null()
        });
        match ignored {
            Some((key, _)) => Err(self.refuse(key, "remove the option")),
            None => Ok(()),
        }
    }
}

/// `0` and `0.0` are the same number to Keras.
fn same(found: &Value, wanted: &Value) -> bool {
    match (found.as_f64(), wanted.as_f64()) {
        (Some(found), Some(wanted)) => found == wanted,
        _ => found == wanted,
    }
}
