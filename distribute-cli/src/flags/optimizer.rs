//! The flag `--optimizer`.

use std::str::FromStr;

use distribute_core::optim::{self, from_config};
use serde_json::{Map, Value, json};

/// Arguments that limit gradients and are no arguments of an update.
const CLIPS: [&str; 3] = ["global_clipnorm", "clipnorm", "clipvalue"];

/// The name of a supported optimizer, and its arguments by Keras' names.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OptimizerName {
    pub(crate) name: &'static str,
    pub(crate) settings: Map<String, Value>,
}

impl OptimizerName {
    /// The arguments as they were given, if there are some.
    pub(crate) fn options(&self) -> Option<String> {
        let pairs = self
            .settings
            .iter()
            .map(|(key, value)| format!("{key}={value}"));
        let pairs: Vec<String> = pairs.collect();
        (!pairs.is_empty()).then(|| pairs.join(","))
    }
}

impl FromStr for OptimizerName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = || optim::names().chain(optim::burn_names());
        let named = |name: &str| all().find(|known| known.eq_ignore_ascii_case(name));
        // A name of burn's optimizers has a colon itself.
        let (name, options) = match named(text) {
            Some(_) => (text, ""),
            None => text.rsplit_once(':').unwrap_or((text, "")),
        };
        let Some(name) = named(name) else {
            return Err(distribute_error::unknown("optimizer", text, all()));
        };
        let pairs = options.split(',').filter(|pair| !pair.is_empty());
        let settings = pairs.map(|pair| {
            let parsed = pair.split_once('=').and_then(|(key, value)| {
                let value = value.trim();
                let number = value
                    .parse::<f64>()
                    .ok()
                    .filter(|number| number.is_finite());
                let switch = value.to_ascii_lowercase().parse::<bool>().ok();
                let value = number
                    .map(|number| json!(number))
                    .or(switch.map(Value::Bool))?;
                Some((key.trim().to_string(), value))
            });
            parsed.ok_or_else(|| format!("`{pair}` is not OPTION=NUMBER or OPTION=true"))
        });
        let settings: Map<String, Value> = settings.collect::<Result<_, _>>()?;
        // Wrong arguments are reported before any file is read.
        let of_update = settings
            .iter()
            .filter(|(key, _)| !CLIPS.contains(&key.as_str()));
        let of_update: Map<String, Value> = of_update
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let built = from_config(name, &Value::Object(of_update));
        built.map_err(|error| error.to_string())?;
        Ok(Self { name, settings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_keras() {
        let sgd: OptimizerName = "SGD:momentum=0.9,nesterov=true,clipvalue=0.5"
            .parse()
            .unwrap();
        assert_eq!(sgd.name, "sgd");
        assert_eq!(sgd.settings["nesterov"], true);
        assert_eq!(
            sgd.options().unwrap(),
            "clipvalue=0.5,momentum=0.9,nesterov=true"
        );
        let plain: OptimizerName = "adam".parse().unwrap();
        assert_eq!(plain.options(), None);
        for (text, wanted) in [
            ("adamm", "did you mean `adam`"),
            ("adam:beta=0.9", "beta"),
            ("sgd:momentum", "OPTION=NUMBER"),
        ] {
            let error = text.parse::<OptimizerName>().unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
